typedef struct {
    char none;
} hog_rule;

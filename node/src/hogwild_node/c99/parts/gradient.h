typedef struct {
    hog_real own[HOG_CHANNELS], block[HOG_CHANNELS * HOG_CHANNELS], last[HOG_CHANNELS], trust;
} hog_rule;

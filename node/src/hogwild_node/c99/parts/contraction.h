typedef struct {
    hog_real share;
} hog_edge_model;

typedef struct {
    hog_real bias[HOG_CHANNELS], loop;
} hog_node_model;

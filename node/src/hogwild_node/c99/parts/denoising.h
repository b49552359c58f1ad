typedef struct {
    hog_real root;
} hog_edge_model;

typedef struct {
    hog_real target[HOG_CHANNELS], root;
} hog_node_model;

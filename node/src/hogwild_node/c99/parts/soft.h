#define HOG_START node->model.anchor /* where a node begins; else at zero */

typedef struct {
    hog_real here, there, into[HOG_SOFT], out[HOG_SOFT];
} hog_edge_model;

typedef struct {
    hog_real anchor[HOG_CHANNELS];
#if HOG_INNER
    hog_real offset[HOG_INNER];
#endif
} hog_node_model;

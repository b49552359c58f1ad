typedef struct {
    hog_real weight[HOG_HEADS];
    hog_net_message_gates gates[HOG_HEADS];
} hog_edge_model;

typedef struct {
    hog_real loop_weight;
    hog_net_loop_gates loop;
    hog_net_update_gates update;
    struct { /* the passes of the last update */
        hog_net_message_tape message[HOG_SLOTS][HOG_HEADS];
        hog_net_loop_tape loop;
        hog_net_update_tape update;
    } work;
} hog_node_model;

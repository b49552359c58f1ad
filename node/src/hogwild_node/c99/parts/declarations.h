typedef struct {
    int taken;              /* whether a neighbour has this slot */
    hog_real weight;        /* of the edge */
    hog_real degree;        /* one plus the weights of the neighbour's edges */
    hog_real features[HOG_FEATURES];
#if HOG_EDGE_FEATURES
    hog_real edge_features[HOG_JOIN_FEATURES];
#endif
    hog_real heard[HOG_NUMBERS]; /* the last numbers from the neighbour; zero before the first */
#if HOG_LETTER
    hog_real letter[HOG_LETTER]; /* the letter to the neighbour */
#endif
    hog_edge_model model;
} hog_neighbour;

/* The whole state of a node. The functions below use no other memory but the stack. */
typedef struct {
    int changed;            /* what the next update has to prepare */
    hog_real features[HOG_FEATURES]; /* as neighbours are told them: encoded, if the model does */
    hog_real h[HOG_CHANNELS]; /* the embedding; it may be set before the first update */
    hog_real residual;
    hog_rule rule;
    hog_node_model model;
    hog_neighbour near[HOG_SLOTS];
} hog_node;

/* Start a node with its own features [HOG_RAW_FEATURES] and no neighbours, where the model starts.
 * Returns 0 if the features are not finite, and 1 otherwise. */
int hog_init(hog_node *node, const hog_real *features);

/* The node's own features are these from now on. Returns 0 if they are not finite: nothing
 * changes. */
int hog_set_features(hog_node *node, const hog_real *features);

/* A neighbour with these features [HOG_FEATURES], as they are in its node, takes part from now on, in a free slot from 0 to HOG_SLOTS - 1. For a slot that is
 * taken, the call updates what is known of the same neighbour. Both nodes of an edge must give it
 * the same weight. degree is one plus the weights of the neighbour's edges (hog_degree of the
 * neighbour). edge_features [HOG_JOIN_FEATURES] are those of the edge from the neighbour, and then
 * those of the edge to it if there is room; a null pointer if the model reads none. Returns 0 if a
 * number does not fit: nothing changes. */
int hog_join(
    hog_node *node, int slot, hog_real weight, const hog_real *features, hog_real degree,
    const hog_real *edge_features);

/* The neighbour no longer takes part. A neighbour that restarted must leave and join again. */
int hog_leave(hog_node *node, int slot);

/* What a neighbour sent: its embedding and its letter [HOG_NUMBERS], in the order of a packet.
 * Returns 0 if the slot is free or a number is not finite: nothing changes. */
int hog_hear(hog_node *node, int slot, const hog_real *numbers);

/* Make one update. Returns 0 if numbers became too large and the node began anew. */
int hog_update(hog_node *node);

/* What to send to a neighbour after an update [HOG_NUMBERS]. Returns 0 if there is nothing to send:
 * the slot is free, or the node has changed since its last update. */
int hog_say(const hog_node *node, int slot, hog_real *numbers);

/* HOG_RESIDUAL */
hog_real hog_residual(const hog_node *node);

/* The node's prediction [HOG_OUTPUTS]. */
void hog_predict(const hog_node *node, hog_real *prediction);

/* One plus the weights of the node's edges, which its neighbours need in hog_join. */
hog_real hog_degree(const hog_node *node);

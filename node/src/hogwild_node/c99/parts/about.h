/* One node of the model @MODEL@: rule "@RULE@", @DTYPE@, up to @DEGREE@ neighbours.
 *
 * `hogwild export` wrote this file. Compile it, and include its declarations where they are used:
 *
 *     #define HOG_DECLARATIONS
 *     #include "node.c"
 *
 *     hog_node node;
 *     hog_init(&node, features);
 *     hog_join(&node, 0, 1, neighbour_features, neighbour_degree, @EDGE@);
 *     for (;;) {
 *         hog_hear(&node, 0, received);   (when a packet has arrived)
 *         hog_update(&node);
 *         hog_say(&node, 0, sent);        (then send it)
 *         hog_predict(&node, prediction);
 *     }
 *
 * hog_agent does the same with packets, and speaks with agents in Python.
 *
 * A node has at most HOG_SLOTS neighbours, HOG_RAW_FEATURES features, of which it tells its
 * neighbours HOG_FEATURES numbers, an embedding of HOG_CHANNELS
 * numbers and a prediction of HOG_OUTPUTS numbers; an edge has HOG_EDGE_FEATURES features. A node
 * sends HOG_NUMBERS numbers to a neighbour: @NUMBERS@.
 * Do not compile with -ffast-math: the file tests for numbers that are not finite.
 */

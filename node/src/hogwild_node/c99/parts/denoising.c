/* ---- the energy, from both sides of each edge ------------------------------------------------
 *
 *     e = gamma |h - g(x)|^2 + beta/2 sum over neighbours of w |h / sqrt(d) - h_j / sqrt(d_j)|^2
 *
 * The energy of a neighbour has the same term of the edge.
 */

/* Fill the features in: everything that no update changes. */
static void hog_pose(hog_node *node)
{
    hog_real own[HOG_FEATURES];
    hog_standard(node->features, own);
    hog_net_encoder(own, node->model.target);
    node->model.root = 1 / HOG_SQRT(hog_degree(node));
    for (int s = 0; s < HOG_SLOTS; s++)
        if (node->near[s].taken) node->near[s].model.root = 1 / HOG_SQRT(node->near[s].degree);
}

/* The gradient of the whole energy at the node, and the node's block of the Hessian. */
static void hog_refresh(hog_node *node)
{
    enum { K = HOG_CHANNELS };
    const hog_real root = node->model.root;
    hog_real diagonal = 2 * HOG_GAMMA;
    for (int c = 0; c < K; c++)
        node->rule.own[c] = 2 * HOG_GAMMA * (node->h[c] - node->model.target[c]);
    for (int s = 0; s < HOG_SLOTS; s++) {
        const hog_neighbour *near = &node->near[s];
        hog_real pull = 2 * HOG_BETA * near->weight, there = near->model.root;
        if (!near->taken) continue;
        diagonal += root * root * pull;
        for (int c = 0; c < K; c++)
            node->rule.own[c] += root * pull * (root * node->h[c] - there * near->heard[c]);
    }
    for (int c = 0; c < K; c++)
        for (int e = 0; e < K; e++) node->rule.block[c * K + e] = c == e ? diagonal : 0;
}


/* ---- the contraction -------------------------------------------------------------------------
 *
 *     F(h) = phi(W (sum over neighbours of A_j h_j + A_0 h) + b)
 */

/* Fill the features in: everything that no update changes. */
static void hog_pose(hog_node *node)
{
    hog_real own[HOG_FEATURES], degree = hog_degree(node);
    hog_standard(node->features, own);
    hog_net_encoder(own, node->model.bias);
    node->model.loop = 1 / degree;
    for (int s = 0; s < HOG_SLOTS; s++) {
        hog_neighbour *near = &node->near[s];
        if (near->taken) near->model.share = near->weight / HOG_SQRT(degree * near->degree);
    }
}

static void hog_apply(hog_node *node)
{
    enum { K = HOG_CHANNELS };
    hog_real heard[K], out[K];
    for (int c = 0; c < K; c++) heard[c] = node->model.loop * node->h[c];
    for (int s = 0; s < HOG_SLOTS; s++) {
        const hog_neighbour *near = &node->near[s];
        if (!near->taken) continue;
        for (int c = 0; c < K; c++) heard[c] += near->model.share * near->heard[c];
    }
    hog_affine(hog_matrix, node->model.bias, heard, K, K, out);
    for (int c = 0; c < K; c++) node->h[c] = HOG_PHI(out[c]);
}


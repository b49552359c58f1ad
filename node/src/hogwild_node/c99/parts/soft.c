/* ---- the energy, from both sides of each edge ------------------------------------------------
 *
 *     e = beta/2 |h - g(x)|^2 + psi(U h + b) + sum over neighbours of w psi(s W h + t V h_j + c),
 *     psi''(z) = low + (high - low) min(max(z / width + 1/2, 0), 1)
 *
 * A node computes its neighbours' terms of the edges to them, too.
 */

/* What the energy reads of a node; raw: its features without the norm of the layer */
static void hog_soft_knowing(
    const hog_real *features, hog_real degree, hog_real *raw, hog_real *out)
{
    hog_standard(features, raw);
    hog_norm_conv(raw, out);
    out[HOG_FEATURES] = 1 / HOG_SQRT(degree);
}

/* c of an edge, from what is known of its receiver and its sender, and from its features */
static void hog_soft_edge(
    const hog_real *own, const hog_real *near, const hog_real *features, hog_real *bias)
{
    hog_zero(bias, HOG_SOFT);
    hog_add_product(hog_soft_own, own, HOG_SOFT, HOG_FEATURES + 1, bias);
    hog_add_product(hog_soft_near, near, HOG_SOFT, HOG_FEATURES + 1, bias);
#if HOG_EDGE_FEATURES
    hog_real edge[HOG_EDGE_FEATURES];
    hog_standardise(features, hog_edge_offset, hog_edge_scale, HOG_EDGE_FEATURES, edge);
    hog_add_product(hog_soft_edges, edge, HOG_SOFT, HOG_EDGE_FEATURES, bias);
#else
    (void)features;
#endif
}

/* out -= scale matrix x, with matrix [rows, HOG_CHANNELS] and the last features as x */
HOG_INLINE void hog_soft_move(
    hog_real scale, const hog_real *matrix, const hog_real *features, int rows, hog_real *out)
{
    hog_real x[HOG_CHANNELS];
    for (int c = 0; c < HOG_CHANNELS; c++)
        x[c] = -scale * features[HOG_FEATURES - HOG_CHANNELS + c];
    hog_add_product(matrix, x, rows, HOG_CHANNELS, out);
}

HOG_INLINE hog_real hog_largest(hog_real a, hog_real b)
{
    return a > b ? a : b;
}

/* Fill the features in: everything that no update changes. */
static void hog_pose(hog_node *node)
{
    hog_real own[HOG_FEATURES + 1], there[HOG_FEATURES + 1], degree = hog_degree(node);
    hog_real raw[HOG_FEATURES], raw_there[HOG_FEATURES];
    hog_soft_knowing(node->features, degree, raw, own);
    hog_net_encoder(own, node->model.anchor);
#if HOG_INNER
    hog_zero(node->model.offset, HOG_INNER);
    hog_add_product(hog_soft_offset, own, HOG_INNER, HOG_FEATURES + 1, node->model.offset);
#endif
#if HOG_RESIDUAL /* the energy is of the distance from the last features */
    for (int c = 0; c < HOG_CHANNELS; c++)
        node->model.anchor[c] += raw[HOG_FEATURES - HOG_CHANNELS + c];
#if HOG_INNER
    hog_soft_move(1, hog_soft_inner, raw, HOG_INNER, node->model.offset);
#endif
#endif
    for (int s = 0; s < HOG_SLOTS; s++) {
        hog_neighbour *near = &node->near[s];
        const hog_real *edge = 0, *back = 0;
        if (!near->taken) continue;
#if HOG_EDGE_FEATURES
        edge = near->edge_features;
        back = near->edge_features + HOG_EDGE_FEATURES;
#endif
        hog_soft_knowing(near->features, near->degree, raw_there, there);
        hog_soft_edge(own, there, edge, near->model.into);
        hog_soft_edge(there, own, back, near->model.out);
        near->model.here = 1 / HOG_SQRT(HOG_HERE(degree, near->degree));
        near->model.there = 1 / HOG_SQRT(HOG_THERE(degree, near->degree));
#if HOG_RESIDUAL
        hog_soft_move(near->model.here, hog_soft_receiver, raw, HOG_SOFT, near->model.into);
        hog_soft_move(near->model.there, hog_soft_sender, raw_there, HOG_SOFT, near->model.into);
        hog_soft_move(near->model.there, hog_soft_receiver, raw_there, HOG_SOFT, near->model.out);
        hog_soft_move(near->model.here, hog_soft_sender, raw, HOG_SOFT, near->model.out);
#endif
    }
}

static hog_real hog_psi_slope(hog_real z, hog_real low, hog_real high)
{
    const hog_real width = HOG_SOFT_WIDTH, half = width / 2;
    hog_real u = z > -half ? (z < half ? z + half : width) : 0, beyond = z > half ? z - half : 0;
    return low * z + (high - low) * (u * u / (2 * width) + beyond);
}

/* sum += factor psi'(mine x + theirs y + bias), for every channel of the coupling */
static void hog_soft_slope(
    hog_real mine, const hog_real *x, hog_real theirs, const hog_real *y, const hog_real *bias,
    hog_real factor, hog_real *sum)
{
    for (int a = 0; a < HOG_SOFT; a++) {
        hog_real z = mine * x[a] + theirs * y[a] + bias[a];
        sum[a] += factor * hog_psi_slope(z, hog_soft_low[a], hog_soft_high[a]);
    }
}

/* out = matrix x, with matrix [HOG_SOFT, HOG_CHANNELS] */
static void hog_soft_product(const hog_real *matrix, const hog_real *x, hog_real *out)
{
    hog_zero(out, HOG_SOFT);
    hog_add_product(matrix, x, HOG_SOFT, HOG_CHANNELS, out);
}

/* The gradient of the whole energy at the node, and a bound on the node's block of the Hessian. */
static void hog_refresh(hog_node *node)
{
    enum { K = HOG_CHANNELS };
    hog_real w[HOG_SOFT], v[HOG_SOFT], w_there[HOG_SOFT], v_there[HOG_SOFT], pull[K], total = 0;
    hog_real received[HOG_SOFT], sent[HOG_SOFT];
    hog_soft_product(hog_soft_receiver, node->h, w);
    hog_soft_product(hog_soft_sender, node->h, v);
    hog_zero(received, HOG_SOFT);
    hog_zero(sent, HOG_SOFT);
    for (int s = 0; s < HOG_SLOTS; s++) {
        const hog_neighbour *near = &node->near[s];
        const hog_real here = near->model.here, there = near->model.there;
        if (!near->taken) continue;
        total += near->weight * here * here;
        hog_soft_product(hog_soft_receiver, near->heard, w_there);
        hog_soft_product(hog_soft_sender, near->heard, v_there);
        hog_soft_slope(here, w, there, v_there, near->model.into, near->weight * here, received);
        hog_soft_slope(there, w_there, here, v, near->model.out, near->weight * here, sent);
    }
    hog_transposed(hog_soft_receiver, received, HOG_SOFT, K, node->rule.own);
    hog_transposed(hog_soft_sender, sent, HOG_SOFT, K, pull);
    for (int c = 0; c < K; c++) {
        node->rule.own[c] += pull[c] + HOG_BETA * (node->h[c] - node->model.anchor[c]);
        for (int e = 0; e < K; e++)
            node->rule.block[c * K + e] =
                hog_soft_alone[c * K + e] + total * hog_soft_block[c * K + e];
    }
#if HOG_INNER
    hog_real inside[HOG_INNER];
    hog_affine(hog_soft_inner, node->model.offset, node->h, HOG_INNER, K, inside);
    for (int a = 0; a < HOG_INNER; a++)
        inside[a] = hog_psi_slope(inside[a], hog_soft_inner_low[a], hog_soft_inner_high[a]);
    hog_transposed(hog_soft_inner, inside, HOG_INNER, K, pull);
    for (int c = 0; c < K; c++) node->rule.own[c] += pull[c];
#endif
}

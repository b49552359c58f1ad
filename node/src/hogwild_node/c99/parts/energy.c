/* ---- the local energy ------------------------------------------------------------------------
 *
 *     e = u(m, h) + beta/2 |h|^2,   m = sum over neighbours of w m(h, h_j) + w_0 m_0(h)
 */

static void hog_weigh(hog_node *node, const hog_real *own)
{
    hog_real degree = hog_degree(node), count = 0;
    (void)own;
    for (int s = 0; s < HOG_SLOTS; s++) count += node->near[s].taken ? 1 : 0;
    node->model.loop_weight = HOG_NORMALISED ? 1 / degree : 1;
    for (int s = 0; s < HOG_SLOTS; s++) {
        hog_neighbour *near = &node->near[s];
        hog_real weight = near->weight;
        if (!near->taken) continue;
        if (HOG_NORMALISED) weight /= HOG_SQRT(degree * near->degree);
        if (HOG_MEAN) weight /= count;
        for (int head = 0; head < HOG_HEADS; head++) near->model.weight[head] = weight;
    }
#if HOG_ATTENTION
    for (int head = 0; head < HOG_HEADS; head++) {
        hog_real score[HOG_SLOTS], top = 0, total = 0;
        int found = 0;
        for (int s = 0; s < HOG_SLOTS; s++) {
            hog_neighbour *near = &node->near[s];
            hog_real there[HOG_FEATURES], sum = 0;
            if (!near->taken) continue;
            hog_standard(near->features, there);
            hog_add_product(hog_attention_own[head], own, 1, HOG_FEATURES, &sum);
            hog_add_product(hog_attention_there[head], there, 1, HOG_FEATURES, &sum);
#if HOG_EDGE_FEATURES
            hog_real edge[HOG_EDGE_FEATURES];
            hog_standardise(
                near->edge_features, hog_edge_offset, hog_edge_scale, HOG_EDGE_FEATURES, edge);
            hog_add_product(hog_attention_edge[head], edge, 1, HOG_EDGE_FEATURES, &sum);
#endif
            score[s] = hog_leaky(sum, HOG_ATTENTION_SLOPE);
            if (!found || score[s] > top) top = score[s];
            found = 1;
        }
        for (int s = 0; s < HOG_SLOTS; s++) {
            if (!node->near[s].taken) continue;
            score[s] = HOG_EXP(score[s] - top);
            total += score[s];
        }
        for (int s = 0; s < HOG_SLOTS; s++)
            if (node->near[s].taken) node->near[s].model.weight[head] *= score[s] / total;
    }
#endif
}

/* Fill the features in: everything that no update changes. */
static void hog_pose(hog_node *node)
{
    hog_real x[HOG_MESSAGE_FEATURES + HOG_FEATURES];
    hog_real *own = x + HOG_MESSAGE_FEATURES;
    hog_standard(node->features, own);
    hog_net_loop_fill(0, own, &node->model.loop);
    hog_net_update_fill(0, own, &node->model.update);
    hog_weigh(node, own);
    for (int s = 0; s < HOG_SLOTS; s++) {
        hog_neighbour *near = &node->near[s];
        hog_real *at = x;
        if (!near->taken) continue;
        if (HOG_ENDS == 2) {
            hog_copy(own, HOG_FEATURES, at);
            at += HOG_FEATURES;
        }
        hog_standard(near->features, at);
#if HOG_EDGE_FEATURES
        if (HOG_ENDS == 2)
            hog_standardise(
                near->edge_features, hog_edge_offset, hog_edge_scale, HOG_EDGE_FEATURES,
                at + HOG_FEATURES);
#endif
        for (int head = 0; head < HOG_HEADS; head++)
            hog_net_message_fill(head, x, &near->model.gates[head]);
    }
}

/* The gradients and curvature blocks of the local energy, for the node and for each neighbour. */
static void hog_refresh(hog_node *node)
{
    enum { K = HOG_CHANNELS, C = HOG_MESSAGE, M = HOG_MERGED, D = HOG_ENDS * K, U = M + K };
    const hog_real share = HOG_CONCAT ? (hog_real)1 : (hog_real)1 / HOG_HEADS;
    const hog_real loop_weight = node->model.loop_weight, one = 1;
    hog_real y[D], inner[U], bar[U], cotangent[M], back[D], jacobian[M * D], a[M * K];
    hog_real curved[D * D], u[U * U], out[U], through[M * K];
    hog_net_message_sensitivities message_felt;
    hog_net_loop_sensitivities loop_felt;
    hog_net_update_sensitivities update_felt;

    hog_net_loop_forward(0, &node->model.loop, node->h, &node->model.work.loop);
    for (int m = 0; m < M; m++) inner[m] = loop_weight * node->model.work.loop.value[m];
    for (int s = 0; s < HOG_SLOTS; s++) {
        const hog_neighbour *near = &node->near[s];
        if (!near->taken) continue;
        for (int c = 0; c < K; c++) {
            y[HOG_ENDS * c] = node->h[c];
            y[HOG_ENDS * c + HOG_ENDS - 1] = near->heard[c];
        }
        for (int head = 0; head < HOG_HEADS; head++) {
            hog_net_message_tape *tape = &node->model.work.message[s][head];
            hog_real weight = share * near->model.weight[head];
            hog_net_message_forward(head, &near->model.gates[head], y, tape);
            for (int c = 0; c < C; c++)
                inner[(HOG_CONCAT ? head * C : 0) + c] += weight * tape->value[c];
        }
    }
    hog_copy(node->h, K, inner + M);
    hog_net_update_forward(0, &node->model.update, inner, &node->model.work.update);
    hog_net_update_backward(
        0, &node->model.update, &node->model.work.update, &one, bar, &update_felt);
    hog_net_update_second(
        0, &node->model.update, &node->model.work.update, &update_felt, out, u);

    for (int m = 0; m < M; m++) cotangent[m] = loop_weight * bar[m];
    hog_net_loop_backward(
        0, &node->model.loop, &node->model.work.loop, cotangent, back, &loop_felt);
    hog_net_loop_second(0, &node->model.loop, &node->model.work.loop, &loop_felt, a, curved);
    for (int m = 0; m < M * K; m++) a[m] *= loop_weight;
    for (int c = 0; c < K; c++) {
        node->rule.own[c] = bar[M + c] + back[c] + HOG_BETA * node->h[c];
        for (int e = 0; e < K; e++)
            node->rule.block[c * K + e] =
                curved[c * K + e] + u[(M + c) * U + M + e] + (c == e ? HOG_BETA : 0);
    }

    for (int s = 0; s < HOG_SLOTS; s++) {
        hog_neighbour *near = &node->near[s];
        hog_real ybar[D], bent[D * D], toward[M * K];
        int at = K;
        if (!near->taken) continue;
        hog_zero(ybar, D);
        hog_zero(bent, D * D);
        hog_zero(toward, M * K);
        for (int head = 0; head < HOG_HEADS; head++) {
            const hog_net_message_gates *gates = &near->model.gates[head];
            const hog_net_message_tape *tape = &node->model.work.message[s][head];
            hog_real weight = share * near->model.weight[head];
            int first = HOG_CONCAT ? head * C : 0;
            for (int c = 0; c < C; c++) cotangent[c] = weight * bar[first + c];
            hog_net_message_backward(head, gates, tape, cotangent, back, &message_felt);
            hog_net_message_second(head, gates, tape, &message_felt, jacobian, curved);
            for (int i = 0; i < D; i++) ybar[i] += back[i];
            for (int i = 0; i < D * D; i++) bent[i] += curved[i];
            for (int c = 0; c < C; c++)
                for (int e = 0; e < K; e++) {
                    const hog_real *row = jacobian + c * D + HOG_ENDS * e;
                    toward[(first + c) * K + e] += weight * row[HOG_ENDS - 1];
                    if (HOG_ENDS == 2) a[(first + c) * K + e] += weight * row[0];
                }
        }
        /* U J, and the neighbour's block C + J' U J */
        for (int m = 0; m < M; m++)
            for (int e = 0; e < K; e++) {
                hog_real sum = 0;
                for (int l = 0; l < M; l++) sum += u[m * U + l] * toward[l * K + e];
                through[m * K + e] = sum;
            }
        for (int c = 0; c < K; c++) {
            int i = HOG_ENDS * c, j = i + HOG_ENDS - 1;
            near->letter[c] = ybar[j];
            for (int e = c; e < K; e++) {
                hog_real sum = bent[j * D + HOG_ENDS * e + HOG_ENDS - 1];
                for (int m = 0; m < M; m++) sum += toward[m * K + c] * through[m * K + e];
                near->letter[at++] = sum;
            }
            if (HOG_ENDS == 2) {
                node->rule.own[c] += ybar[i];
                for (int e = 0; e < K; e++)
                    node->rule.block[c * K + e] += bent[i * D + HOG_ENDS * e];
            }
        }
    }
    /* The node's own block also has A' Umm A + A' Umh + Uhm A, with A = dm/dh. */
    for (int m = 0; m < M; m++)
        for (int e = 0; e < K; e++) {
            hog_real sum = u[m * U + M + e];
            for (int l = 0; l < M; l++) sum += u[m * U + l] * a[l * K + e];
            through[m * K + e] = sum;
        }
    for (int c = 0; c < K; c++)
        for (int e = 0; e < K; e++) {
            hog_real sum = 0;
            for (int m = 0; m < M; m++)
                sum += a[m * K + c] * through[m * K + e] + u[m * U + M + c] * a[m * K + e];
            node->rule.block[c * K + e] += sum;
        }
}


/* ---- the node -------------------------------------------------------------------------------- */

static void hog_start(hog_node *node)
{
#ifdef HOG_START
    hog_copy(HOG_START, HOG_CHANNELS, node->h);
#else
    hog_zero(node->h, HOG_CHANNELS);
#endif
}

int hog_init(hog_node *node, const hog_real *features)
{
    memset(node, 0, sizeof *node);
    node->residual = (hog_real)INFINITY;
    node->changed = HOG_JOINED;
    if (!hog_set_features(node, features)) return 0;
    hog_pose(node);
    hog_start(node);
    return 1;
}

int hog_set_features(hog_node *node, const hog_real *features)
{
    hog_real told[HOG_FEATURES];
    if (!hog_all_finite(features, HOG_RAW_FEATURES)) return 0;
    hog_encode(features, told);
    if (!hog_all_finite(told, HOG_FEATURES)) return 0;
    hog_copy(told, HOG_FEATURES, node->features);
    node->changed |= HOG_TOLD;
    return 1;
}

int hog_join(
    hog_node *node, int slot, hog_real weight, const hog_real *features, hog_real degree,
    const hog_real *edge_features)
{
    hog_neighbour *near;
    if (slot < 0 || slot >= HOG_SLOTS) return 0;
    if (!(weight >= 0) || !isfinite(weight) || !(degree >= 1) || !isfinite(degree)) return 0;
    if (!hog_all_finite(features, HOG_FEATURES)) return 0;
#if HOG_EDGE_FEATURES
    if (!edge_features || !hog_all_finite(edge_features, HOG_JOIN_FEATURES)) return 0;
#else
    if (edge_features) return 0;
#endif
    near = &node->near[slot];
    node->changed |= HOG_TOLD;
    if (!near->taken) {
        memset(near, 0, sizeof *near); /* nothing was heard yet */
        near->taken = 1;
        node->changed |= HOG_JOINED;
    }
    near->weight = weight;
    near->degree = degree;
    hog_copy(features, HOG_FEATURES, near->features);
#if HOG_EDGE_FEATURES
    hog_copy(edge_features, HOG_JOIN_FEATURES, near->edge_features);
#endif
    return 1;
}

int hog_leave(hog_node *node, int slot)
{
    if (slot < 0 || slot >= HOG_SLOTS || !node->near[slot].taken) return 0;
    memset(&node->near[slot], 0, sizeof node->near[slot]);
    node->changed |= HOG_JOINED | HOG_TOLD;
    return 1;
}

int hog_hear(hog_node *node, int slot, const hog_real *numbers)
{
    if (slot < 0 || slot >= HOG_SLOTS || !node->near[slot].taken) return 0;
    if (!hog_all_finite(numbers, HOG_NUMBERS)) return 0;
    hog_copy(numbers, HOG_NUMBERS, node->near[slot].heard);
    return 1;
}

int hog_say(const hog_node *node, int slot, hog_real *numbers)
{
    if (slot < 0 || slot >= HOG_SLOTS || !node->near[slot].taken || node->changed) return 0;
    hog_copy(node->h, HOG_CHANNELS, numbers);
#if HOG_LETTER
    hog_copy(node->near[slot].letter, HOG_LETTER, numbers + HOG_CHANNELS);
#endif
    return 1;
}

int hog_update(hog_node *node)
{
    hog_real before[HOG_CHANNELS], moved[HOG_CHANNELS];
    int sound;
    if (node->changed) hog_pose(node);
    if (node->changed & HOG_JOINED) hog_begin(node);
    node->changed = 0;
    hog_copy(node->h, HOG_CHANNELS, before);
    hog_step(node);
    sound = hog_sound(node);
    if (!sound) { /* begin anew */
        hog_pose(node);
        hog_start(node);
        hog_copy(node->h, HOG_CHANNELS, before);
        hog_begin(node);
        hog_mend(node);
    }
    hog_measure(node, before, moved);
    node->residual = 0;
    for (int c = 0; c < HOG_CHANNELS; c++)
        if (isnan(moved[c]) || HOG_ABS(moved[c]) > node->residual) {
            node->residual = HOG_ABS(moved[c]);
            if (isnan(moved[c])) break;
        }
    return sound;
}

hog_real hog_residual(const hog_node *node)
{
    return node->residual;
}

void hog_predict(const hog_node *node, hog_real *prediction)
{
    hog_real h[HOG_CHANNELS];
    hog_norm_readout(node->h, h);
    hog_net_readout(h, prediction);
}

hog_real hog_degree(const hog_node *node)
{
    hog_real degree = 1;
    for (int s = 0; s < HOG_SLOTS; s++)
        if (node->near[s].taken) degree += node->near[s].weight;
    return degree;
}

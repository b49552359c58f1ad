/* ---- the rule: apply the map to what was last heard ------------------------------------------ */

static void hog_begin(hog_node *node)
{
    (void)node;
}

static void hog_step(hog_node *node)
{
    hog_apply(node);
}

static int hog_sound(const hog_node *node)
{
    return hog_all_finite(node->h, HOG_CHANNELS);
}

static void hog_mend(hog_node *node)
{
    (void)node;
}

static void hog_measure(const hog_node *node, const hog_real *before, hog_real *moved)
{
    for (int c = 0; c < HOG_CHANNELS; c++) moved[c] = node->h[c] - before[c];
}


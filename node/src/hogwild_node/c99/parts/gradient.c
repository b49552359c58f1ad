/* ---- the rule: one gradient step, scaled by the node's block of the Hessian ------------------ */

static void hog_begin(hog_node *node)
{
    node->rule.trust = HOG_DAMPING;
    hog_zero(node->rule.last, HOG_CHANNELS);
    hog_refresh(node);
}

/* x = block^-1 x by elimination with pivots; NaN if the block is singular. */
static void hog_solve(hog_real *block, hog_real *x)
{
    enum { K = HOG_CHANNELS };
    for (int c = 0; c < K; c++) {
        int best = c;
        for (int r = c + 1; r < K; r++)
            if (HOG_ABS(block[r * K + c]) > HOG_ABS(block[best * K + c])) best = r;
        for (int e = c; best != c && e < K; e++) {
            hog_real kept = block[c * K + e];
            block[c * K + e] = block[best * K + e];
            block[best * K + e] = kept;
        }
        if (best != c) {
            hog_real kept = x[c];
            x[c] = x[best];
            x[best] = kept;
        }
        if (block[c * K + c] == 0) {
            for (int r = 0; r < K; r++) x[r] = (hog_real)NAN;
            return;
        }
        for (int r = c + 1; r < K; r++) {
            hog_real factor = block[r * K + c] / block[c * K + c];
            for (int e = c + 1; e < K; e++) block[r * K + e] -= factor * block[c * K + e];
            x[r] -= factor * x[c];
        }
    }
    for (int c = K - 1; c >= 0; c--) {
        for (int e = c + 1; e < K; e++) x[c] -= block[c * K + e] * x[e];
        x[c] /= block[c * K + c];
    }
}

/* The gradient of the whole energy at this node, as far as packets have told. */
static void hog_gradient(const hog_node *node, hog_real *g)
{
    hog_copy(node->rule.own, HOG_CHANNELS, g);
#if HOG_LETTER
    for (int s = 0; s < HOG_SLOTS; s++)
        for (int c = 0; node->near[s].taken && c < HOG_CHANNELS; c++)
            g[c] += node->near[s].heard[HOG_CHANNELS + c];
#endif
}

static void hog_step(hog_node *node)
{
    enum { K = HOG_CHANNELS };
    hog_real g[K], block[K * K], along = 0, now = 0, before = 0, trust;
#if !HOG_LETTER
    hog_refresh(node);
#endif
    hog_gradient(node, g);
    hog_copy(node->rule.block, K * K, block);
#if HOG_LETTER
    for (int s = 0; s < HOG_SLOTS; s++) {
        int at = 2 * K;
        if (!node->near[s].taken) continue;
        for (int c = 0; c < K; c++)
            for (int e = c; e < K; e++) {
                hog_real heard = node->near[s].heard[at++];
                block[c * K + e] += heard;
                if (e != c) block[e * K + c] += heard;
            }
    }
#endif
    for (int c = 0; c < K; c++) {
        along += g[c] * node->rule.last[c];
        now += g[c] * g[c];
        before += node->rule.last[c] * node->rule.last[c];
    }
    /* A gradient that reverses and grows shows that the last step was too large. */
    trust = (along < 0 && now > before ? (hog_real)0.5 : (hog_real)1.1) * node->rule.trust;
    if (trust < (hog_real)1e-3 * HOG_DAMPING) trust = (hog_real)1e-3 * HOG_DAMPING;
    if (trust > HOG_DAMPING) trust = HOG_DAMPING;
    node->rule.trust = trust;
    hog_copy(g, K, node->rule.last);
    hog_solve(block, g);
    for (int c = 0; c < K; c++) node->h[c] -= trust * g[c];
#if HOG_LETTER
    hog_refresh(node);
#endif
}

static int hog_sound(const hog_node *node)
{
    int sound = hog_all_finite(node->h, HOG_CHANNELS);
#if HOG_LETTER
    for (int s = 0; s < HOG_SLOTS; s++)
        if (node->near[s].taken) sound &= hog_all_finite(node->near[s].letter, HOG_LETTER);
#endif
    return sound;
}

/* Letters that are not finite after a restart become zero. */
static void hog_mend(hog_node *node)
{
    (void)node;
#if HOG_LETTER
    for (int s = 0; s < HOG_SLOTS; s++)
        for (int i = 0; i < HOG_LETTER; i++)
            if (!isfinite(node->near[s].letter[i])) node->near[s].letter[i] = 0;
#endif
}

static void hog_measure(const hog_node *node, const hog_real *before, hog_real *moved)
{
    (void)before;
    hog_gradient(node, moved);
}


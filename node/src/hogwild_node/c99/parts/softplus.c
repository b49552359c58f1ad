/* The activation is the softplus, log(1 + exp(a)). */
HOG_INLINE void hog_activation(hog_real a, hog_real *value, hog_real *slope)
{
    hog_real small = HOG_EXP(-HOG_ABS(a)); /* never overflows */
    *value = (a > 0 ? a : 0) + HOG_LOG1P(small);
    *slope = (a >= 0 ? 1 : small) / (1 + small);
}

HOG_INLINE hog_real hog_curvature(hog_real a, hog_real slope)
{
    (void)a;
    return slope * (1 - slope);
}

/* Curvature of a parabola that touches the activation at a and lies above it everywhere. */
HOG_INLINE hog_real hog_majoriser(hog_real a, hog_real slope)
{
    if (HOG_SINGLE && HOG_ABS(a) < (hog_real)0.1) { /* the difference below would lose digits */
        hog_real square = a * a;
        return (hog_real)0.25 + square * (square / 480 - (hog_real)(1.0 / 48.0));
    }
    if (HOG_ABS(a) < (hog_real)1e-4) return (hog_real)0.25;
    return (slope - (hog_real)0.5) / a;
}


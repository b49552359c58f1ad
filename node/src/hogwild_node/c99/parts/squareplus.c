/* The activation is the squareplus, (a + sqrt(a^2 + 4)) / 2. */
HOG_INLINE void hog_activation(hog_real a, hog_real *value, hog_real *slope)
{
    hog_real root = HOG_SQRT(a * a + 4);
    *value = (hog_real)0.5 * (a + root);
    *slope = (hog_real)0.5 * (1 + a / root);
}

HOG_INLINE hog_real hog_curvature(hog_real a, hog_real slope)
{
    hog_real square = a * a + 4;
    (void)slope;
    return 2 / (square * HOG_SQRT(square));
}

/* Curvature of a parabola that touches the activation at a and lies above it everywhere. */
HOG_INLINE hog_real hog_majoriser(hog_real a, hog_real slope)
{
    (void)slope;
    if (HOG_ABS(a) < (hog_real)1e-4) return (hog_real)0.25;
    return (hog_real)0.5 / HOG_SQRT(a * a + 4);
}


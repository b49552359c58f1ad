/* ---- partially input-convex networks ---------------------------------------------------------
 *
 * For fixed features a network is a convex function of y:
 *     a_l = Wz_l (z_l * gz_l) + Wy_l (y * gy_l) + b_l,   z_(l+1) = g(a_l),   value = last a_l.
 * The gates gy, gz and the biases b depend on the features ("_fill"). "_forward" evaluates a
 * network, "_backward" gives J' bar and the sensitivities of the hidden units, "_second" gives the
 * Jacobian J [out, d] and the curvature of bar' value [d, d]. The tables hold the weights as they
 * are used: those that must be nonnegative have been made so. This section knows nothing of nodes
 * and agents.
 */

HOG_INLINE void hog_activate(const hog_real *a, int n, hog_real *value, hog_real *slope)
{
    for (int i = 0; i < n; i++) hog_activation(a[i], value + i, slope + i);
}

HOG_INLINE void hog_positive(const hog_real *x, int n, hog_real *out)
{
    for (int i = 0; i < n; i++) out[i] = HOG_RELU_GATES ? (x[i] > 0 ? x[i] : 0) : hog_softplus(x[i]);
}

/* out[i, c] = weight[i, c] gate[c] */
HOG_INLINE void hog_direct(
    const hog_real *weight, const hog_real *gate, int rows, int d, hog_real *out)
{
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < d; c++) out[i * d + c] = weight[i * d + c] * gate[c];
}

/* out[i, c] += sum over j of weight[i, j] gate[j] slope[j] before[j, c] */
HOG_INLINE void hog_add_chain(
    const hog_real *weight, const hog_real *gate, const hog_real *slope, const hog_real *before,
    int rows, int width, int d, hog_real *out)
{
    for (int j = 0; j < width; j++) {
        hog_real factor = gate[j] * slope[j];
        for (int i = 0; i < rows; i++) {
            hog_real share = weight[i * width + j] * factor;
            for (int c = 0; c < d; c++) out[i * d + c] += share * before[j * d + c];
        }
    }
}

/* The upper triangle of curved [d, d] += sum over i of s[i] M(a[i]) J[i]' J[i], with the curvature
 * M of a parabola that touches the activation at a[i] and lies above it. */
HOG_INLINE void hog_add_curvature(
    const hog_real *jacobian, const hog_real *s, const hog_real *a, const hog_real *slope,
    int width, int d, hog_real *curved)
{
    for (int i = 0; i < width; i++) {
        hog_real bent = s[i] * hog_majoriser(a[i], slope[i]);
        for (int c = 0; c < d; c++) {
            hog_real share = bent * jacobian[i * d + c];
            for (int e = c; e < d; e++) curved[c * d + e] += share * jacobian[i * d + e];
        }
    }
}

HOG_INLINE void hog_mirror(int d, hog_real *x)
{
    for (int c = 1; c < d; c++)
        for (int e = 0; e < c; e++) x[c * d + e] = x[e * d + c];
}


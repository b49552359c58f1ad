/* ---- arithmetic ------------------------------------------------------------------------------ */

HOG_INLINE hog_real hog_leaky(hog_real a, hog_real slope)
{
    return a > 0 ? a : slope * a;
}

HOG_INLINE hog_real hog_softplus(hog_real a)
{
    return (a > 0 ? a : 0) + HOG_LOG1P(HOG_EXP(-HOG_ABS(a)));
}

HOG_INLINE void hog_copy(const hog_real *x, int n, hog_real *out)
{
    memcpy(out, x, (size_t)n * sizeof *x);
}

HOG_INLINE void hog_zero(hog_real *x, int n)
{
    for (int i = 0; i < n; i++) x[i] = 0;
}

HOG_INLINE int hog_all_finite(const hog_real *x, int n)
{
    for (int i = 0; i < n; i++)
        if (!isfinite(x[i])) return 0;
    return 1;
}

/* out = gate * x, entry by entry */
HOG_INLINE void hog_gated(const hog_real *gate, const hog_real *x, int n, hog_real *out)
{
    for (int i = 0; i < n; i++) out[i] = gate[i] * x[i];
}

/* out += gate * x, entry by entry */
HOG_INLINE void hog_add_gated(const hog_real *gate, const hog_real *x, int n, hog_real *out)
{
    for (int i = 0; i < n; i++) out[i] += gate[i] * x[i];
}

/* out += weight x, with weight [rows, columns] */
HOG_INLINE void hog_add_product(
    const hog_real *weight, const hog_real *x, int rows, int columns, hog_real *out)
{
    for (int i = 0; i < rows; i++) {
        hog_real sum = out[i];
        for (int j = 0; j < columns; j++) sum += weight[i * columns + j] * x[j];
        out[i] = sum;
    }
}

/* out = bias + weight x, with weight [rows, columns] */
HOG_INLINE void hog_affine(
    const hog_real *weight, const hog_real *bias, const hog_real *x, int rows, int columns,
    hog_real *out)
{
    hog_copy(bias, rows, out);
    hog_add_product(weight, x, rows, columns, out);
}

/* out = weight' x, with weight [rows, columns] */
HOG_INLINE void hog_transposed(
    const hog_real *weight, const hog_real *x, int rows, int columns, hog_real *out)
{
    hog_zero(out, columns);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) out[j] += weight[i * columns + j] * x[i];
}

HOG_INLINE void hog_leak(const hog_real *x, int n, hog_real slope, hog_real *out)
{
    for (int i = 0; i < n; i++) out[i] = hog_leaky(x[i], slope);
}

/* out = (x - offset) / scale */
HOG_INLINE void hog_standardise(
    const hog_real *x, const hog_real *offset, const hog_real *scale, int n, hog_real *out)
{
    for (int i = 0; i < n; i++) out[i] = (x[i] - offset[i]) / scale[i];
}

/* out = weight (x - mean) / root of (variance + epsilon) + bias; without a mean and a variance,
 * those of the numbers themselves. x may be out. */
HOG_INLINE void hog_normalise(
    const hog_real *x, const hog_real *weight, const hog_real *bias, const hog_real *mean,
    const hog_real *variance, hog_real epsilon, int n, hog_real *out)
{
    hog_real middle = 0, spread = 0;
    for (int i = 0; i < n; i++) middle += x[i] / (hog_real)n;
    for (int i = 0; i < n; i++) spread += (x[i] - middle) * (x[i] - middle) / (hog_real)n;
    for (int i = 0; i < n; i++) {
        hog_real centre = mean ? mean[i] : middle, width = variance ? variance[i] : spread;
        out[i] = weight[i] * (x[i] - centre) / HOG_SQRT(width + epsilon) + bias[i];
    }
}


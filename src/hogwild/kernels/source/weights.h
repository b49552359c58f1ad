// Part of picnn.h: products of weights with a pack of rows. On a CPU a few rows of a matrix share what is
// read, and their sums are in registers.
#pragma once

namespace hog {

// W [rows, cols] with numbers in(j), and W' with numbers c.
#if HOG_GPU
/// out[i] += sum over j of W[i, j] in(j).
template <class T, class P, class In>
HOG_FN void add_rows(const T* W, int rows, int cols, const In& in, P* out) {
    HOG_EACH(i, rows) HOG_EACH(j, cols) out[i] += W[i * cols + j] * in(j);
}
/// out(j, sum over i of W[i, j] c[i]).
template <class T, class P, class Out>
HOG_FN void each_column(const T* W, int rows, int cols, const P* c, const Out& out) {
    HOG_EACH(j, cols) {
        P sum = P{};
        HOG_EACH(i, rows) sum += W[i * cols + j] * c[i];
        out(j, sum);
    }
}
#else
/// A number that a template knows.
template <int I>
struct Int {
    static constexpr int value = I;
};

// Whether the registers hold eight sums of 64 bytes. AVX2 has 16 registers of 32 bytes: four sums.
#if defined(__AVX512F__)
constexpr bool MANY_REGISTERS = true;
#else
constexpr bool MANY_REGISTERS = false;
#endif

/// `some(Int<R>, i)` for blocks of R rows from row i on.
template <class Do>
HOG_FN void in_blocks(int rows, const Do& some) {
    int i = 0;
    if (MANY_REGISTERS)
        for (; i + 8 <= rows; i += 8) some(Int<8>{}, i);
    for (; i + 4 <= rows; i += 4) some(Int<4>{}, i);
    if (i + 2 <= rows) some(Int<2>{}, i), i += 2;
    if (i < rows) some(Int<1>{}, i);
}

template <int R, class T, class P, class In>
HOG_FN void add_some_rows(const T* W, int cols, const In& in, P* out) {
    P sum[R], more[R];  // two sums a row where there are few rows: additions wait for each other
    for (int r = 0; r < R; ++r) sum[r] = out[r], more[r] = P{};
    int j = 0;
    if (R < 4)
        for (; j + 2 <= cols; j += 2) {
            const P x = in(j), y = in(j + 1);
            for (int r = 0; r < R; ++r) {
                sum[r] += W[r * cols + j] * x;
                more[r] += W[r * cols + j + 1] * y;
            }
        }
    for (; j < cols; ++j) {
        const P x = in(j);
        for (int r = 0; r < R; ++r) sum[r] += W[r * cols + j] * x;
    }
    for (int r = 0; r < R; ++r) out[r] = R < 4 ? sum[r] + more[r] : sum[r];
}
template <int R, class T, class P, class Out>
HOG_FN void each_column_of(const T* W, int cols, const P* c, const Out& out) {
    P held[R];
    for (int r = 0; r < R; ++r) held[r] = c[r];
    for (int j = 0; j < cols; ++j) {
        P sum = W[j] * held[0];
        for (int r = 1; r < R; ++r) sum += W[r * cols + j] * held[r];
        out(j, sum);
    }
}
/// out[i] += sum over j of W[i, j] in(j).
template <class T, class P, class In>
HOG_FN void add_rows(const T* W, int rows, int cols, const In& in, P* out) {
    in_blocks(rows, [&](auto some, int i) {
        add_some_rows<some.value>(W + i * cols, cols, in, out + i);
    });
}
/// out(j, x) for parts x of the sum over i of W[i, j] c[i]: once for every block of rows.
template <class T, class P, class Out>
HOG_FN void each_column(const T* W, int rows, int cols, const P* c, const Out& out) {
    in_blocks(rows, [&](auto some, int i) {
        each_column_of<some.value>(W + i * cols, cols, c + i, out);
    });
}
#endif

/// o = F u + c with F [rows, cols].
template <class P>
HOG_FN void affine(const double* F, const double* c, int rows, int cols, const P* u, P* o) {
    HOG_EACH(i, rows) o[i] = wide(c[i]);
    add_rows(F, rows, cols, [&](int j) { return u[j]; }, o);
}
/// ub = F' ob, and ob u' is added to fb.
template <class P, class Sum>
HOG_FN void affine_reverse(const double* F, int rows, int cols, const P* u, const P* ob, P* ub, Sum fb) {
    HOG_EACH(j, cols) ub[j] = P{};
    each_column(F, rows, cols, ob, [&](int j, const P& x) { ub[j] += x; });
    HOG_EACH(i, rows) {
        const P x = ob[i];
        HOG_EACH(j, cols) fb.add(i * cols + j, x * u[j]);
    }
}

}  // namespace hog

// What the code for single nodes needs beside picnn.h: rows of numbers side by side, gradients and
// expansions of networks with given curvatures, and the paper's sizes as constants.
#pragma once
#include "batch.h"

namespace hog {

/// Eight rows of eight numbers, transposed.
HOG_INLINE void transpose(const double* const* rows, int64_t from, V* out) {
    for (int i = 0; i < LANES; ++i) out[i] = eight(rows[i] + from);
    transpose(out);
}

/// One lane, to read.
HOG_FN double part(const V& x, int l) { return reinterpret_cast<const double*>(&x)[l]; }
HOG_FN bool all_finite(double x) { return x - x == 0.0; }
HOG_FN Mask finite(V x) { return x - x == 0.0; }
HOG_FN V pick(Mask m, double yes, V no) { return pick(m, wide(yes), no); }
/// The larger number; NaN if one is NaN.
HOG_FN V largest(V a, V b) { return pick((a > b) | (a != a), a, b); }

/// A matrix of packs, with rows of so many numbers; or its transpose.
struct Matrix {
    const V* at;
    int row, column = 1;
    const V& operator()(int i, int j) const { return at[i * row + j * column]; }
    Matrix turned() const { return {at, column, row}; }
};
/// to [n, m] = A B, or to += A B, for A [n, l] and B [l, m].
template <bool ADDED = false>
HOG_INLINE void product(int n, int l, int m, const Matrix& A, const Matrix& B, V* to) {
    HOG_EACH(i, n) HOG_EACH(j, m) {
        V sum = ADDED ? to[i * m + j] : wide(0.0);
        HOG_EACH(c, l) sum += A(i, c) * B(c, j);
        to[i * m + j] = sum;
    }
}
HOG_INLINE void add_product(int n, int l, int m, const Matrix& A, const Matrix& B, V* to) {
    product<true>(n, l, m, A, B, to);
}

/// The gradient J' p of p' f.
template <class N>
HOG_FN void gradient_of(HOG_NET net, const double* W, const V* q, const V* s, const V* p,
                        V* gradient, V* pad) {
    pull(net, W, q, s, p, [](int, V, V below) { return below; }, gradient, pad);
}

/// `expand` for given curvatures `bend` of all hidden units, with both triangles of H.
template <class N>
HOG_FN void expand_whole(HOG_NET net, const double* W, const V* q, const V* s, const V* bend,
                         const V* p, V* J, V* gradient, V* H, V* pad) {
    const int D = net.D();
    expand(net, W, q, s, p, [&](int m) { return bend[m]; }, J, gradient, H, pad);
    HOG_EACH(i, D) HOG_EACH(j, i) H[j * D + i] = H[i * D + j];
}

/// The sizes of any model, known when it runs.
struct AnyModel : Sizes {
    struct Dims {
        const int K, C, H, M, D, Un;
        explicit Dims(const Sizes& s)
            : K(s.k()), C(s.channels()), H(s.heads()), M(s.merged()), D(s.ends() * s.k()),
              Un(s.merged() + s.k()) {}
    };
    explicit AnyModel(const Sizes& s) : Sizes(s) {}
};

/// A network with two hidden layers of W units, known when this is compiled.
template <int D_, int W, int O>
struct FixedNet {
    static constexpr int L() { return 3; }
    static constexpr int D() { return D_; }
    static constexpr int act() { return SOFTPLUS; }
    static constexpr int w(int l) { return l < 2 ? W : O; }
    static constexpr int before(int l) { return l ? W : 0; }
    static constexpr int unit(int l) { return l * W; }
    static constexpr int q(int l) { return l ? q(l - 1) + D_ + w(l - 1) + before(l - 1) : 0; }
    static constexpr int p(int l) { return l ? p(l - 1) + w(l - 1) * (D_ + before(l - 1)) : 0; }
    static constexpr int hidden() { return 2 * W; }
    static constexpr int widest() { return W > O ? W : O; }
    static constexpr int out() { return O; }
    static constexpr int context() { return q(3); }
    static constexpr int weights() { return p(3); }
    static bool is(const Net& net) {
        return net.L() == 3 && net.D() == D_ && net.w(0) == W && net.w(1) == W && net.w(2) == O &&
               net.act() == SOFTPLUS;
    }
};

/// A model with messages of both ends and without heads: the paper's, for K = C = 2 and W = 4.
template <int K_, int C_, int W>
struct FixedModel {
    struct Dims {
        static constexpr int K = K_, C = C_, H = 1, M = C_, D = 2 * K_, Un = C_ + K_;
        explicit Dims(const Sizes&) {}
    };
    double beta_;
    explicit FixedModel(const Sizes& s) : beta_(s.beta()) {}
    double beta() const { return beta_; }
    static constexpr int ends() { return 2; }
    static constexpr bool concat() { return true; }
    static constexpr FixedNet<2 * K_, W, C_> message() { return {}; }
    static constexpr FixedNet<K_, W, C_> loop() { return {}; }
    static constexpr FixedNet<C_ + K_, W, 1> update() { return {}; }
    static bool is(const Sizes& s) {
        return s.ends() == 2 && s.heads() == 1 && s.k() == K_ && s.channels() == C_ &&
               message().is(s.message()) && loop().is(s.loop()) && update().is(s.update());
    }
};

}  // namespace hog

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

/// Two numbers of each lane, which lie side by side in memory.
HOG_INLINE void read_pairs(const double* const* at, V& first, V& second) {
    typedef Vector<double, 32>::type Four;
    const auto four = [&](int l) {
        return joined<Four>(Vector<double, 16>::load(at[l]), Vector<double, 16>::load(at[l + 2]));
    };
    first = joined<V>(four(0), four(4));
    second = joined<V>(four(1), four(5));
    exchange<1>(first, second);
}
HOG_INLINE void write_pairs(V first, V second, double* const* at, int lanes) {
    double x[2 * LANES] __attribute__((aligned(64)));
    zip(first, second);
    put_eight(first, x), put_eight(second, x + LANES);
    for (int l = 0; l < lanes; ++l) std::memcpy(at[l], x + 2 * l, 2 * sizeof(double));
}

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

/// `forward` for two rows of inputs y, one behind the other, with contexts q a distance apart.
template <class N, class T>
HOG_FN void forward_two(HOG_NET net, const T* W, const V* q, int q_row, const V* y, V* s, V* a, V* value,
                        V* pad) {
    for (int b = 0; b < 2; ++b)
        forward(net, W, q + b * q_row, y + b * net.D(), s + b * net.hidden(), a + b * net.hidden(),
                value + b * net.out(), pad);
}

/// The gradient J' p of p' f.
template <class N, class T>
HOG_FN void gradient_of(HOG_NET net, const T* W, const V* q, const V* s, const V* p,
                        V* gradient, V* pad) {
    pull(net, W, q, s, p, [](int, V, V below) { return below; }, gradient, pad);
}

/// `expand` for given curvatures `bend` of all hidden units, with both triangles of H.
template <class N, class T>
HOG_FN void expand_whole(HOG_NET net, const T* W, const V* q, const V* s, const V* bend,
                         const V* p, V* J, V* gradient, V* H, V* pad) {
    const int D = net.D();
    expand(net, W, q, s, p, [&](int m) { return bend[m]; }, J, gradient, H, pad);
    HOG_EACH(i, D) HOG_EACH(j, i) H[j * D + i] = H[i * D + j];
}

/// Numbers that are laid out for an edge, the contexts and weights of all heads, and for a node, the contexts of
/// self message and update and the weight of the former. Rows begin at whole vectors.
constexpr int in_vectors(int x) { return (x + LANES - 1) / LANES * LANES; }
template <class S>
constexpr int edge_row(const S& s) {
    return in_vectors(s.heads() * (s.message().context() + 1));
}
template <class S>
constexpr int node_row(const S& s) {
    return in_vectors(s.loop().context() + s.update().context() + 1);
}

/// The sizes of any model, known when it runs.
struct AnyModel : Sizes {
    static constexpr bool CONSTANT = false;
    struct Dims {
        const int K, C, H, M, D, Un, EDGE, NODE;
        explicit Dims(const Sizes& s)
            : K(s.k()), C(s.channels()), H(s.heads()), M(s.merged()), D(s.ends() * s.k()),
              Un(s.merged() + s.k()), EDGE(edge_row(s)), NODE(node_row(s)) {}
    };
    explicit AnyModel(const Sizes& s) : Sizes(s) {}
};

/// A network with two hidden layers of W units, known when this is compiled.
template <int D_, int W, int O>
struct FixedNet : StaticNet<SOFTPLUS, 0, 0, 0, 0, 0, D_, W, W, O> {
    static bool is(const Net& net) {
        return net.L() == 3 && net.D() == D_ && net.w(0) == W && net.w(1) == W && net.w(2) == O &&
               net.act() == SOFTPLUS;
    }
};

/// A model with messages of both ends and without heads: the paper's, for K = C = 2 and W = 4.
template <int K_, int C_, int W>
struct FixedModel {
    static constexpr bool CONSTANT = true;
    struct Dims {
        static constexpr int K = K_, C = C_, H = 1, M = C_, D = 2 * K_, Un = C_ + K_;
        static constexpr int EDGE = edge_row(FixedModel()), NODE = node_row(FixedModel());
        explicit Dims(const Sizes&) {}
    };
    double beta_ = 0;
    constexpr FixedModel() = default;
    explicit FixedModel(const Sizes& s) : beta_(s.beta()) {}
    double beta() const { return beta_; }
    static constexpr int ends() { return 2; }
    static constexpr int heads() { return 1; }
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

// The sizes of a model, the arrays that pose its energy on a graph, and how rows lie in memory.
#pragma once
#include "picnn.h"
#include "turned.h"

// HOG_PACKS: the packs of rows that this thread computes. HOG_ALL_PACKS: the same, but all threads of
// a warp make equally many turns, because they add up what they found. HOG_PAD begins to use the
// scratch memory from its start; HOG_PAD_FROM goes on where an outer scope has got to.
#if HOG_GPU
#define HOG_PACKS(b, n) for (int b = team.rank(); b < (n); b += team.size())
#define HOG_ALL_PACKS(b, n) for (int b = team.rank(); b - team.rank() % 32 < (n); b += team.size())
#define HOG_LARGE __device__ __noinline__
#else
#define HOG_PACKS(b, n) for (int b = team.first(n), b##_end = team.last(n); b < b##_end; ++b)
#define HOG_ALL_PACKS(b, n) HOG_PACKS(b, n)
#define HOG_LARGE inline
#endif
#if HOG_GPU
#define HOG_PAD V* pad = nullptr
#define HOG_PAD_FROM(outer) V* pad = nullptr
// The sizes are constants of the program.
#define HOG_KEEP_SIZES(sizes)
#define HOG_SIZES_OF_TASK \
    HOG_METHOD static constexpr S s() { return S{}; }
#define HOG_SIZE(name, value) \
    HOG_METHOD static constexpr int name() { return value; }
#else
#define HOG_PAD V* pad = pad_
#define HOG_PAD_FROM(outer) V* pad = outer
#define HOG_KEEP_SIZES(sizes) sizes_(sizes),
#define HOG_SIZES_OF_TASK                   \
    const S& s() const { return sizes_; }   \
    S sizes_;
#define HOG_SIZE(name, value) \
    int name() const { return value; }
#endif

namespace hog {

/// GAVE_UP: another linear solver must go on; no caller sees it.
enum Status { CONVERGED = 0, MAX_ITERATIONS = 1, STALLED = 2, NOT_FINITE = 3, GAVE_UP = 4 };

/// The sizes of a model that follow from its networks. Parameters of one replica: `heads` message
/// networks, the self message, the update; each has its weights and then its feature path (Net).
template <class S>
struct Model {
    HOG_METHOD constexpr const S& self() const { return static_cast<const S&>(*this); }
    HOG_METHOD constexpr int merged() const {
        return self().channels() * (self().concat() ? self().heads() : 1);
    }
    HOG_METHOD constexpr int parameters() const {
        return self().heads() * self().message().parameters() + self().loop().parameters() +
               self().update().parameters();
    }
    HOG_METHOD constexpr int own_rows() const {
        return self().ends() == 2 ? self().heads() * self().message().rows0() : 0;
    }
    HOG_METHOD constexpr int sent_rows() const {
        return self().sent() ? self().heads() * self().message().rows0() : 0;
    }
    /// The first row of the self message in o_0 on nodes; the update follows.
    HOG_METHOD constexpr int loop_row() const { return own_rows() + sent_rows(); }
    HOG_METHOD constexpr int node_rows() const {
        return loop_row() + self().loop().rows0() + self().update().rows0();
    }
    HOG_METHOD constexpr int edge_rows() const { return self().heads() * self().message().rows0(); }

    /// Numbers that a task keeps for a pack of edges and a pack of nodes (Task::lay).
    HOG_METHOD constexpr int edge_fields(bool matrix_free = false) const {
        const int m = merged(), k = self().k(), two = self().ends() == 2;
        const int units = self().heads() * self().message().hidden();
        return self().heads() * (edge_context() + 1) + 2 * units + m + (1 + two) * m * k +
               sent_back(matrix_free) + (matrix_free ? 2 * units : m * k + (2 + two) * k * k);
    }
    /// What an edge sends back to its ends; rows of products (hessian.h) are padded.
    HOG_METHOD constexpr int sent_back(bool matrix_free) const {
        return self().ends() * (matrix_free ? (self().k() + 7) / 8 * 8 : self().k());
    }
    HOG_METHOD constexpr int node_fields(bool matrix_free = false) const {
        const int m = merged(), k = self().k();
        const int units = self().loop().hidden() + self().update().hidden();
        return self().loop().context() + self().update().context() + 2 * units + 1 + 4 * m + m * k +
               (matrix_free ? 2 * units + m * m : (m + k) * (m + k) + m * k + k * k);
    }
    /// The context of a message, or later the cotangents of its o_0.
    HOG_METHOD constexpr int edge_context() const {
        return self().message().context() > self().message().rows0() ? self().message().context()
                                                                     : self().message().rows0();
    }
};

#if HOG_GPU
/// The sizes of a network that follow from its layers, which are constants: L(), D() and w(l) of S.
template <class S>
struct Layers {
    HOG_METHOD static constexpr int before(int l) { return l ? S::w(l - 1) : 0; }
    HOG_METHOD static constexpr int ahead(int l) { return l + 1 < S::L() ? S::w(l) : 0; }
    /// Width of o_l.
    HOG_METHOD static constexpr int rows(int l) {
        return ahead(l) + before(l) + S::D() + S::w(l);
    }
    /// The first hidden unit of a layer.
    HOG_METHOD static constexpr int unit(int l) {
        int n = 0;
        for (int m = 0; m < l; ++m) n += S::w(m);
        return n;
    }
    /// Where a layer begins in the context: gy [D], b [w], gz [w before].
    HOG_METHOD static constexpr int q(int l) {
        int n = 0;
        for (int m = 0; m < l; ++m) n += S::D() + S::w(m) + before(m);
        return n;
    }
    /// Where a layer begins in the weights: Wy [w, D], Wz [w, w before].
    HOG_METHOD static constexpr int p(int l) {
        int n = 0;
        for (int m = 0; m < l; ++m) n += S::w(m) * (S::D() + before(m));
        return n;
    }
    /// Where a layer (not the first) begins in the feature path: F [rows, w before], c [rows].
    HOG_METHOD static constexpr int f(int l) {
        int n = 0;
        for (int m = 1; m < l; ++m) n += rows(m) * (before(m) + 1);
        return n;
    }
    HOG_METHOD static constexpr int hidden() { return unit(S::L() - 1); }
    HOG_METHOD static constexpr int rows0() { return rows(0); }
    HOG_METHOD static constexpr int widest() {
        int n = 0;
        for (int m = 0; m < S::L(); ++m) n = S::w(m) > n ? S::w(m) : n;
        return n;
    }
    HOG_METHOD static constexpr int out() { return S::w(S::L() - 1); }
    HOG_METHOD static constexpr int context() { return q(S::L()); }
    HOG_METHOD static constexpr int weights() { return p(S::L()); }
    HOG_METHOD static constexpr int parameters() { return weights() + f(S::L()); }
};

/// A network whose sizes are constants: activation, relu gates, rising inputs, inputs, widths.
template <int ACT, int RELU, unsigned long long R0, unsigned long long R1, unsigned long long R2,
          unsigned long long R3, int INPUTS, int... WIDTHS>
struct StaticNet : Layers<StaticNet<ACT, RELU, R0, R1, R2, R3, INPUTS, WIDTHS...>> {
    HOG_METHOD static constexpr int L() { return sizeof...(WIDTHS); }
    HOG_METHOD static constexpr int D() { return INPUTS; }
    HOG_METHOD static constexpr int w(int l) {
        constexpr int widths[] = {WIDTHS...};
        return widths[l];
    }
    HOG_METHOD static constexpr int act() { return ACT; }
    HOG_METHOD static constexpr bool relu() { return RELU; }
    HOG_METHOD static constexpr bool rises(int j) {
        constexpr unsigned long long rising[] = {R0, R1, R2, R3};
        return (rising[j >> 6] >> (j & 63)) & 1;
    }
};
#endif

/// The connectivity of one graph; edges are sorted by receiver (plan.h).
struct GraphView {
    int n, e;
    const int *ptr, *src, *dst;       // edges into node i: ptr[i] .. ptr[i + 1]
    const int *out_ptr, *out_edge;    // edges out of node j
    const int *own, *slot;            // positions of a star's nodes in its front
};

/// Where a graph's part of the batch lies, and the arrays that pose it.
struct Place {
    long long n0, e0, N, E;           // first node and edge; nodes and edges of the batch
    const long long* edge;            // the caller's number of every sorted edge of this graph
    const double* parameters;         // of this replica, as the networks use them
    const double* nodes;              // o_0 on nodes, [node rows, N]
    const double* edges;              // o_0 on edges, [edge rows, E], or nullptr
    const double* weight;             // [H or 1, E], or nullptr: all one
    long long weight_head;            // stride of the heads, zero where they share the weight
    const double* loop_weight;        // [N], or nullptr: all one
    const unsigned char* held = nullptr;  // [N] whether a node stays where it is; nullptr: none does
};

/// Where the gradients of one replica go; same shapes as in Place, weights with all heads.
struct Cotangents {
    double *nodes, *edges, *weight, *loop_weight;
};

/// How Newton's method runs (hogwild/solvers/newton.py).
struct Options {
    double atol, rtol;
    int max_iter, max_backtracks, patience;
};

#if HOG_GPU
/// Fields of a row: one number a field, rows side by side.
struct Fields {
    double* first;
    int stride;
    HOG_METHOD double& operator[](int f) const { return first[(size_t)f * stride]; }
};
#else
typedef V* Fields;
#endif

/// Numbers of rows: `fields` numbers for each of `count` rows.
struct Rows {
    V* data;
    int fields, count;
#if HOG_GPU
    HOG_METHOD Fields pack(int b) const { return Fields{data + b, count}; }
    HOG_METHOD double& at(int i, int f) const { return data[(size_t)f * count + i]; }
#else
    Fields pack(int b) const { return data + (size_t)b * fields; }
    double& at(int i, int f) const {
        const unsigned row = (unsigned)i;  // division by a power of two is a shift
        return ((double*)data)[((size_t)(row / LANES) * fields + f) * LANES + row % LANES];
    }
#endif
};

}  // namespace hog

// The energy of one graph and one replica: value, gradient, Hessian, Newton's method, adjoint.
//
//     E(H) = sum over i of u(m_i, h_i) + beta/2 |h_i|^2,
//     m_i  = sum over edges e into i of w_e m(h_i, h_j) + w_i m_0(h_i).
//
// hogwild_node/round.py writes the same arithmetic for torch and NumPy; the tests compare both. A
// node's block of the Hessian, the coupling of an edge and the couplings between two senders of one
// receiver follow from the local quadratic models (hogwild_node/quadratic.py).
//
// One source serves both machines. On a CPU one thread computes a graph, or a few threads a large one,
// in packs of eight rows. On a GPU a block of threads computes a graph, row by row. team.sync() separates
// what rows write from what other rows read. Sums over edges are gathered by nodes: nothing depends on the
// order in which threads run.
#pragma once
#include "picnn.h"

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
#if HOG_GPU || defined(HOG_SCALAR)
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

enum Status { CONVERGED = 0, MAX_ITERATIONS = 1, STALLED = 2, NOT_FINITE = 3 };

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
               self().ends() * k + (matrix_free ? 2 * units : m * k + (2 + two) * k * k);
    }
    HOG_METHOD constexpr int node_fields(bool matrix_free = false) const {
        const int m = merged(), k = self().k();
        const int units = self().loop().hidden() + self().update().hidden();
        return self().loop().context() + self().update().context() + 2 * units + 1 + 4 * m + m * k +
               (matrix_free ? 2 * units : (m + k) * (m + k) + m * k + k * k);
    }
    /// The context of a message, or later the cotangents of its o_0.
    HOG_METHOD constexpr int edge_context() const {
        return self().message().context() > self().message().rows0() ? self().message().context()
                                                                     : self().message().rows0();
    }
};

#if HOG_GPU || defined(HOG_SCALAR)
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

#if HOG_GPU || defined(HOG_SCALAR)
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
#if HOG_GPU || defined(HOG_SCALAR)
    HOG_METHOD Fields pack(int b) const { return Fields{data + b, count}; }
    HOG_METHOD double& at(int i, int f) const { return data[(size_t)f * count + i]; }
#else
    Fields pack(int b) const { return data + (size_t)b * fields; }
    double& at(int i, int f) const {
        return ((double*)data)[((size_t)(i / LANES) * fields + f) * LANES + i % LANES];
    }
#endif
};

/// One graph and one replica. `S` are the model's sizes, `F` solves linear systems with its Hessian: by
/// a factorisation of its blocks (fronts.h on a CPU, fronts_gpu.h on a GPU), or by products with the
/// Hessian alone (krylov.h; F::matrix_free). `T` are the threads that share the work.
template <class S, class F, class T>
class Task {
  public:
    double value, noise, residual, scale;
    double *h, *g, *d, *trial;  // [n, k]

    HOG_METHOD Task(const S& sizes, const GraphView& graph, const Place& place, const F& fronts,
                    const T& threads, V* memory)
        : HOG_KEEP_SIZES(sizes) v(graph), team(threads), at_(place), fronts_(fronts) {
        lay(memory);
    }

    HOG_METHOD static int packs(int rows) { return (rows + LANES - 1) / LANES; }

    /// Vectors of memory that a graph of n nodes and e edges needs.
    HOG_METHOD static size_t vectors(const S& s, int n, int e) {
        const size_t numbers = ((size_t)n * s.k() + LANES - 1) / LANES;
        return (size_t)packs(n) * s.node_fields(F::matrix_free) +
               (size_t)packs(e) * s.edge_fields(F::matrix_free) + 5 * numbers +
               scratch(s);
    }

    /// Scratch memory that suffices for every function above: the sum of everything that any of them
    /// takes for one network, with the largest sizes of all three.
    HOG_METHOD static size_t scratch(const S& s) {
#if HOG_GPU || defined(HOG_SCALAR)
        return 0;
#else
        auto most = [](size_t a, size_t b, size_t c) {
            const size_t d = a > b ? a : b;
            return d > c ? d : c;
        };
        const auto &me = s.message(), &lo = s.loop(), &up = s.update();
        const size_t M = s.merged(), k = s.k(), U = M + k;
        const size_t widest = most(me.widest(), lo.widest(), up.widest());
        const size_t hidden = most(me.hidden(), lo.hidden(), up.hidden());
        const size_t inputs = most(s.ends() * k, k, U), outputs = M + s.channels() + 1;
        const size_t context = most(me.context(), lo.context(), up.context());
        const size_t first = me.rows0() + lo.rows0() + up.rows0();
        return (hidden + outputs) * (inputs + 8) + 2 * inputs * inputs + 12 * inputs + 16 * widest +
               8 * outputs + context + 2 * first + M * (k + M) + 16;
#endif
    }

    /// Use scratch memory of its own, of `scratch` vectors: threads of a crew share the rest.
    void use_scratch(V* from) { pad_ = from; }

    /// Everything that no iteration changes: the contexts of all networks, and the weights.
    HOG_LARGE void fill_contexts() {
        HOG_PACKS(b, packs(v.e)) {
            for (int hd = 0; hd < H(); ++hd) {
                HOG_PAD;
                HOG_LOCAL(o0, s().message().rows0());
                read_edges(b, hd, o0);
                fill(s().message(), head(hd) + s().message().weights(), o0, qm.pack(b * H() + hd), pad);
                V w = wide(0.0);
                for (int l = 0; l < LANES && b * LANES + l < v.e; ++l) {
                    double x = s().concat() ? 1.0 : 1.0 / H();
                    if (at_.weight)
                        x *= at_.weight[hd * at_.weight_head + at_.edge[b * LANES + l]];
                    lane(w, l) = x;
                }
                wt.pack(b * H() + hd)[0] = w;
            }
        }
        HOG_PACKS(b, packs(v.n)) {
            HOG_PAD;
            HOG_LOCAL(o0, s().loop().rows0() + s().update().rows0());
            read_nodes(s().loop_row(), s().loop().rows0() + s().update().rows0(), b, o0);
            fill(s().loop(), loop() + s().loop().weights(), o0, ql.pack(b), pad);
            fill(s().update(), update() + s().update().weights(), o0 + s().loop().rows0(), qu.pack(b), pad);
            V w = wide(0.0);
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
                lane(w, l) = at_.loop_weight ? at_.loop_weight[at_.n0 + b * LANES + l] : 1.0;
            lw.pack(b)[0] = w;
        }
        team.sync();
    }

    /// Read [k, N] of a replica into x [n, k]; nullptr: zero.
    HOG_METHOD void read(const double* from, double* x) const {
        HOG_PACKS(i, v.n)
        for (int c = 0; c < K(); ++c) x[i * K() + c] = from ? from[c * at_.N + at_.n0 + i] : 0.0;
        team.sync();
    }
    HOG_METHOD void write(const double* x, double* out) const {
        HOG_PACKS(i, v.n)
        for (int c = 0; c < K(); ++c) out[c * at_.N + at_.n0 + i] = x[i * K() + c];
    }

    /// The energy at x, and the rounding error of it.
    HOG_LARGE void evaluate(const double* x) {
        HOG_PACKS(b, packs(v.e)) {
            HOG_PAD;
            HOG_LOCAL(y, D());
            HOG_LOCAL(out, C());
            HOG_LOCAL(sum, M());
            read_ends(x, b, y);
            HOG_EACH(c, M()) sum[c] = wide(0.0);
            HOG_EACH(hd, H()) {
                const int at = b * H() + hd, first = s().concat() ? hd * C() : 0;
                forward(s().message(), head(hd), qm.pack(at), y, sm.pack(at), am.pack(at), out, pad);
                const V w = wt.pack(at)[0];
                HOG_EACH(c, C()) sum[first + c] += w * out[c];
            }
            const Fields to = O.pack(b);
            HOG_EACH(c, M()) to[c] = sum[c];
        }
        team.sync();
        V val = wide(0.0), mag = wide(0.0);
        HOG_PACKS(b, packs(v.n)) {
            HOG_PAD;
            HOG_LOCAL(y, U());
            HOG_LOCAL(out, M());
            read_own(x, b, y + M());
            forward(s().loop(), loop(), ql.pack(b), y + M(), sl.pack(b), al.pack(b), out, pad);
            const V w = lw.pack(b)[0];
            HOG_EACH(c, M()) y[c] = w * out[c];
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l) {
                const int i = b * LANES + l;
                for (int q = v.ptr[i]; q < v.ptr[i + 1]; ++q)
                    HOG_EACH(c, M()) lane(y[c], l) += O.at(q, c);
            }
            const Fields to = m.pack(b);
            HOG_EACH(c, M()) to[c] = y[c];
            forward(s().update(), update(), qu.pack(b), y, su.pack(b), au.pack(b), out, pad);
            V square = wide(0.0), local = out[0];
            HOG_EACH(c, K()) square += y[M() + c] * y[M() + c];
            square *= 0.5 * s().beta();
            for (int l = 0; l < LANES; ++l)
                if (b * LANES + l >= v.n) lane(local, l) = lane(square, l) = 0.0;
            val += local + square;
            mag += absolute(local) + square;
        }
        value = sum_lanes(val);
        noise = sum_lanes(mag);
        team.sum(value, noise);
        noise *= 64 * 2.220446049250313e-16;
    }

    /// Gradient and local quadratic models at the point of the last `evaluate`. With reach > 0 the
    /// curvatures bound the growth of the activations that far (`growth` in vectors.h).
    HOG_LARGE void differentiate(const double* x, double reach) {
        if constexpr (F::matrix_free) {
            pull_back(x, reach);
            gather_gradient();
            return;
        }
        HOG_PACKS(b, packs(v.n)) {
            HOG_PAD;
            HOG_LOCAL(p, M());
            HOG_LOCAL(own, K());
            HOG_LOCAL(size, K());
            V* const rest = pad;
            (void)rest;
            {
                HOG_PAD_FROM(rest);
                HOG_LOCAL(J, U());
                HOG_LOCAL(gr, U());
                HOG_LOCAL(Hs, U() * U());
                p[0] = wide(1.0);
                jet(s().update(), update(), qu.pack(b), su.pack(b), au.pack(b), p, reach, J, gr, Hs, pad);
                const Fields u = Um.pack(b), to = mb.pack(b);
                HOG_EACH(i, U()) {
                    HOG_EACH(j, U()) u[i * U() + j] = Hs[i >= j ? i * U() + j : j * U() + i];
                }
                const V w = lw.pack(b)[0];
                HOG_EACH(c, M()) {
                    to[c] = gr[c];
                    p[c] = w * gr[c];
                }
                HOG_EACH(c, K()) {
                    own[c] = gr[M() + c];
                    size[c] = absolute(own[c]);
                }
            }
            {
                HOG_PAD_FROM(rest);
                HOG_LOCAL(J, M() * K());
                HOG_LOCAL(gr, K());
                HOG_LOCAL(Hs, K() * K());
                jet(s().loop(), loop(), ql.pack(b), sl.pack(b), al.pack(b), p, reach, J, gr, Hs, pad);
                const Fields a = A.pack(b), block = B.pack(b);
                const V w = lw.pack(b)[0];
                HOG_EACH(i, M() * K()) a[i] = w * J[i];
                HOG_EACH(i, K()) {
                    HOG_EACH(j, K()) block[i * K() + j] = Hs[i >= j ? i * K() + j : j * K() + i];
                }
                HOG_EACH(c, K()) {
                    own[c] += gr[c];
                    size[c] += absolute(gr[c]);
                }
            }
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
                HOG_EACH(c, K()) {
                    const int at = (b * LANES + l) * K() + c;
                    const double pull = s().beta() * x[at];
                    g[at] = pull + get(own[c], l);
                    sc[at] = fabs(pull) + get(size[c], l);
                }
        }
        team.sync();
        HOG_PACKS(b, packs(v.e)) {
            HOG_PAD;
            HOG_LOCAL(p, C());
            HOG_LOCAL(J, C() * D());
            HOG_LOCAL(gr, D());
            HOG_LOCAL(Hs, D() * D());
            const Fields ji = Ji.pack(b), jj = Jj.pack(b), hii = Hii.pack(b), hjj = Hjj.pack(b),
                         xx = X.pack(b), gb = G.pack(b);
            for (int hd = 0; hd < H(); ++hd) {
                const int at = b * H() + hd, first = s().concat() ? hd * C() : 0;
                const bool fresh = hd == 0;  // later heads are added
                const V w = wt.pack(at)[0];
                for (int l = 0; l < LANES; ++l) {
                    const int i = v.dst[b * LANES + l < v.e ? b * LANES + l : v.e - 1];
                    HOG_EACH(c, C()) lane(p[c], l) = mb.at(i, first + c);
                }
                HOG_EACH(c, C()) p[c] *= w;
                jet(s().message(), head(hd), qm.pack(at), sm.pack(at), am.pack(at), p, reach, J, gr, Hs,
                    pad);
                // The inputs are ordered (channel, end).
                const int two = s().ends() - 1;
                const bool begin = fresh || s().concat();
                HOG_EACH(c, C()) HOG_EACH(a, K()) {
                    const int to = (first + c) * K() + a, from = c * D() + s().ends() * a;
                    jj[to] = w * J[from + two] + (begin ? wide(0.0) : jj[to]);
                    if (two) ji[to] = w * J[from] + (begin ? wide(0.0) : ji[to]);
                }
                HOG_EACH(a, K()) HOG_EACH(c, K()) {
                    const int to = a * K() + c, i = s().ends() * a, j = s().ends() * c;
                    hjj[to] = lower(Hs, i + two, j + two) + (fresh ? wide(0.0) : hjj[to]);
                    if (!two) continue;
                    hii[to] = lower(Hs, i, j) + (fresh ? wide(0.0) : hii[to]);
                    xx[to] = lower(Hs, i, j + 1) + (fresh ? wide(0.0) : xx[to]);
                }
                if (!two && fresh) HOG_EACH(a, K() * K()) xx[a] = wide(0.0);
                HOG_EACH(i, D()) gb[i] = gr[i] + (fresh ? wide(0.0) : gb[i]);
            }
        }
        team.sync();
        HOG_PACKS(i, v.n) {
            if (s().ends() == 2) {
                const int from = v.ptr[i], to = v.ptr[i + 1];
                HOG_EACH(c, M() * K()) A.at(i, c) += total(Ji, from, to, c);
                HOG_EACH(c, K() * K()) B.at(i, c) += total(Hii, from, to, c);
            }
        }
        gather_gradient();
    }

    /// Gradient and curvatures of the hidden units, without blocks of the Hessian.
    HOG_METHOD void pull_back(const double* x, double reach) {
        HOG_PACKS(b, packs(v.n)) {
            HOG_PAD;
            HOG_LOCAL(p, M());
            HOG_LOCAL(gu, U());
            HOG_LOCAL(gl, K());
            p[0] = wide(1.0);
            pullback(s().update(), update(), qu.pack(b), su.pack(b), au.pack(b), p, reach, bu.pack(b),
                     gu, pad);
            const Fields to = mb.pack(b);
            const V w = lw.pack(b)[0];
            HOG_EACH(c, M()) {
                to[c] = gu[c];
                p[c] = w * gu[c];
            }
            pullback(s().loop(), loop(), ql.pack(b), sl.pack(b), al.pack(b), p, reach, bl.pack(b), gl,
                     pad);
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
                HOG_EACH(c, K()) {
                    const int at = (b * LANES + l) * K() + c;
                    const double pull = s().beta() * x[at], own = get(gu[M() + c], l),
                                 self = get(gl[c], l);
                    g[at] = pull + own + self;
                    sc[at] = fabs(pull) + fabs(own) + fabs(self);
                }
        }
        team.sync();
        HOG_PACKS(b, packs(v.e)) {
            HOG_PAD;
            HOG_LOCAL(p, C());
            HOG_LOCAL(gr, D());
            const Fields gb = G.pack(b);
            for (int hd = 0; hd < H(); ++hd) {
                const int at = b * H() + hd, first = s().concat() ? hd * C() : 0;
                const V w = wt.pack(at)[0];
                for (int l = 0; l < LANES; ++l) {
                    const int i = v.dst[b * LANES + l < v.e ? b * LANES + l : v.e - 1];
                    HOG_EACH(c, C()) lane(p[c], l) = mb.at(i, first + c);
                }
                HOG_EACH(c, C()) p[c] *= w;
                pullback(s().message(), head(hd), qm.pack(at), sm.pack(at), am.pack(at), p, reach,
                         bm.pack(at), gr, pad);
                HOG_EACH(i, D()) gb[i] = gr[i] + (hd ? gb[i] : wide(0.0));
            }
        }
        team.sync();
    }

    /// Tangents md of the messages and mt = (U (md, t))_m along t [n, k]; `send` gets (U (md, t))_h.
    HOG_METHOD void tangents(const double* x, double* send) {
        HOG_PACKS(b, packs(v.e)) {
            HOG_PAD;
            HOG_LOCAL(t, D());
            HOG_LOCAL(out, C());
            HOG_LOCAL(sum, M());
            read_ends(x, b, t);
            HOG_EACH(c, M()) sum[c] = wide(0.0);
            for (int hd = 0; hd < H(); ++hd) {
                const int at = b * H() + hd, first = s().concat() ? hd * C() : 0;
                tangent(s().message(), head(hd), qm.pack(at), sm.pack(at), t, tm.pack(at), out, pad);
                const V w = wt.pack(at)[0];
                HOG_EACH(c, C()) sum[first + c] += w * out[c];
            }
            const Fields to = O.pack(b);
            HOG_EACH(c, M()) to[c] = sum[c];
        }
        team.sync();
        HOG_PACKS(b, packs(v.n)) {
            HOG_PAD;
            HOG_LOCAL(t, U());
            HOG_LOCAL(out, M());
            HOG_LOCAL(back, U());
            read_own(x, b, t + M());
            tangent(s().loop(), loop(), ql.pack(b), sl.pack(b), t + M(), tl.pack(b), out, pad);
            const V w = lw.pack(b)[0];
            HOG_EACH(c, M()) t[c] = w * out[c];
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l) {
                const int i = b * LANES + l;
                HOG_EACH(c, M()) lane(t[c], l) += total(O, v.ptr[i], v.ptr[i + 1], c);
            }
            tangent(s().update(), update(), qu.pack(b), su.pack(b), t, tu.pack(b), out, pad);
            out[0] = wide(0.0);
            curve(s().update(), update(), qu.pack(b), su.pack(b), bu.pack(b), tu.pack(b), out, back,
                  pad);
            const Fields moved = md.pack(b), bent = mt.pack(b);
            HOG_EACH(c, M()) {
                moved[c] = t[c];
                bent[c] = back[c];
            }
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
                HOG_EACH(c, K()) send[(b * LANES + l) * K() + c] = get(back[M() + c], l);
        }
        team.sync();
    }

    /// out = H x at the point of the last `differentiate`.
    HOG_METHOD void product(const double* x, double* out) {
        tangents(x, out);
        HOG_PACKS(b, packs(v.n)) {
            HOG_PAD;
            HOG_LOCAL(r, M());
            HOG_LOCAL(back, K());
            const Fields bent = mt.pack(b);
            const V w = lw.pack(b)[0];
            HOG_EACH(c, M()) r[c] = w * bent[c];
            curve(s().loop(), loop(), ql.pack(b), sl.pack(b), bl.pack(b), tl.pack(b), r, back, pad);
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
                HOG_EACH(c, K()) {
                    const int at = (b * LANES + l) * K() + c;
                    out[at] += s().beta() * x[at] + get(back[c], l);
                }
        }
        HOG_PACKS(b, packs(v.e)) {
            HOG_PAD;
            HOG_LOCAL(r, C());
            HOG_LOCAL(back, D());
            const Fields gb = G.pack(b);
            for (int hd = 0; hd < H(); ++hd) {
                const int at = b * H() + hd, first = s().concat() ? hd * C() : 0;
                const V w = wt.pack(at)[0];
                for (int l = 0; l < LANES; ++l) {
                    const int i = v.dst[b * LANES + l < v.e ? b * LANES + l : v.e - 1];
                    HOG_EACH(c, C()) lane(r[c], l) = mt.at(i, first + c);
                }
                HOG_EACH(c, C()) r[c] *= w;
                curve(s().message(), head(hd), qm.pack(at), sm.pack(at), bm.pack(at), tm.pack(at), r,
                      back, pad);
                HOG_EACH(i, D()) gb[i] = back[i] + (hd ? gb[i] : wide(0.0));
            }
        }
        team.sync();
        HOG_PACKS(i, v.n)
        HOG_EACH(c, K()) {
            double sum = out[i * K() + c];
            if (s().ends() == 2) sum += total(G, v.ptr[i], v.ptr[i + 1], 2 * c);
            for (int o = v.out_ptr[i]; o < v.out_ptr[i + 1]; ++o)
                sum += G.at(v.out_edge[o], s().ends() * c + s().ends() - 1);
            out[i * K() + c] = sum;
        }
        team.sync();
    }

    /// The diagonal of the Hessian, [n, k]; terms of two parallel edges are left out.
    HOG_METHOD void diagonal(double* out) {
        HOG_PACKS(b, packs(v.n)) {  // A = dm/dh of the self message, and its curvature
            HOG_PAD;
            HOG_LOCAL(rows, s().loop().hidden() * K());
            HOG_LOCAL(J, M() * K());
            HOG_LOCAL(diag, K());
            HOG_EACH(c, K()) diag[c] = wide(s().beta());
            jacobian(s().loop(), loop(), ql.pack(b), sl.pack(b), bl.pack(b), rows, J, diag, pad);
            const V w = lw.pack(b)[0];
            const Fields a = A.pack(b);
            HOG_EACH(i, M() * K()) a[i] = w * J[i];
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
                HOG_EACH(c, K()) out[(b * LANES + l) * K() + c] = get(diag[c], l);
        }
        HOG_PACKS(b, packs(v.e)) {
            HOG_PAD;
            HOG_LOCAL(rows, s().message().hidden() * D());
            HOG_LOCAL(J, C() * D());
            HOG_LOCAL(diag, D());
            const Fields gb = G.pack(b), jj = Jj.pack(b), ji = Ji.pack(b);
            HOG_EACH(i, D()) diag[i] = wide(0.0);
            for (int hd = 0; hd < H(); ++hd) {
                const int at = b * H() + hd, first = s().concat() ? hd * C() : 0, two = s().ends() - 1;
                jacobian(s().message(), head(hd), qm.pack(at), sm.pack(at), bm.pack(at), rows, J, diag,
                         pad);
                const V w = wt.pack(at)[0];
                const bool begin = hd == 0 || s().concat();
                HOG_EACH(c, C()) HOG_EACH(a, K()) {
                    const int to = (first + c) * K() + a, from = c * D() + s().ends() * a;
                    jj[to] = w * J[from + two] + (begin ? wide(0.0) : jj[to]);
                    if (two) ji[to] = w * J[from] + (begin ? wide(0.0) : ji[to]);
                }
            }
            HOG_EACH(i, D()) gb[i] = diag[i];
        }
        team.sync();
        // The update's curvature along A and Jj: sum over its units of bent (J_h + J_m A)^2.
        HOG_PACKS(b, packs(v.n)) {
            HOG_PAD;
            HOG_LOCAL(rows, s().update().hidden() * U());
            HOG_LOCAL(J, U());
            HOG_LOCAL(diag, U());
            HOG_LOCAL(own, K());
            HOG_EACH(i, U()) diag[i] = wide(0.0);
            jacobian(s().update(), update(), qu.pack(b), su.pack(b), bu.pack(b), rows, J, diag, pad);
            const Fields bent = bu.pack(b), a = A.pack(b);
            if (s().ends() == 2)
                for (int l = 0; l < LANES && b * LANES + l < v.n; ++l) {
                    const int i = b * LANES + l;
                    HOG_EACH(c, M() * K()) A.at(i, c) += total(Ji, v.ptr[i], v.ptr[i + 1], c);
                }
            HOG_EACH(c, K()) own[c] = wide(0.0);
            for (int m = 0; m < s().update().hidden(); ++m) {
                const V* row = rows + m * U();
                HOG_EACH(c, K()) {
                    V x = row[M() + c];
                    HOG_EACH(q, M()) x += row[q] * a[q * K() + c];
                    own[c] += bent[m] * x * x;
                }
            }
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l) {
                const int i = b * LANES + l;
                HOG_EACH(c, K()) out[i * K() + c] += get(own[c], l);
                for (int q = v.ptr[i]; q < v.ptr[i + 1]; ++q)
                    HOG_EACH(c, K()) {
                        double sum = 0;
                        for (int m = 0; m < s().update().hidden(); ++m) {
                            double x = 0;
                            HOG_EACH(r, M()) x += get(rows[m * U() + r], l) * Jj.at(q, r * K() + c);
                            sum += get(bent[m], l) * x * x;
                        }
                        G.at(q, s().ends() * c + s().ends() - 1) += sum;
                    }
            }
        }
        team.sync();
        HOG_PACKS(i, v.n)
        HOG_EACH(c, K()) {
            double sum = out[i * K() + c];
            if (s().ends() == 2) sum += total(G, v.ptr[i], v.ptr[i + 1], 2 * c);
            for (int o = v.out_ptr[i]; o < v.out_ptr[i + 1]; ++o)
                sum += G.at(v.out_edge[o], s().ends() * c + s().ends() - 1);
            out[i * K() + c] = sum;
        }
        team.sync();
    }

    /// Add what the edges send to their ends, and measure the gradient.
    HOG_METHOD void gather_gradient() {
        residual = scale = 0;
        HOG_PACKS(i, v.n) {
            const int from = v.ptr[i], to = v.ptr[i + 1];
            HOG_EACH(c, K()) {
                double sum = g[i * K() + c], size = sc[i * K() + c];
                if (s().ends() == 2)
                    for (int q = from; q < to; ++q) {
                        sum += G.at(q, 2 * c);
                        size += fabs(G.at(q, 2 * c));
                    }
                for (int o = v.out_ptr[i]; o < v.out_ptr[i + 1]; ++o) {
                    const double x = G.at(v.out_edge[o], s().ends() * c + s().ends() - 1);
                    sum += x;
                    size += fabs(x);
                }
                g[i * K() + c] = sum;
                if (!(fabs(sum) <= residual)) residual = fabs(sum);  // NaN stays
                if (size > scale) scale = size;
            }
        }
        team.max(residual, scale);
    }

    /// The blocks of the Hessian, from the local quadratic models: half = Umm A + Umh,
    /// B += Uhh + A' half + Uhm A + beta, UJ = Umm Jj, X += half' Jj, Hjj += Jj' UJ.
    HOG_LARGE void assemble() {
        HOG_PACKS(b, packs(v.n)) {
            const Fields u = Um.pack(b), a = A.pack(b), hf = half.pack(b), block = B.pack(b);
            HOG_EACH(c, M()) HOG_EACH(x, K()) {
                V sum = u[c * U() + M() + x];
                HOG_EACH(q, M()) sum += u[c * U() + q] * a[q * K() + x];
                hf[c * K() + x] = sum;
            }
            HOG_EACH(x, K()) HOG_EACH(y, K()) {
                V sum = block[x * K() + y] + u[(M() + x) * U() + M() + y];
                HOG_EACH(c, M())
                sum += a[c * K() + x] * hf[c * K() + y] + u[c * U() + M() + x] * a[c * K() + y];
                block[x * K() + y] = x == y ? sum + s().beta() : sum;
            }
        }
        team.sync();
        HOG_PACKS(b, packs(v.e)) {
            HOG_PAD;
            HOG_LOCAL(hf, M() * K());
            HOG_LOCAL(uu, M() * M());
            for (int l = 0; l < LANES; ++l) {
                const int i = v.dst[b * LANES + l < v.e ? b * LANES + l : v.e - 1];
                HOG_EACH(c, M() * K()) lane(hf[c], l) = half.at(i, c);
                HOG_EACH(c, M()) HOG_EACH(q, M()) lane(uu[c * M() + q], l) = Um.at(i, c * U() + q);
            }
            const Fields jj = Jj.pack(b), uj = UJ.pack(b), xx = X.pack(b), cc = Hjj.pack(b);
            HOG_EACH(c, M()) HOG_EACH(x, K()) {
                V sum = wide(0.0);
                HOG_EACH(q, M()) sum += uu[c * M() + q] * jj[q * K() + x];
                uj[c * K() + x] = sum;
            }
            HOG_EACH(x, K()) HOG_EACH(y, K()) {
                V sum = xx[x * K() + y], own = cc[x * K() + y];
                HOG_EACH(c, M()) {
                    sum += hf[c * K() + x] * jj[c * K() + y];
                    own += jj[c * K() + x] * uj[c * K() + y];
                }
                xx[x * K() + y] = sum;
                cc[x * K() + y] = own;
            }
        }
        team.sync();
    }

    /// x = sign H^-1 from, at the point of the last `differentiate`; false where that failed.
    HOG_METHOD bool solve_linear(const double* from, double sign, double* x) {
        if constexpr (!F::matrix_free) assemble();
        return fronts_.solve(*this, from, sign, x);
    }

    /// Newton's method from h; the answer replaces h. The same rules as hogwild/solvers: Armijo's
    /// condition, the slope where rounding hides the decrease, secant curvature after `patience`.
    HOG_METHOD int newton(const Options& o, long long& iterations) {
        double t = 1, reach = 1, here = 0, rounding = 0, slope = 0;
        bool late = false;
        int tried = 0;
        for (iterations = -1;;) {
            const double* x = iterations < 0 ? h : trial;
            evaluate(x);
            bool accepted = iterations < 0 || value <= here + 1e-4 * t * slope;
            const bool close = !accepted && value <= here + rounding;
            if (accepted || close) differentiate(x, 0.0);
            if (close) accepted = !(dot(g, d) > 0.8 * fabs(slope));
            if (accepted) {
                if (iterations >= 0) {
                    double* other = h;
                    h = trial;
                    trial = other;
                    if (late) reach = clamped(t == 1.0 ? 0.25 * reach : 16.0 * reach);
                }
                ++iterations;
                here = value;
                rounding = noise;
                tried = 0;
                if (residual <= o.atol + o.rtol * scale) return CONVERGED;
                if (!(residual < 1.7976931348623157e308)) return NOT_FINITE;
                if (iterations == o.max_iter) return MAX_ITERATIONS;
                late = iterations >= o.patience;
                if (late) differentiate(h, reach);
                const bool sound = solve_linear(g, -1.0, d);
                slope = sound ? dot(g, d) : 1.0;
                if (!(slope < 0)) {  // rounding broke the linear solve
                    HOG_PACKS(i, v.n)
                    HOG_EACH(c, K()) {
                        double own = 1.0;
                        if constexpr (!F::matrix_free) own = B.at(i, c * K() + c);
                        d[i * K() + c] = -g[i * K() + c] / (own > 0 ? own : 1.0);
                    }
                    team.sync();
                    slope = dot(g, d);
                }
                t = late || 4 * t > 1.0 ? 1.0 : 4 * t;
            } else if (++tried == o.max_backtracks) {
                ++iterations;
                evaluate(h);
                differentiate(h, 0.0);
                return residual <= o.atol + o.rtol * scale ? CONVERGED : STALLED;
            } else {
                double share = -0.5 * slope * t / (value - here - slope * t);
                if (!(share == share)) share = 0.1;
                t *= share < 0.1 ? 0.1 : share > 0.5 ? 0.5 : share;
            }
            HOG_PACKS(i, v.n)
            for (int c = 0; c < K(); ++c) trial[i * K() + c] = h[i * K() + c] + t * d[i * K() + c];
            team.sync();
        }
    }

    /// The gradient of a loss in all that the problem is made of, from lambda = H^-1 dL/dh in d. The
    /// state must be that of `solve_linear` at the solution h. `sums` gets the gradients of the
    /// parameters as the networks use them.
    template <class Sum>
    HOG_METHOD void reverse(const Cotangents& out, Sum sums) {
        const double* lambda = d;
        if constexpr (F::matrix_free) {
            tangents(lambda, trial);
            HOG_PACKS(i, v.n)
            HOG_EACH(c, M()) {
                md.at(i, c) = -md.at(i, c);
                mt.at(i, c) = -mt.at(i, c);
            }
        } else {
            HOG_PACKS(i, v.n)
            HOG_EACH(c, M()) {
                double z = 0;
                HOG_EACH(a, K()) z -= A.at(i, c * K() + a) * lambda[i * K() + a];
                for (int q = v.ptr[i]; q < v.ptr[i + 1]; ++q)
                    HOG_EACH(a, K()) z -= Jj.at(q, c * K() + a) * lambda[v.src[q] * K() + a];
                md.at(i, c) = z;
            }
            team.sync();
            HOG_PACKS(i, v.n)
            HOG_EACH(c, M()) {
                double z = 0;
                HOG_EACH(q, M()) z += Um.at(i, c * U() + q) * md.at(i, q);
                HOG_EACH(a, K()) z -= Um.at(i, c * U() + M() + a) * lambda[i * K() + a];
                mt.at(i, c) = z;
            }
        }
        team.sync();
        const Sum loop_sums = sums.from(H() * s().message().parameters());
        const Sum update_sums = loop_sums.from(s().loop().parameters());
        HOG_ALL_PACKS(b, packs(v.n)) {
            HOG_PAD;
            HOG_LOCAL(y, U());
            HOG_LOCAL(t, U());
            HOG_LOCAL(p, M());
            HOG_LOCAL(r, M());
            HOG_LOCAL(val, M());
            HOG_LOCAL(mov, M());
            HOG_LOCAL(o0, s().loop().rows0() + s().update().rows0());
            V on = wide(0.0);
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l) lane(on, l) = 1.0;
            const int here = team.inside(b, packs(v.n));  // threads behind the last row repeat it
            const Fields fm = m.pack(here), fd = md.pack(here), fb = mb.pack(here), ft = mt.pack(here);
            HOG_EACH(c, M()) {
                y[c] = fm[c];
                t[c] = on * fd[c];
            }
            read_own(h, here, y + M());
            read_own(lambda, here, t + M());
            HOG_EACH(a, K()) t[M() + a] = -on * t[M() + a];
            read_nodes(s().loop_row(), s().loop().rows0() + s().update().rows0(), here, o0);
            p[0] = on;
            r[0] = wide(0.0);
            V* const rest = pad;
            (void)rest;
            {
                HOG_PAD_FROM(rest);
                HOG_LOCAL(qb, s().update().context());
                HOG_LOCAL(o0b, s().update().rows0());
                cotangents(s().update(), update(), qu.pack(here), su.pack(here), au.pack(here), y, t, p,
                           r, val, mov, qb, update_sums, pad);
                fill_reverse(s().update(), update() + s().update().weights(), o0 + s().loop().rows0(), qb,
                             o0b, update_sums.from(s().update().weights()), pad);
                write_nodes(out.nodes, s().loop_row() + s().loop().rows0(), s().update().rows0(), b, o0b);
            }
            const V w = on * lw.pack(here)[0];
            HOG_EACH(c, M()) {
                p[c] = w * fb[c];
                r[c] = w * ft[c];
            }
            {
                HOG_PAD_FROM(rest);
                HOG_LOCAL(qb, s().loop().context());
                HOG_LOCAL(o0b, s().loop().rows0());
                cotangents(s().loop(), loop(), ql.pack(here), sl.pack(here), al.pack(here), y + M(),
                           t + M(), p, r, val, mov, qb, loop_sums, pad);
                fill_reverse(s().loop(), loop() + s().loop().weights(), o0, qb, o0b,
                             loop_sums.from(s().loop().weights()), pad);
                write_nodes(out.nodes, s().loop_row(), s().loop().rows0(), b, o0b);
            }
            if (out.loop_weight) {
                V felt = wide(0.0);
                HOG_EACH(c, M()) felt += fb[c] * mov[c] + ft[c] * val[c];
                for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
                    out.loop_weight[at_.n0 + b * LANES + l] = get(felt, l);
            }
        }
        HOG_ALL_PACKS(b, packs(v.e)) {
            const int here = team.inside(b, packs(v.e));
            for (int hd = 0; hd < H(); ++hd) {
                HOG_PAD;
                HOG_LOCAL(y, D());
                HOG_LOCAL(t, D());
                HOG_LOCAL(p, C());
                HOG_LOCAL(r, C());
                HOG_LOCAL(val, C());
                HOG_LOCAL(mov, C());
                HOG_LOCAL(pw, C());
                HOG_LOCAL(rw, C());
                HOG_LOCAL(qb, s().message().context());
                HOG_LOCAL(o0, s().message().rows0());
                HOG_LOCAL(o0b, s().message().rows0());
                const int at = here * H() + hd, first = s().concat() ? hd * C() : 0;
                read_ends(h, here, y);
                read_ends(lambda, here, t);
                HOG_EACH(i, D()) t[i] = -t[i];
                for (int l = 0; l < LANES; ++l) {
                    const int i = v.dst[here * LANES + l < v.e ? here * LANES + l : v.e - 1];
                    HOG_EACH(c, C()) {
                        lane(p[c], l) = mb.at(i, first + c);
                        lane(r[c], l) = mt.at(i, first + c);
                    }
                }
                V w = wt.pack(at)[0];
                if (here != b) w = wide(0.0);
                HOG_EACH(c, C()) {
                    pw[c] = w * p[c];
                    rw[c] = w * r[c];
                }
                const Sum mine = sums.from(hd * s().message().parameters());
                cotangents(s().message(), head(hd), qm.pack(at), sm.pack(at), am.pack(at), y, t, pw, rw,
                           val, mov, qb, mine, pad);
                if (out.weight) {
                    V felt = wide(0.0);
                    HOG_EACH(c, C()) felt += p[c] * mov[c] + r[c] * val[c];
                    felt *= s().concat() ? 1.0 : 1.0 / H();
                    for (int l = 0; l < LANES && b * LANES + l < v.e; ++l)
                        out.weight[hd * at_.E + at_.edge[b * LANES + l]] = get(felt, l);
                }
                read_edges(here, hd, o0);
                fill_reverse(s().message(), head(hd) + s().message().weights(), o0, qb, o0b,
                             mine.from(s().message().weights()), pad);
                // Nodes gather what their edges send back; the contexts are not needed any more.
                if (here != b) continue;
                const Fields to = qm.pack(at);
                HOG_EACH(x, s().message().rows0()) to[x] = o0b[x];
                if (out.edges)
                    for (int l = 0; l < LANES && b * LANES + l < v.e; ++l)
                        HOG_EACH(x, s().message().rows0())
                        out.edges[(hd * s().message().rows0() + x) * at_.E + at_.edge[b * LANES + l]] =
                            get(o0b[x], l);
            }
        }
        team.sync();
        HOG_PACKS(i, v.n)
        for (int hd = 0; hd < H(); ++hd)
            for (int x = 0; x < s().message().rows0(); ++x) {
                const int row = hd * s().message().rows0() + x;
                double own = 0, sent = 0;
                for (int q = v.ptr[i]; q < v.ptr[i + 1]; ++q) own += back(q, hd, x);
                for (int o = v.out_ptr[i]; o < v.out_ptr[i + 1]; ++o)
                    sent += back(v.out_edge[o], hd, x);
                if (s().ends() == 2) out.nodes[row * at_.N + at_.n0 + i] = own;
                if (s().sent()) out.nodes[(s().own_rows() + row) * at_.N + at_.n0 + i] = sent;
            }
    }

    HOG_SIZES_OF_TASK
    // What fronts read of the Hessian: the star of a node.
    GraphView v;
    Rows B, X, Hjj, Jj, UJ;
    T team;

  private:
    Place at_;
    F fronts_;
    Rows qm, ql, qu, sm, am, sl, al, su, au, wt, lw, O, m, mb, Um, A, half, Ji, Hii, G, md, mt;
    Rows bm, tm, bl, tl, bu, tu;  // of hidden units: curvatures and tangents
    double* sc;
    V* pad_;

    HOG_SIZE(K, s().k())
    HOG_SIZE(C, s().channels())
    HOG_SIZE(H, s().heads())
    HOG_SIZE(M, s().merged())
    HOG_SIZE(D, s().ends() * s().k())
    HOG_SIZE(U, s().merged() + s().k())

    HOG_METHOD const double* head(int hd) const { return at_.parameters + hd * s().message().parameters(); }
    HOG_METHOD const double* loop() const { return at_.parameters + H() * s().message().parameters(); }
    HOG_METHOD const double* update() const { return loop() + s().loop().parameters(); }

    /// Hand out memory from `from` on: what `vectors` counts.
    HOG_METHOD void lay(V* from) {
        size_t used = 0;
        const int N = packs(v.n), E = packs(v.e);
        auto rows = [&](Rows& to, int fields, int count) {
            to = Rows{from + used, fields, count};
            used += (size_t)fields * count;
        };
        rows(qm, s().edge_context(), E * H());
        rows(ql, s().loop().context(), N);
        rows(qu, s().update().context(), N);
        rows(sm, s().message().hidden(), E * H());
        rows(am, s().message().hidden(), E * H());
        rows(sl, s().loop().hidden(), N);
        rows(al, s().loop().hidden(), N);
        rows(su, s().update().hidden(), N);
        rows(au, s().update().hidden(), N);
        rows(wt, 1, E * H());
        rows(lw, 1, N);
        rows(O, M(), E);
        rows(m, M(), N);
        rows(mb, M(), N);
        rows(md, M(), N);
        rows(mt, M(), N);
        rows(A, M() * K(), N);
        rows(Ji, M() * K(), s().ends() == 2 ? E : 0);
        rows(Jj, M() * K(), E);
        rows(G, D(), E);
        if constexpr (F::matrix_free) {
            rows(bm, s().message().hidden(), E * H());
            rows(tm, s().message().hidden(), E * H());
            rows(bl, s().loop().hidden(), N);
            rows(tl, s().loop().hidden(), N);
            rows(bu, s().update().hidden(), N);
            rows(tu, s().update().hidden(), N);
        } else {
            rows(Um, U() * U(), N);
            rows(half, M() * K(), N);
            rows(B, K() * K(), N);
            rows(UJ, M() * K(), E);
            rows(Hii, K() * K(), s().ends() == 2 ? E : 0);
            rows(Hjj, K() * K(), E);
            rows(X, K() * K(), E);
        }
        auto numbers = [&](double*& to) {
            to = (double*)(from + used);
            used += ((size_t)v.n * K() + LANES - 1) / LANES;
        };
        numbers(h);
        numbers(g);
        numbers(sc);
        numbers(d);
        numbers(trial);
        pad_ = from + used;
    }

    HOG_METHOD static double clamped(double reach) {
        return reach < 1e-3 ? 1e-3 : reach > 1e9 ? 1e9 : reach;
    }
    HOG_METHOD V lower(const V* x, int i, int j) const { return x[i >= j ? i * D() + j : j * D() + i]; }
    /// The sum of one field over some rows.
    HOG_METHOD static double total(const Rows& rows, int from, int to, int field) {
        double sum = 0;
        for (int q = from; q < to; ++q) sum += rows.at(q, field);
        return sum;
    }
    HOG_METHOD double back(int q, int hd, int x) const {
        return qm.at((q / LANES * H() + hd) * LANES + q % LANES, x);
    }
    HOG_METHOD double dot(const double* x, const double* y) const {
        double sum = 0, none = 0;
        HOG_PACKS(i, v.n)
        for (int c = 0; c < K(); ++c) sum += x[i * K() + c] * y[i * K() + c];
        team.sum(sum, none);
        return sum;
    }

    /// Rows of o_0 for a pack of nodes. Lanes behind the last node repeat it.
    HOG_METHOD void read_nodes(int row, int rows, int b, V* o0) const {
        const double* from = at_.nodes + row * at_.N + at_.n0;
        for (int l = 0; l < LANES; ++l) {
            const int i = b * LANES + l < v.n ? b * LANES + l : v.n - 1;
            HOG_EACH(x, rows) lane(o0[x], l) = from[x * at_.N + i];
        }
    }
    HOG_METHOD void write_nodes(double* nodes, int row, int rows, int b, const V* o0b) const {
        for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
            HOG_EACH(x, rows) nodes[(row + x) * at_.N + at_.n0 + b * LANES + l] = get(o0b[x], l);
    }
    /// The same for a pack of edges and one head.
    HOG_METHOD void read_edges(int b, int hd, V* o0) const {
        const int own = hd * s().message().rows0(), sent = s().own_rows() + own;
        for (int l = 0; l < LANES; ++l) {
            const int q = b * LANES + l < v.e ? b * LANES + l : v.e - 1;
            const long long i = at_.n0 + v.dst[q], j = at_.n0 + v.src[q], number = at_.edge[q];
            HOG_EACH(x, s().message().rows0()) {
                double z = 0;
                if (s().ends() == 2) z += at_.nodes[(own + x) * at_.N + i];
                if (s().sent()) z += at_.nodes[(sent + x) * at_.N + j];
                if (at_.edges) z += at_.edges[(own + x) * at_.E + number];
                lane(o0[x], l) = z;
            }
        }
    }
    HOG_METHOD void read_own(const double* x, int b, V* y) const {
        for (int l = 0; l < LANES; ++l) {
            const double* row = x + (b * LANES + l < v.n ? b * LANES + l : v.n - 1) * K();
            HOG_EACH(c, K()) lane(y[c], l) = row[c];
        }
    }
    HOG_METHOD void read_ends(const double* x, int b, V* y) const {
        for (int l = 0; l < LANES; ++l) {
            const int q = b * LANES + l < v.e ? b * LANES + l : v.e - 1;
            const double *own = x + v.dst[q] * K(), *other = x + v.src[q] * K();
            HOG_EACH(c, K()) {
                if (s().ends() == 2) lane(y[2 * c], l) = own[c];
                lane(y[s().ends() * c + s().ends() - 1], l) = other[c];
            }
        }
    }
};

}  // namespace hog

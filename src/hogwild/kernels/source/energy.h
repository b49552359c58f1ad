// The energy of one graph and one replica: value, gradient, Hessian, Newton's method, adjoint.
//
//     E(H) = sum over i of u(m_i, h_i) + beta/2 |h_i|^2,
//     m_i  = sum over edges e into i of w_e m(h_i, h_j) + w_i m_0(h_i).
//
// hogwild_node/round.py writes the same arithmetic for torch and NumPy; the tests compare both. A
// node's block of the Hessian, the coupling of an edge and the couplings between two senders of one
// receiver follow from the local quadratic models (hogwild_node/local.py).
//
// One source serves both machines. On a CPU one thread computes a graph, or a few threads a large one,
// in packs of eight rows. On a GPU a block of threads computes a graph, row by row. team.sync() separates
// what rows write from what other rows read. Sums over edges are gathered by nodes: nothing depends on the
// order in which threads run.
#pragma once
#include "newton.h"
#include "shapes.h"

namespace hog {

/// One graph and one replica. `S` are the model's sizes, `F` solves linear systems with its Hessian: by
/// a factorisation of its blocks (fronts.h on a CPU, fronts_gpu.h on a GPU), by products with its blocks
/// (krylov_gpu.h, for one large graph on a GPU), or by products that need no blocks (krylov.h;
/// F::matrix_free). `T` are the threads that share the work.
template <class S, class F, class T>
class Task {
  public:
    typedef T Team;
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
               (size_t)packs(e) * s.edge_fields(F::matrix_free) + 5 * numbers + turned(s, n) +
               scratch(s);
    }

    /// Vectors of memory for the rows of o_0 that messages read, node by node, on a CPU.
    HOG_METHOD static size_t turned(const S& s, int n) {
#if HOG_GPU
        return 0;
#else
        return ((size_t)n * s.loop_row() + LANES - 1) / LANES;
#endif
    }

    /// Scratch memory that suffices for every function above: the sum of everything that any of them
    /// takes for one network, with the largest sizes of all three.
    HOG_METHOD static size_t scratch(const S& s) {
#if HOG_GPU
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
               8 * outputs + context + 2 * first + M * (k + M) + s.loop_row() + 16 + LANES;
#endif
    }

    /// Use scratch memory of its own, of `scratch` vectors: threads of a crew share the rest.
    HOG_METHOD void use_scratch(V* from) { pad_ = from; }

    /// Lay the rows of o_0 that messages read node by node: an edge then reads whole rows.
    HOG_METHOD void turn_nodes() {
#if !HOG_GPU
        const int width = s().loop_row();
        HOG_PACKS(b, packs(v.n)) {
            const double* from = at_.nodes + at_.n0 + b * LANES;
            double* const to = first_ + (size_t)b * LANES * width;
            int x = 0;
            if ((b + 1) * LANES <= v.n)
                for (; x + LANES <= width; x += LANES) {
                    V a[LANES];
                    for (int i = 0; i < LANES; ++i) a[i] = eight(from + (x + i) * at_.N);
                    transpose(a);
                    for (int l = 0; l < LANES; ++l) put_eight(a[l], to + l * width + x);
                }
            for (; x < width; ++x)
                for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
                    to[l * width + x] = from[x * at_.N + l];
        }
        team.sync();
#endif
    }

    /// Read rows that were laid node by node there, [n, loop_row()], instead of laying them.
    HOG_METHOD void use_turned(double* nodes) { first_ = nodes; }

    /// Write the gradient and the size of its terms there, [n, k] each.
    HOG_METHOD void use_gradient(double* gradient, double* size) { g = gradient, sc = size; }

    /// What an edge sends back to its sender: [k] of the gradient after `differentiate`, and [heads, rows of
    /// o_0] of the features after `reverse`.
    HOG_METHOD void copy_back(int q, double* to) const {
        HOG_EACH(c, K()) to[c] = G.at(q, s().ends() * c + s().ends() - 1);
    }
    HOG_METHOD void copy_sent(int q, double* to) const {
#if !HOG_GPU
        const int some = s().message().rows0();
        for (int hd = 0; hd < H(); ++hd) std::copy(back(q, hd), back(q, hd) + some, to + hd * some);
#endif
    }

    /// Everything that no iteration changes: the contexts of all networks, and the weights.
    HOG_LARGE void fill_contexts() {
        if (first_ == gathered_) turn_nodes();
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

    /// Whether a node stays where it is: its gradient is zero, and in the Hessian its row and column
    /// are those of the identity. On a GPU all nodes move.
    HOG_METHOD bool held(int i) const {
#if HOG_GPU
        return false;
#else
        return at_.held && at_.held[at_.n0 + i];
#endif
    }
    /// Set x [n, k] to zero at the nodes that are held.
    HOG_METHOD void hold(double* x) const {
#if !HOG_GPU
        HOG_PACKS(i, v.n)
        for (int c = 0; c < K(); ++c) x[i * K() + c] = held(i) ? 0.0 : x[i * K() + c];
        team.sync();
#endif
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
    HOG_LARGE void differentiate(const double* x, double reach);

    /// Both.
    HOG_METHOD void linearise(const double* x) {
        evaluate(x);
        differentiate(x, 0.0);
    }

    /// Gradient and curvatures of the hidden units, without blocks of the Hessian.
    HOG_METHOD void pull_back(const double* x, double reach);

    /// Add what the edges send to their ends, and measure the gradient.
    HOG_METHOD void gather_gradient() {
        residual = scale = 0;
        HOG_PACKS(i, v.n) {
            const int from = v.ptr[i], to = v.ptr[i + 1];
            if (held(i)) {
                HOG_EACH(c, K()) g[i * K() + c] = 0.0;
                continue;
            }
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
                sc[i * K() + c] = size;
                if (fabs(sum) > residual || sum != sum) residual = fabs(sum);  // NaN stays
                if (size > scale) scale = size;
            }
        }
        team.max(residual, scale);
    }

    /// The blocks of the Hessian, from the local quadratic models: half = Umm A + Umh,
    /// B += Uhh + A' half + Uhm A + beta, UJ = Umm Jj, X += half' Jj, Hjj += Jj' UJ.
    HOG_LARGE void assemble();

    /// Blocks of the identity at the nodes that are held, and no couplings with them.
    HOG_METHOD void hold_blocks();

    /// x = sign H^-1 from, at the point of the last `differentiate`; false where that failed.
    HOG_METHOD bool solve_linear(const double* from, double sign, double* x) {
        if constexpr (!F::matrix_free) {
            assemble();
            hold_blocks();
        }
        return fronts_.solve(*this, from, sign, x);
    }

    /// Whether the linear solver should be another one.
    HOG_METHOD bool stopped() const { return false; }
    HOG_METHOD bool exhausted() const {
        if constexpr (F::matrix_free) return fronts_.exhausted();
        return false;
    }

    /// Replace the direction by the gradient, scaled by the Hessian's diagonal where it is known.
    HOG_METHOD void descend() {
        HOG_PACKS(i, v.n)
        HOG_EACH(c, K()) {
            double own = 1.0;
            if constexpr (!F::matrix_free) own = B.at(i, c * K() + c);
            d[i * K() + c] = -g[i * K() + c] / (own > 0 ? own : 1.0);
        }
        team.sync();
    }

    /// trial = h + t d.
    HOG_METHOD void step(double t) {
        HOG_PACKS(i, v.n)
        for (int c = 0; c < K(); ++c) trial[i * K() + c] = h[i * K() + c] + t * d[i * K() + c];
        team.sync();
    }

    /// x' y, of vectors [n, k].
    HOG_METHOD double dot(const double* x, const double* y) const {
        double sum = 0, none = 0;
        HOG_PACKS(i, v.n)
        for (int c = 0; c < K(); ++c) sum += x[i * K() + c] * y[i * K() + c];
        team.sum(sum, none);
        return sum;
    }

    /// The gradient of a loss in all that the problem is made of, from lambda = H^-1 dL/dh in d. The
    /// state must be that of `solve_linear` at the solution h. `sums` gets the gradients of the
    /// parameters as the networks use them.
    template <class Sum>
    HOG_METHOD void reverse(const Cotangents& out, Sum sums);

    HOG_SIZES_OF_TASK
    // What linear solvers read of the Hessian: the star of a node.
    GraphView v;
    Rows B, X, Hjj, Jj, UJ, Um;
    T team;

  private:
    template <class, class>
    friend class Hessian;
    Place at_;
    F fronts_;
    Rows qm, ql, qu, sm, am, sl, al, su, au, wt, lw, O, m, mb, A, half, Ji, Hii, G, md, mt;
    Rows bm, tm, bl, tl, bu, tu;  // of hidden units: curvatures and tangents
    double* sc;
    double* first_;  // o_0 on nodes as far as messages read it, [n, loop_row()], on a CPU
    double* gathered_;  // its cotangents
    V* pad_;

    HOG_SIZE(K, s().k())
    HOG_SIZE(C, s().channels())
    HOG_SIZE(H, s().heads())
    HOG_SIZE(M, s().merged())
    HOG_SIZE(D, s().ends() * s().k())
    HOG_SIZE(U, s().merged() + s().k())

    HOG_METHOD const double* head(int hd) const { return at_.parameters + hd * s().message().parameters(); }
    HOG_METHOD const double* loop() const { return head(H()); }
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
        rows(G, s().sent_back(F::matrix_free), E);
        if constexpr (F::matrix_free) {
            rows(bm, s().message().hidden(), E * H());
            rows(tm, s().message().hidden(), E * H());
            rows(bl, s().loop().hidden(), N);
            rows(tl, s().loop().hidden(), N);
            rows(bu, s().update().hidden(), N);
            rows(tu, s().update().hidden(), N);
            rows(Um, M() * M(), N);
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
        first_ = gathered_ = (double*)(from + used);
        used += turned(s(), v.n);
        pad_ = from + used;
    }

    HOG_METHOD V lower(const V* x, int i, int j) const { return x[i >= j ? i * D() + j : j * D() + i]; }
    /// The sum of one field over some rows.
    HOG_METHOD static double total(const Rows& rows, int from, int to, int field) {
        double sum = 0;
        for (int q = from; q < to; ++q) sum += rows.at(q, field);
        return sum;
    }
#if !HOG_GPU
    /// What the edge q sends back to o_0 of its ends, [rows0].
    const double* back(int q, int hd) const {
        const int b = q / LANES;
        return (const double*)qm.pack(b * H() + hd) + q % LANES * qm.fields;
    }
#endif
    HOG_METHOD double back(int q, int hd, int x) const {
        const unsigned row = (unsigned)q;
        return qm.at((int)((row / LANES * H() + hd) * LANES + row % LANES), x);
    }
    /// Rows of o_0 for a pack of nodes. Lanes behind the last node repeat it.
    HOG_METHOD void read_nodes(int row, int rows, int b, V* o0) const;
    HOG_METHOD void write_nodes(double* nodes, int row, int rows, int b, const V* o0b) const;
    /// The same for a pack of edges and one head.
    HOG_METHOD void read_edges(int b, int hd, V* o0) const;
    /// `count` fields of the receivers of a pack of edges, from the field `first` on.
    HOG_METHOD void read_receivers(const Rows& rows, int first, int count, int b, V* out) const;
    HOG_METHOD void read_own(const double* x, int b, V* y) const;
    HOG_METHOD void read_ends(const double* x, int b, V* y) const;
};

}  // namespace hog

#include "blocks.h"
#include "products.h"
#include "reading.h"
#include "reverse.h"

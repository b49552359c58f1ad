// Local energies of some nodes, one node a lane: values, gradients and quadratic models.
//
//     e_i = u(m_i, h_i) + beta/2 |h_i|^2,    m_i = sum over edges e into i of w_e m(h_i, v_e) + w_i m_0(h_i),
//
// where v_e is what node i holds of the sender of e. hogwild_node/round.py and local.py write the
// same arithmetic for torch and NumPy; the tests compare both. A pack has LANES nodes of one replica.
// Its arrays [positions, fields] hold at position p the p-th edge into each node. A lane never
// reads another one, so that a node's result does not depend on the nodes that are computed with it.
#pragma once
#include <vector>

#include "unrolled.h"

namespace hog {

/// Numbers of nodes or edges somewhere in memory: number c of replica r of item i lies at
/// at[row(i) * item + r * replica + c * channel].
struct Field {
    double* at;
    const int64_t* rows;  // row of every item from `begin` on; nullptr: item i has row i
    int64_t item, replica, channel, begin;

    double* of(int64_t i, int64_t r) const {
        return at + (rows ? rows[i - begin] : i) * item + r * replica;
    }
};

/// The energies of all nodes, with all features filled in.
struct Filled {
    const Sizes* sizes;
    int64_t replicas, nodes, edges;
    const int64_t* begin;    // [N + 1] where the edges into a node begin, in the order by receiver
    const int64_t* order;    // [E] the edges in that order
    const double* weights;   // [R, weights of the H message networks, the self message, the update]
    const double* of_edges;  // [R, E, edge_row]: contexts of all heads, then the weights of the heads
    const double* of_nodes;  // [R, N, node_row]: contexts of self message and update, weight of the former
    // LANES replicas side by side, where nodes take plain gradient steps in many replicas: weights
    // [R / LANES, ., LANES]; of_edges and of_nodes are then [R / LANES, ., row, LANES]. nullptr: they are not.
    const double* lane_weights;

    /// The contexts of a node, and of the edges into it; with replicas side by side those of LANES of them.
    const double* node_context(int64_t i, int64_t replica, int64_t row) const {
        return of_nodes + (replica * nodes + i) * row;
    }
    const double* edge_contexts(int64_t i, int64_t replica, int64_t row) const {
        return of_edges + (replica * edges + begin[i]) * row;
    }

    static int64_t padded(int64_t x) { return (x + LANES - 1) / LANES * LANES; }
    int64_t edge_row() const { return padded(sizes->heads() * (sizes->message().context() + 1)); }
    int64_t node_row() const {
        return padded(sizes->loop().context() + sizes->update().context() + 1);
    }
    int64_t all_weights() const {
        return sizes->heads() * sizes->message().weights() + sizes->loop().weights() +
               sizes->update().weights();
    }
};

/// Which curvatures a quadratic model has: the true ones, those that bound the energies everywhere, or
/// those that bound them as far as another point.
enum Bend { TRUE_CURVATURE, MAJORISED, AS_FAR_AS };

/// A forward pass at one point: slopes and pre-activations of all hidden units.
struct Tape {
    V *s, *a;    // [positions, H, hidden] of the message networks
    V *sl, *al;  // of the self message
    V *su, *au;  // of the update
};

/// Quadratic models of the energies of a pack (hogwild_node/local.py).
struct Quadratic {
    V *own, *b, *u;          // [K], [K, K], [M, M]
    V *toward, *x, *c, *j;   // [positions, K], [positions, K, K] twice, [positions, M, K]
};

/// Hands out vectors of one piece of memory; without memory it only counts them.
struct Layout {
    V* base;
    size_t used;

    V* take(size_t vectors) {
        V* found = base ? base + used : nullptr;
        used += vectors;
        return found;
    }
};

/// LANES nodes of one replica with the edges into them. Lanes behind the last node repeat the first.
template <class S>
class Stars : public S::Dims {
  public:
    using B = typename S::Dims;
    using B::C, B::D, B::H, B::K, B::M, B::Un;
    const Filled& f;
    const S s;
    int lanes = 0, most = 0;            // nodes; largest degree
    int64_t node[LANES], first[LANES];  // node; place of its first edge in the inbox
    int degree[LANES];
    Mask degrees;
    int64_t replica = 0;
    V *q, *w, *qn, *pad;  // contexts [positions, H, context], weights [positions, H], contexts of nodes

    explicit Stars(const Filled& filled) : B(*filled.sizes), f(filled), s(*filled.sizes) {}

    /// Vectors of scratch memory that the networks need.
    size_t pad_size() const {
        size_t most_ = 0;
        for (const Net* net : {&f.sizes->message(), &f.sizes->loop(), &f.sizes->update()})
            most_ = std::max<size_t>(most_, net->hidden() * (net->D() + 1) + 5 * net->widest() + 2 * net->D());
        return 2 * most_ + Un * Un + D * D + K * K + 4 * M * K + C * D + M * Un + 6 * (D + Un + M) + 64;
    }

    const double* head(int hd) const {
        return f.weights + replica * f.all_weights() + hd * s.message().weights();
    }
    const double* loop() const { return head(H); }
    const double* update() const { return loop() + s.loop().weights(); }
    const V* edge(int p, int hd) const { return q + p * f.edge_row() + hd * s.message().context(); }
    const V* of_loop() const { return qn; }
    const V* of_update() const { return qn + s.loop().context(); }
    V loop_weight() const { return qn[s.loop().context() + s.update().context()]; }
    Mask there(int p) const { return degrees > p; }
    /// The edge (by receiver) at a position of a lane; some other edge where there is none.
    int64_t place(int p, int l) const {
        return degree[l] ? f.begin[node[l]] + std::min(p, degree[l] - 1) : 0;
    }
    /// Numbers of the edges at a position, by channel; in lanes without such an edge, of another one.
    /// The first lane has the most edges.
    struct Rows {
        const double* at[LANES];
        int64_t channel;
        HOG_METHOD V operator[](int c) const {
            const int64_t i = c * channel;
            return Vector<double, 64>::of([&](int l) { return at[l][i]; });
        }
    };
    Rows rows(const Field& field, int p, int from = 0) const {
        Rows out;
        out.channel = field.channel;
        for (int l = 0; l < LANES; ++l) {
            const int lane_ = degree[l] ? l : 0;
            const int64_t e = first[lane_] + std::min(p, degree[lane_] - 1);
            out.at[l] = field.of(e, replica) + from * field.channel;
        }
        return out;
    }

    /// Read the contexts of the pack.
    void fill() {
        if (f.lane_weights) return fill_apart();
        const double* rows[LANES];
        for (int l = 0; l < LANES; ++l)
            rows[l] = f.node_context(node[l], replica, f.node_row());
        for (int64_t i = 0; i < f.node_row(); i += LANES) transpose(rows, i, qn + i);
        const int weights = H * s.message().context();
        for (int p = 0; p < most; ++p) {
            for (int l = 0; l < LANES; ++l)
                rows[l] = degree[l] ? f.edge_contexts(node[l], replica, f.edge_row()) +
                                          std::min(p, degree[l] - 1) * f.edge_row()
                                    : f.of_edges;
            V* to = q + p * f.edge_row();
            for (int64_t i = 0; i < f.edge_row(); i += LANES) transpose(rows, i, to + i);
            const Mask m = there(p);
            HOG_EACH(hd, H) w[p * H + hd] = pick(m, to[weights + hd], wide(0.0));
        }
    }

    /// The same where replicas lie side by side, number by number.
    void fill_apart() {
        const int64_t block = replica / LANES, own = replica % LANES;
        auto one = [&](const double* rows, int64_t row, int l, V* to) {
            for (int64_t i = 0; i < row; ++i) lane(to[i], l) = rows[i * LANES + own];
        };
        for (int l = 0; l < LANES; ++l) {
            one(f.node_context(node[l], block, f.node_row() * LANES), f.node_row(), l, qn);
            for (int p = 0; p < most; ++p) {
                const double* rows = degree[l] ? f.edge_contexts(node[l], block, f.edge_row() * LANES) +
                                                     std::min(p, degree[l] - 1) * f.edge_row() * LANES
                                               : f.of_edges;
                one(rows, f.edge_row(), l, q + p * f.edge_row());
            }
        }
        for (int p = 0; p < most; ++p)
            HOG_EACH(hd, H) {
                const V weight = q[p * f.edge_row() + H * s.message().context() + hd];
                w[p * H + hd] = pick(there(p), weight, wide(0.0));
            }
    }

    /// Evaluate the networks at h [K] and the views [positions, K]; the energies' parts `m` [M] too.
    void pass(const V* h, const V* views, const Tape& t, V* m, V* pad_) const {
        const auto &me = s.message(), &lo = s.loop(), &up = s.update();
        V *y = pad_, *value = y + std::max((int)D, (int)Un), *rest = value + std::max(std::max((int)C, (int)M), 1);
        forward(lo, loop(), of_loop(), h, t.sl, t.al, value, rest);
        HOG_EACH(c, M) m[c] = loop_weight() * value[c];
        for (int p = 0; p < most; ++p) {
            HOG_EACH(c, K) {
                if (s.ends() == 2) y[2 * c] = h[c];
                y[s.ends() * c + s.ends() - 1] = views[p * K + c];
            }
            HOG_EACH(hd, H) {
                const int at = (p * H + hd) * me.hidden();
                forward(me, head(hd), edge(p, hd), y, t.s + at, t.a + at, value, rest);
                const V weight = w[p * H + hd];
                V* to = m + (s.concat() ? hd * C : 0);
                HOG_EACH(c, C) to[c] += weight * value[c];
            }
        }
        HOG_EACH(c, M) y[c] = m[c];
        HOG_EACH(c, K) y[M + c] = h[c];
        forward(up, update(), of_update(), y, t.su, t.au, value, rest);
    }

    /// Gradients of the energies in h [K] and in the views [positions, K].
    void local(const V* h, const V* views, const Tape& t, V* own, V* toward) const {
        const auto &me = s.message(), &lo = s.loop(), &up = s.update();
        V *m = pad, *bar = m + M, *g = bar + Un, *p_ = g + std::max((int)D, (int)Un), *rest = p_ + M;
        pass(h, views, t, m, rest);
        const V one = wide(1.0);
        gradient_of(up, update(), of_update(), t.su, &one, bar, rest);
        HOG_EACH(c, M) p_[c] = loop_weight() * bar[c];
        gradient_of(lo, loop(), of_loop(), t.sl, p_, g, rest);
        HOG_EACH(c, K) own[c] = bar[M + c] + g[c] + s.beta() * h[c];
        for (int p = 0; p < most; ++p) {
            HOG_EACH(c, K) toward[p * K + c] = wide(0.0);
            HOG_EACH(hd, H) {
                const V weight = w[p * H + hd];
                HOG_EACH(c, C) p_[c] = weight * bar[(s.concat() ? hd * C : 0) + c];
                gradient_of(me, head(hd), edge(p, hd), t.s + (p * H + hd) * me.hidden(), p_, g,
                            rest);
                HOG_EACH(c, K) {
                    if (s.ends() == 2) own[c] += g[2 * c];
                    toward[p * K + c] += g[s.ends() * c + s.ends() - 1];
                }
            }
        }
    }

    /// Quadratic models at the point of the pass `t` (h [K], sums m [M]).
    void quadratic(const V* h, const Tape& t, Bend bend, const Tape& far, const Quadratic& to) const {
        const auto &me = s.message(), &lo = s.loop(), &up = s.update();
        V* rest = pad;
        auto take = [&](int count) {
            V* found = rest;
            rest += count;
            return found;
        };
        V *bar = take(Un), *g = take(std::max((int)D, (int)Un)), *p_ = take(M), *A = take(M * K),
          *U = take(Un * Un), *J = take(std::max(C * D, M * Un)), *curved = take(std::max(D * D, K * K)),
          *half = take(M * K), *cv = take(std::max(std::max(me.hidden(), lo.hidden()), up.hidden()));
        const V one = wide(1.0);
        bent(up, t.su, t.au, far.au, bend, cv);
        expand_whole(up, update(), of_update(), t.su, cv, &one, J, bar, U, rest);
        HOG_EACH(c, M) p_[c] = loop_weight() * bar[c];
        bent(lo, t.sl, t.al, far.al, bend, cv);
        expand_whole(lo, loop(), of_loop(), t.sl, cv, p_, A, g, to.b, rest);
        HOG_EACH(i, M * K) A[i] *= loop_weight();
        HOG_EACH(c, K) to.own[c] = bar[M + c] + g[c] + s.beta() * h[c];
        for (int p = 0; p < most; ++p) {
            V *toward = to.toward + p * K, *x = to.x + p * K * K, *c_ = to.c + p * K * K,
              *j = to.j + p * M * K;
            HOG_EACH(i, K) toward[i] = wide(0.0);
            HOG_EACH(i, K * K) x[i] = c_[i] = wide(0.0);
            HOG_EACH(i, M * K) j[i] = wide(0.0);
            HOG_EACH(hd, H) {
                const V weight = w[p * H + hd];
                const int at = (p * H + hd) * me.hidden(), row = s.concat() ? hd * C : 0;
                HOG_EACH(c, C) p_[c] = weight * bar[row + c];
                bent(me, t.s + at, t.a + at, far.a + at, bend, cv);
                expand_whole(me, head(hd), edge(p, hd), t.s + at, cv, p_, J, g, curved, rest);
                const int e = s.ends(), z = e - 1;
                HOG_EACH(c, C) HOG_EACH(i, K) {
                    j[(row + c) * K + i] += weight * J[c * D + e * i + z];
                    if (e == 2) A[(row + c) * K + i] += weight * J[c * D + 2 * i];
                }
                HOG_EACH(i, K) {
                    toward[i] += g[e * i + z];
                    if (e == 2) to.own[i] += g[2 * i];
                    HOG_EACH(l, K) {
                        c_[i * K + l] += curved[(e * i + z) * D + e * l + z];
                        if (e == 1) continue;
                        x[i * K + l] += curved[2 * i * D + 2 * l + 1];
                        to.b[i * K + l] += curved[2 * i * D + 2 * l];
                    }
                }
            }
        }
        // half = U_mm A + U_mh;  B += U_hh + A' half + (A' U_mh)' + beta
        const Matrix um{U, Un}, uh{U + M, Un}, at{A, K}, mixed{half, K};
        HOG_EACH(c, M) HOG_EACH(i, K) half[c * K + i] = uh(c, i);
        add_product(M, M, K, um, at, half);
        HOG_EACH(i, K) HOG_EACH(l, K) to.b[i * K + l] += U[(M + i) * Un + M + l] + (i == l ? s.beta() : 0.0);
        add_product(K, M, K, at.turned(), mixed, to.b);
        add_product(K, M, K, uh.turned(), at, to.b);
        HOG_EACH(c, M) HOG_EACH(e, M) to.u[c * M + e] = um(c, e);
        for (int p = 0; p < most; ++p)
            add_product(K, M, K, mixed.turned(), {to.j + p * M * K, K}, to.x + p * K * K);
    }

    /// The curvature of every hidden unit.
    template <class N>
    static void bent(const N& net, const V* slopes, const V* at, const V* far, Bend bend, V* cv) {
        HOG_EACH(m, net.hidden()) {
            const V a = at[m], slope = slopes[m];
            if (bend == TRUE_CURVATURE) cv[m] = curvature(net.act(), a, slope);
            else if (bend == MAJORISED) cv[m] = majoriser(net.act(), a, slope);
            else cv[m] = growth(net.act(), a, slope, absolute(far[m] - a));
        }
    }
};

}  // namespace hog

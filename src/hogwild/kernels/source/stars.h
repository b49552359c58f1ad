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

    /// The pre-activations of messages from here on; nobody reads them where `a` is null.
    V* units(int at) const { return a ? a + at : nullptr; }
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

/// Room for some vectors: an array where sizes are constants, which lies in registers, or memory at `from`.
#define HOG_ROOM(name, count, from)                     \
    V name##_[S::CONSTANT ? (count) : 1];               \
    V* const name = S::CONSTANT ? name##_ : from;       \
    if (!S::CONSTANT) from += (count)

/// LANES nodes of one replica with the edges into them; or one node in LANES replicas, whose weights W are V.
/// Lanes behind the last one repeat the first.
template <class S, class W = double>
class Stars : public S::Dims {
  public:
    using B = typename S::Dims;
    using B::C, B::D, B::EDGE, B::H, B::K, B::M, B::NODE, B::Un;
    static constexpr bool APART = sizeof(W) > sizeof(double);  // lanes are replicas
    const Filled& f;
    const S s;
    int lanes = 0, most = 0;            // nodes or replicas; largest degree
    int64_t node[LANES], first[LANES];  // node; place of its first edge in the inbox
    int degree[LANES];
    Mask degrees;
    int64_t replica = 0;  // of the first lane
    const V *q, *qn;      // contexts and weights [positions, H, .] of edges; contexts of nodes
    V* pad;

    explicit Stars(const Filled& filled) : B(*filled.sizes), f(filled), s(*filled.sizes) {}

    int64_t replica_of(int l) const { return APART && l < lanes ? replica + l : replica; }

    /// Vectors of scratch memory that the networks need.
    size_t pad_size() const {
        size_t most_ = 0;
        for (const Net* net : {&f.sizes->message(), &f.sizes->loop(), &f.sizes->update()})
            most_ = std::max<size_t>(most_, net->hidden() * (net->D() + 1) + 5 * net->widest() + 2 * net->D());
        return 2 * most_ + Un * Un + D * D + K * K + 4 * M * K + C * D + M * Un + 8 * (D + Un + M) + 64;
    }

    const W* head(int hd) const {
        const double* const all = APART ? f.lane_weights : f.weights;
        return (const W*)(all + replica * f.all_weights()) + hd * s.message().weights();
    }
    const W* loop() const { return head(H); }
    const W* update() const { return loop() + s.loop().weights(); }
    const V* edge(int p, int hd) const { return q + p * EDGE + hd * s.message().context(); }
    /// The weight of the message at a position; zero in lanes without such an edge.
    V weight(int p, int hd) const { return q[p * EDGE + H * s.message().context() + hd]; }
    const V* of_loop() const { return qn; }
    const V* of_update() const { return qn + s.loop().context(); }
    V loop_weight() const { return qn[s.loop().context() + s.update().context()]; }
    Mask there(int p) const { return degrees > p; }
    /// The edge (by receiver) at a position of a lane; some other edge where there is none.
    int64_t place(int p, int l) const {
        return degree[l] ? f.begin[node[l]] + std::min(p, degree[l] - 1) : 0;
    }
    /// Where a number of items lies in memory, one item a lane.
    struct Rows {
        double* at[LANES];
        int64_t channel;
        bool together;  // the numbers [K] of all lanes lie side by side, from at[0] on
        HOG_METHOD V operator[](int c) const {
            const int64_t i = c * channel;
            return Vector<double, 64>::of([&](int l) { return at[l][i]; });
        }
    };
    Rows rows(const Field& field, const int64_t* items, int from = 0) const {
        Rows out;
        out.channel = field.channel;
        out.together = APART && K == 2 && field.channel == 1 && field.replica == K && lanes == LANES;
        for (int l = 0; l < (out.together ? 1 : LANES); ++l)
            out.at[l] = field.of(items[l], replica_of(l)) + from * field.channel;
        return out;
    }
    /// The edges at a position of the inbox; another edge in lanes without such an edge. The first lane has
    /// the most edges.
    Rows rows(const Field& field, int p, int from = 0) const {
        int64_t items[LANES];
        for (int l = 0; l < LANES; ++l) {
            const int like = degree[l] ? l : 0;
            items[l] = plain(first[like] + std::min(p, degree[like] - 1));
        }
        return rows(field, items, from);
    }
    /// x, which the compiler does not gather together with its neighbours: gathers are slow.
    HOG_INLINE int64_t plain(int64_t x) {
        asm("" : "+r"(x));
        return x;
    }
    /// Numbers [K] of rows, and the reverse for the first `count` lanes.
    HOG_METHOD void read_rows(const Rows& from, V* to) const {
        if (APART && from.together) {
            to[0] = eight(from.at[0]), to[K - 1] = eight(from.at[0] + LANES);
            return unzip(to[0], to[K - 1]);
        }
        if (K == 2 && from.channel == 1) return read_pairs(from.at, to[0], to[K - 1]);
        HOG_EACH(c, K) to[c] = from[c];
    }
    HOG_METHOD void write_rows(const V* from, const Rows& to, int count) const {
        if (APART && to.together) {
            V low = from[0], high = from[K - 1];
            zip(low, high);
            put_eight(low, to.at[0]), put_eight(high, to.at[0] + LANES);
            return;
        }
        if (K == 2 && to.channel == 1) return write_pairs(from[0], from[K - 1], to.at, count);
        for (int l = 0; l < count; ++l) HOG_EACH(c, K) to.at[l][c * to.channel] = part(from[c], l);
    }

    /// The contexts of a node, and of the edges into it, in the replica of the first lane.
    const double* node_context(int64_t i) const {
        return f.of_nodes + (replica * f.nodes + i * (APART ? LANES : 1)) * NODE;
    }
    const double* edge_contexts(int64_t i) const {
        return f.of_edges + (replica * f.edges + f.begin[i] * (APART ? LANES : 1)) * EDGE;
    }

    /// Read the contexts of the pack into `room` [positions EDGE + NODE], unless replicas lie side by side.
    void fill(V* room) {
        if constexpr (APART) {
            q = (const V*)edge_contexts(node[0]), qn = (const V*)node_context(node[0]);
            return;
        }
        q = room, qn = room + most * EDGE;
        const double* rows[LANES];
        for (int l = 0; l < LANES; ++l) rows[l] = node_context(node[l]);
        for (int i = 0; i < NODE; i += LANES) transpose(rows, i, room + most * EDGE + i);
        for (int l = 0; l < LANES; ++l) rows[l] = degree[l] ? edge_contexts(node[l]) : f.of_edges;
        const int weights = H * s.message().context();
        for (int p = 0; p < most; ++p, room += EDGE) {
            const double* at[LANES];
            for (int l = 0; l < LANES; ++l) at[l] = rows[l] + plain(std::max(std::min(p, degree[l] - 1), 0)) * EDGE;
            for (int i = 0; i < EDGE; i += LANES) transpose(at, i, room + i);
            HOG_EACH(hd, H) room[weights + hd] = pick(there(p), room[weights + hd], wide(0.0));
        }
    }

    /// What the next pack reads: it is asked for a piece at a time, between the computations of this pack, so
    /// that memory has time to answer.
    struct Coming {
        int count = 0, most = 0, asked = 0;
        int64_t first[LANES], degree[LANES];
        const double *edges[LANES], *node[LANES];
    } coming;

    /// Evaluate the networks at h [K] and the views [positions, K]; the energies' parts `m` [M] too. Two positions
    /// are evaluated together. `between()` is called after each of them.
    template <class Between>
    HOG_METHOD void pass(const V* h, const V* views, const Tape& t, V* m, V* pad_, const Between& between) const {
        const auto &lo = s.loop(), &up = s.update();
        HOG_ROOM(y, 2 * D + Un, pad_);
        HOG_ROOM(value, 2 * C + M, pad_);
        V* const rest = pad_;
        forward(lo, loop(), of_loop(), h, t.sl, t.al, value, rest);
        HOG_ALL(c, M) m[c] = loop_weight() * value[c];
        int p = 0;
        for (; p + 1 < most; p += 2) listen<2>(p, h, views, t, m, y, value, rest, between);
        if (p < most) listen<1>(p, h, views, t, m, y, value, rest, between);
        HOG_ALL(c, M) y[c] = m[c];
        HOG_ALL(c, K) y[M + c] = h[c];
        forward(up, update(), of_update(), y, t.su, t.au, value, rest);
    }
    void pass(const V* h, const V* views, const Tape& t, V* m, V* pad_) const {
        pass(h, views, t, m, pad_, [] {});
    }

    /// Gradients of the energies in h [K] and in the views [positions, K].
    template <class Between>
    HOG_METHOD void local(const V* h, const V* views, const Tape& t, V* own, V* toward, const Between& between) const {
        const auto &me = s.message(), &lo = s.loop(), &up = s.update();
        V* rest = pad;
        HOG_ROOM(m, M, rest);
        HOG_ROOM(bar, Un, rest);
        HOG_ROOM(g, D, rest);
        HOG_ROOM(p_, M, rest);
        HOG_ROOM(sum, K, rest);
        pass(h, views, t, m, rest, between);
        const V one = wide(1.0);
        gradient_of(up, update(), of_update(), t.su, &one, bar, rest);
        HOG_ALL(c, M) p_[c] = loop_weight() * bar[c];
        gradient_of(lo, loop(), of_loop(), t.sl, p_, g, rest);
        HOG_ALL(c, K) sum[c] = bar[M + c] + g[c] + s.beta() * h[c];
        for (int p = 0; p < most; ++p) {
            V* const to = toward + p * K;
            HOG_EACH(hd, H) {
                const V share = weight(p, hd);
                HOG_ALL(c, C) p_[c] = share * bar[(s.concat() ? hd * C : 0) + c];
                gradient_of(me, head(hd), edge(p, hd), t.s + (hd * most + p) * me.hidden(), p_, g, rest);
                HOG_ALL(c, K) {
                    if (s.ends() == 2) sum[c] += g[2 * c];
                    const V back = g[s.ends() * c + s.ends() - 1];
                    to[c] = hd ? to[c] + back : back;
                }
            }
            between();
        }
        HOG_ALL(c, K) own[c] = sum[c];
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
                const V weight = this->weight(p, hd);
                const int at = (hd * most + p) * me.hidden(), row = s.concat() ? hd * C : 0;
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

  private:
    /// Add the messages at COUNT positions to m [M].
    template <int COUNT, class Between>
    HOG_METHOD void listen(int p, const V* h, const V* views, const Tape& t, V* m, V* y, V* value, V* rest,
                           const Between& between) const {
        const auto& me = s.message();
        HOG_ALL(b, COUNT) HOG_ALL(c, K) {
            if (s.ends() == 2) y[b * D + 2 * c] = h[c];
            y[b * D + s.ends() * c + s.ends() - 1] = views[(p + b) * K + c];
        }
        HOG_EACH(hd, H) {
            const int at = (hd * most + p) * me.hidden();
            if constexpr (COUNT == 2)
                forward_two(me, head(hd), edge(p, hd), EDGE, y, t.s + at, t.units(at), value, rest);
            else
                forward(me, head(hd), edge(p, hd), y, t.s + at, t.units(at), value, rest);
            V* to = m + (s.concat() ? hd * C : 0);
            HOG_ALL(b, COUNT) {
                const V share = weight(p + b, hd);
                HOG_ALL(c, C) to[c] += share * value[b * C + c];
            }
        }
        for (int b = 0; b < COUNT; ++b) between();
    }

    /// The curvature of every hidden unit.
    template <class N>
    static void bent(const N& net, const V* slopes, const V* at, const V* far, Bend bend, V* cv) {
        HOG_EACH(m, net.hidden()) {
            const V a = at[m], slope = slopes[m];
            if (bend == TRUE_CURVATURE) cv[m] = curvature(net.act(), a, slope);
            else if (bend == MAJORISED) cv[m] = majoriser(a, slope);
            else cv[m] = growth(net.act(), a, slope, absolute(far[m] - a));
        }
    }
};

}  // namespace hog

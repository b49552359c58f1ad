// Gradient steps of nodes whose networks have sizes known when this is compiled, one node a lane.
//
// The arithmetic is that of Steps (rules.h), which serves models of any size. Here sizes are constants:
// loops are unrolled, and a layer's numbers stay in registers. A step is the plain one (a rate for all
// nodes, or one for each), packets have their numbers side by side, and no edge is a self-loop.
#pragma once
#include "rules.h"

namespace hog {

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

/// A pack of nodes that take gradient steps in a model of constant sizes.
template <int K, int C, int W>
class FixedSteps {
  public:
    typedef FixedModel<K, C, W> Model;
    typedef Unrolled<2 * K, W, C> Message;
    typedef Unrolled<K, W, C> Loop;
    typedef Unrolled<C + K, W, 1> Update;
    static constexpr int EDGE = (Message::N::context() + 1 + LANES - 1) / LANES * LANES;
    static constexpr int NODE =
        (Loop::N::context() + Update::N::context() + 1 + LANES - 1) / LANES * LANES;

    /// Whether these nodes can be updated here.
    static bool serves(const Rule& rule, const Turn& turn) {
        return !rule.messages && rule.step != BLOCKS && turn.also.at &&
               turn.inbox.channel == 1 && turn.mail.channel == 1 && turn.letters.channel == 1 &&
               turn.also.channel == 1 && !rule.filled.lane_weights && Model::is(*rule.filled.sizes);
    }

    /// The gradient of a node's own energy at h [K] and the sum m [C] of its messages: bar [C + K] with
    /// respect to m and to the node as the update network reads it, and own [K] with respect to h but
    /// for what comes back through the messages. `slopes` are those of the loop network, at h.
    template <class T>
    HOG_INLINE void own_gradient(const T* loop, const T* up, const V* qn, double beta, const V* h,
                                 const V* m, const V* slopes, V* bar, V* own) {
        const V *q_up = qn + Loop::N::context(), share = q_up[Update::N::context()], one = wide(1.0);
        V y[C + K], value[1], s[2 * W], p[C];
        HOG_ALL(c, C) y[c] = m[c];
        HOG_ALL(c, K) y[C + c] = h[c];
        Update::template forward<1>(up, q_up, 0, y, s, value);
        Update::backward(up, q_up, s, &one, bar);
        HOG_ALL(c, C) p[c] = share * bar[c];
        Loop::backward(loop, qn, slopes, p, own);
        HOG_ALL(c, K) own[c] += bar[C + c] + beta * h[c];
    }

    FixedSteps(const Rule& rule, const Turn& turn, int64_t replica)
        : rule_(rule), f_(rule.filled), turn_(turn), replica_(replica) {
        weights_ = f_.weights + replica * f_.all_weights();
    }

    /// Memory for packs of nodes with up to so many edges.
    void lay_out(Arena& arena, int positions) {
        V* at = arena.room((size_t)positions * (EDGE + 2 * W + K) + NODE);
        qn_ = at, q_ = at + NODE, s_ = q_ + positions * EDGE, views_ = s_ + positions * 2 * W;
    }

    /// The nodes at these slots are updated next: the pack before them asks for their packets and contexts
    /// between its own computations, so that memory has time to answer.
    void expect(const int32_t* slots, int count) {
        coming_ = count;
        for (int l = 0; l < count; ++l) {
            const int64_t a = slots[l], i = turn_.nodes[a];
            next_first_[l] = turn_.first[a], next_degree_[l] = turn_.first[a + 1] - turn_.first[a];
            next_edges_[l] = f_.edge_contexts(i, replica_, EDGE);
            next_nodes_[l] = f_.node_context(i, replica_, NODE);
        }
    }

    /// Update the nodes at these slots of the turn; the first one has the most edges.
    void update(const int32_t* slots, int count) {
        int64_t slot[LANES], node[LANES], first[LANES], last[LANES];
        const double *rows[LANES], *more[LANES], *contexts[LANES];
        Mask degrees;
        for (int l = 0; l < LANES; ++l) {
            const int64_t a = slot[l] = plain(slots[l < count ? l : 0]), i = node[l] = turn_.nodes[a];
            const int64_t degree = turn_.first[a + 1] - turn_.first[a];
            const int like = degree ? l : 0;  // a lane without edges reads those of the first one
            degrees[l] = degree;
            first[l] = like == l ? turn_.first[a] : first[0];
            last[l] = like == l ? degree - 1 : last[0];
            contexts[l] = like == l ? f_.edge_contexts(i, replica_, EDGE) : contexts[0];
        }
        const int most = (int)degrees[0];
        // The step, with the gradients of the node and of its neighbours at the last packets.
        V h[K], g[K];
        for (int l = 0; l < LANES; ++l) {
            const double* at = turn_.h.of(plain(slot[l]), replica_);
            const double* mine = rule_.memory.gradient.of(node[l], replica_);
            HOG_ALL(c, K) {
                lane(h[c], l) = at[c * turn_.h.channel];
                lane(g[c], l) = mine[c * rule_.memory.gradient.channel];
            }
        }
        for (int p = 0; p < most; ++p) {
            const Mask m = degrees > p;
            for (int l = 0; l < LANES; ++l) {
                const int64_t e = plain(first[l] + std::min<int64_t>(p, last[l]));
                rows[l] = turn_.mail.of(e, replica_), more[l] = turn_.inbox.of(e, replica_);
            }
            V letter[K], view[K];
            read_rows(rows, letter), read_rows(more, view);
            HOG_ALL(c, K) {
                g[c] += pick(m, letter[c], wide(0.0));
                views_[p * K + c] = pick(m, view[c], wide(0.0));
            }
        }
        HOG_ALL(c, K) {
            V rate = wide(rule_.numbers.rate);
            if (rule_.step == GIVEN)
                for (int l = 0; l < LANES; ++l)
                    lane(rate, l) = rule_.rates[(replica_ * K + c) * f_.nodes + node[l]];
            h[c] = h[c] - rate * g[c];
        }
        // The gradients of the nodes' energies at the new embeddings.
        for (int l = 0; l < LANES; ++l) rows[l] = f_.node_context(node[l], replica_, NODE);
        HOG_ALL(i, NODE / LANES) transpose(rows, i * LANES, qn_ + i * LANES);
        const double *loop = weights_ + Message::N::weights(), *up = loop + Loop::N::weights();
        const V share = qn_[Loop::N::context() + Update::N::context()];
        V m[C], value[C], sl[2 * W], bar[C + K], own[K], p_[C];
        Loop::template forward<1>(loop, qn_, 0, h, sl, value);
        HOG_ALL(c, C) m[c] = share * value[c];
        int p = 0;
        for (; p + 1 < most; p += 2) listen<2>(p, contexts, last, degrees, h, m);
        if (p < most) listen<1>(p, contexts, last, degrees, h, m);
        for (p = most; coming_ && p < next_degree_[0]; ++p) ask_for_contexts(p);
        own_gradient(loop, up, qn_, f_.sizes->beta(), h, m, sl, bar, own);
        double* to[LANES];
        for (int p = 0; p < most; ++p) {
            const V* q = q_ + p * EDGE;
            const V weight = q[Message::N::context()];
            HOG_ALL(c, C) p_[c] = weight * bar[c];
            V both[2 * K], toward[K];
            Message::backward(weights_, q, s_ + p * 2 * W, p_, both);
            HOG_ALL(c, K) own[c] += both[2 * c], toward[c] = both[2 * c + 1];
            int lanes = 0;  // nodes with more edges come first
            while (lanes < count && degrees[lanes] > p) {
                to[lanes] = turn_.letters.of(first[lanes] + p, replica_);
                ++lanes;
            }
            write_rows(toward, to, lanes);
            ask_for_packets(p);
            if (p < coming_) ask_for_node(p);
        }
        for (p = most; coming_ && p < next_degree_[0]; ++p) ask_for_packets(p);
        for (int l = most; l < coming_; ++l) ask_for_node(l);
        for (int l = 0; l < count; ++l) {
            double* at = turn_.out.of(slot[l], replica_);
            double* mine = rule_.memory.gradient.of(node[l], replica_);
            HOG_ALL(c, K) {
                at[c * turn_.out.channel] = part(h[c], l);
                mine[c * rule_.memory.gradient.channel] = part(own[c], l);
            }
            to[l] = turn_.also.of(slot[l], replica_);
        }
        write_rows(h, to, count);
    }

  private:
    const Rule& rule_;
    const Filled& f_;
    const Turn& turn_;
    const int64_t replica_;
    const double* weights_;
    V *qn_, *q_, *s_, *views_;
    int coming_ = 0;
    int64_t next_first_[LANES], next_degree_[LANES];
    const double *next_edges_[LANES], *next_nodes_[LANES];

    /// Add the messages at B positions to m [C].
    template <int B>
    HOG_METHOD void listen(int p, const double* const* contexts, const int64_t* last, const Mask& degrees,
                           const V* h, V* m) {
        V y[B * 2 * K], value[B * C];
        V* q = q_ + p * EDGE;
        HOG_ALL(b, B) {
            const double* rows[LANES];
            for (int l = 0; l < LANES; ++l)
                rows[l] = contexts[l] + plain(std::min<int64_t>(p + b, last[l])) * EDGE;
            HOG_ALL(i, EDGE / LANES) transpose(rows, i * LANES, q + b * EDGE + i * LANES);
            V& weight = q[b * EDGE + Message::N::context()];
            weight = pick(degrees > p + b, weight, wide(0.0));
            HOG_ALL(c, K) y[b * 2 * K + 2 * c] = h[c], y[b * 2 * K + 2 * c + 1] = views_[(p + b) * K + c];
        }
        Message::template forward<B>(weights_, q, EDGE, y, s_ + p * 2 * W, value);
        HOG_ALL(b, B) {
            const V weight = q[b * EDGE + Message::N::context()];
            HOG_ALL(c, C) m[c] += weight * value[b * C + c];
            ask_for_contexts(p + b);
        }
    }

    HOG_ASKS void ask_for_contexts(int p) const {
        for (int l = 0; l < coming_ && p < next_degree_[l]; ++l) {
            const double* at = next_edges_[l] + p * EDGE;
            HOG_ALL(x, EDGE / 8) HOG_ASK_FOR(at + 8 * x);
        }
    }
    HOG_ASKS void ask_for_packets(int p) const {
        for (int l = 0; l < coming_ && p < next_degree_[l]; ++l) {
            const int64_t e = next_first_[l] + p;
            HOG_ASK_FOR(turn_.inbox.of(e, replica_));
            HOG_ASK_FOR(turn_.mail.of(e, replica_));
            HOG_ASK_FOR(turn_.letters.of(e, replica_));
        }
    }
    HOG_ASKS void ask_for_node(int l) const {
        HOG_ALL(x, NODE / 8) HOG_ASK_FOR(next_nodes_[l] + 8 * x);
    }

    /// x, which the compiler does not gather together with its neighbours: gathers are slow.
    HOG_INLINE int64_t plain(int64_t x) {
        asm("" : "+r"(x));
        return x;
    }
    HOG_INLINE void read_rows(const double* const* at, V* to) {
        if (K == 2) return read_pairs(at, to[0], to[K - 1]);
        for (int l = 0; l < LANES; ++l) HOG_ALL(c, K) lane(to[c], l) = at[l][c];
    }
    HOG_INLINE void write_rows(const V* from, double* const* at, int lanes) {
        if (K == 2) return write_pairs(from[0], from[K - 1], at, lanes);
        for (int l = 0; l < lanes; ++l) HOG_ALL(c, K) at[l][c] = part(from[c], l);
    }
};

}  // namespace hog

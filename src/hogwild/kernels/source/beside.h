// Gradient steps of nodes in many replicas, one replica a lane, with the networks of fixed.h.
#pragma once
#include "fixed.h"

namespace hog {

/// One node in LANES replicas, with a gradient step in a model of constant sizes. Nothing is transposed:
/// contexts and weights of the replicas lie side by side.
template <int K, int C, int W>
class FixedReplicas {
  public:
    typedef FixedSteps<K, C, W> One;
    typedef typename One::Message Message;
    typedef typename One::Loop Loop;
    typedef typename One::Update Update;

    static bool serves(const Rule& rule, const Turn& turn) {
        return !rule.messages && rule.step != BLOCKS && turn.also.at &&
               rule.filled.lane_weights && FixedModel<K, C, W>::is(*rule.filled.sizes) &&
               beside(turn.inbox) && beside(turn.mail) && beside(turn.letters) && beside(turn.also) &&
               beside(rule.memory.gradient);
    }

    FixedReplicas(const Rule& rule, const Turn& turn, int64_t block)
        : rule_(rule), f_(rule.filled), turn_(turn), block_(block), replica_(block * LANES) {
        lanes_ = (int)std::min<int64_t>(LANES, f_.replicas - replica_);
        weights_ = (const V*)f_.lane_weights + block * f_.all_weights();
    }

    void lay_out(Arena& arena, int64_t positions) {
        s_ = arena.room((size_t)positions * (2 * W + K));
        views_ = s_ + positions * 2 * W;
    }

    /// The node at this slot is updated next.
    void expect(int64_t slot) {
        const int64_t i = turn_.nodes[slot];
        next_ = (const V*)f_.edge_contexts(i, block_, One::EDGE * LANES);
        next_node_ = (const V*)f_.node_context(i, block_, One::NODE * LANES);
        next_degree_ = (int)(turn_.first[slot + 1] - turn_.first[slot]);
        next_first_ = turn_.first[slot];
    }

    /// Update the node at a slot of the turn.
    void update(int64_t slot) {
        const int64_t node = turn_.nodes[slot], first = turn_.first[slot];
        const int degree = (int)(turn_.first[slot + 1] - first);
        const V* q = (const V*)f_.edge_contexts(node, block_, One::EDGE * LANES);
        const V* qn = (const V*)f_.node_context(node, block_, One::NODE * LANES);
        V h[K], g[K];
        HOG_ALL(c, K) h[c] = wide(0.0);
        for (int l = 0; l < lanes_; ++l)
            HOG_ALL(c, K) lane(h[c], l) = turn_.h.of(slot, replica_ + l)[c * turn_.h.channel];
        read(rule_.memory.gradient, node, g);
        for (int p = 0; p < degree; ++p) {
            V letter[K];
            read(turn_.mail, first + p, letter), read(turn_.inbox, first + p, views_ + p * K);
            HOG_ALL(c, K) g[c] += letter[c];
        }
        HOG_ALL(c, K) {
            V rate = wide(rule_.numbers.rate);
            if (rule_.step == GIVEN)
                for (int l = 0; l < lanes_; ++l)
                    lane(rate, l) = rule_.rates[((replica_ + l) * K + c) * f_.nodes + node];
            h[c] = h[c] - rate * g[c];
        }
        const V *loop = weights_ + Message::N::weights(), *up = loop + Loop::N::weights();
        const V share = qn[Loop::N::context() + Update::N::context()];
        V m[C], value[C], sl[2 * W], bar[C + K], own[K], p_[C];
        Loop::template forward<1>(loop, qn, 0, h, sl, value);
        HOG_ALL(c, C) m[c] = share * value[c];
        int p = 0;
        for (; p + 1 < degree; p += 2) listen<2>(q, p, h, m);
        if (p < degree) listen<1>(q, p, h, m);
        for (p = degree; p < next_degree_; ++p) ask_for(p);
        for (int i = 0; i < One::NODE; ++i) HOG_ASK_FOR(next_node_ + i);
        One::own_gradient(loop, up, qn, f_.sizes->beta(), h, m, sl, bar, own);
        for (p = 0; p < degree; ++p) {
            const V *at = q + p * One::EDGE, weight = at[Message::N::context()];
            HOG_ALL(c, C) p_[c] = weight * bar[c];
            V both[2 * K], toward[K];
            Message::backward(weights_, at, s_ + p * 2 * W, p_, both);
            HOG_ALL(c, K) own[c] += both[2 * c], toward[c] = both[2 * c + 1];
            write(toward, turn_.letters, first + p);
        }
        for (int l = 0; l < lanes_; ++l)
            HOG_ALL(c, K) turn_.out.of(slot, replica_ + l)[c * turn_.out.channel] = part(h[c], l);
        write(own, rule_.memory.gradient, node);
        write(h, turn_.also, slot);
    }

  private:
    const Rule& rule_;
    const Filled& f_;
    const Turn& turn_;
    const int64_t block_, replica_;
    int lanes_;
    const V* weights_;
    V *s_, *views_;
    const V *next_ = nullptr, *next_node_ = nullptr;
    int next_degree_ = 0;
    int64_t next_first_ = 0;

    /// Whether the numbers of all replicas of an item lie side by side.
    static bool beside(const Field& field) { return field.channel == 1 && field.replica == K; }

    template <int B>
    HOG_METHOD void listen(const V* q, int p, const V* h, V* m) {
        V y[B * 2 * K], value[B * C];
        HOG_ALL(b, B) HOG_ALL(c, K)
            y[b * 2 * K + 2 * c] = h[c], y[b * 2 * K + 2 * c + 1] = views_[(p + b) * K + c];
        Message::template forward<B>(weights_, q + p * One::EDGE, One::EDGE, y, s_ + p * 2 * W, value);
        HOG_ALL(b, B) {
            const V weight = q[(p + b) * One::EDGE + Message::N::context()];
            HOG_ALL(c, C) m[c] += weight * value[b * C + c];
            ask_for(p + b);
        }
    }
    HOG_ASKS void ask_for(int p) const {
        if (p >= next_degree_) return;
        for (int i = 0; i < One::EDGE; ++i) HOG_ASK_FOR(next_ + p * One::EDGE + i);
        for (int x = 0; x < K * LANES; x += 8) {
            HOG_ASK_FOR(turn_.inbox.of(next_first_ + p, replica_) + x);
            HOG_ASK_FOR(turn_.mail.of(next_first_ + p, replica_) + x);
        }
    }
    /// Numbers [replicas, K] of an item, replicas in lanes.
    HOG_METHOD void read(const Field& field, int64_t item, V* to) const {
        const double* at = field.of(item, replica_);
        double some[K * LANES] __attribute__((aligned(64))) = {};
        if (lanes_ < LANES) std::memcpy(some, at, sizeof(double) * K * lanes_), at = some;
        if (K == 2) {
            to[0] = eight(at), to[K - 1] = eight(at + LANES);
            unzip(to[0], to[K - 1]);
            return;
        }
        for (int l = 0; l < LANES; ++l) HOG_ALL(c, K) lane(to[c], l) = at[l * K + c];
    }
    HOG_METHOD void write(const V* from, const Field& field, int64_t item) const {
        double* at = field.of(item, replica_);
        double some[K * LANES] __attribute__((aligned(64)));
        double* to = lanes_ < LANES ? some : at;
        if (K == 2) {
            V low = from[0], high = from[K - 1];
            zip(low, high);
            put_eight(low, to), put_eight(high, to + LANES);
        } else
            for (int l = 0; l < LANES; ++l) HOG_ALL(c, K) to[l * K + c] = part(from[c], l);
        if (lanes_ < LANES) std::memcpy(at, some, sizeof(double) * K * lanes_);
    }
};

}  // namespace hog

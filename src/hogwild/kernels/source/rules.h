// Gradient steps of some nodes, one node a lane (hogwild_node/rules/gradient.py has the formulas).
#pragma once
#include "elimination.h"
#include "stars.h"

namespace hog {

/// Numbers that the rules were given (the constants of hogwild_node/rules).
struct Numbers {
    double hold, reach, passes, enough, arrived;                       // messages, mode
    double window, margin, strikes, credit, turn, swing, ease, doubt, floor, memory;  // trust
    double rest, most, leash;                                          // retreat
    double damping, rate;                                              // gradient
};

/// What nodes remember, of nodes or of edges; empty where a rule has none.
struct Memory {
    Field gradient, block, damped, last;  // of gradient steps: [k], [k, k], [1], [k]
    Field own, near, sent;                // of messages: [k], edges' [k], edges' [width]
    Field move, share, before, count, score, turns, favour, failures, peak;  // trust; move: [k]
    Field home, left, times;              // retreat: [k], [1], [1]
    unsigned char *known, *lost, *quiet;  // [R, N], [R, N], [R, E]
};

enum Step { CONSTANT = 0, GIVEN = 1, BLOCKS = 2 };

/// A rule on all nodes.
struct Rule {
    Filled filled;
    int64_t messages, step;  // whether nodes send messages; which step they take
    const double* rates;     // [R, k, N] for GIVEN
    Numbers numbers;
    Memory memory;
};

/// Some nodes and what they heard; where their answers go.
struct Turn {
    int64_t size;           // nodes
    const int64_t* nodes;   // [A]
    const int64_t* first;   // [A + 1] where each node's edges begin in the inbox
    Field h, inbox, mail;   // of nodes (by slot), of edges in the inbox
    Field out, also, letters;  // new embeddings, twice (`also` may be empty), and letters
};

/// A pack of nodes that take gradient steps.
template <class S, class W = double>
class Steps : public Stars<S, W> {
  public:
    using A = Stars<S, W>;
    using typename A::Rows;
    using A::C, A::D, A::EDGE, A::H, A::K, A::M, A::NODE, A::Un, A::coming, A::degree, A::degrees, A::f,
        A::first, A::lanes, A::most, A::node, A::pad, A::place, A::replica, A::replica_of, A::s, A::there;
    static constexpr int SLOTS = A::APART ? 1 : LANES;  // of a turn in one pack

    Steps(const Rule& rule, const Turn& turn)
        : A(rule.filled), rule_(rule), m_(rule.memory), x_(rule.numbers), turn_(turn) {}

    /// Numbers of the letter of a gradient step.
    int letter() const { return K + (rule_.step == BLOCKS ? K * K : 0); }

    /// Take the nodes at these slots of the turn, the one with the most edges first.
    void seat(const int32_t* slots, int count, int64_t replica_) {
        lanes = A::APART ? (int)std::min<int64_t>(LANES, f.replicas - replica_) : count;
        replica = replica_;
        for (int l = 0; l < LANES; ++l) {
            slot[l] = slots[l < count ? l : 0];
            node[l] = turn_.nodes[slot[l]];
            first[l] = turn_.first[slot[l]];
            degrees[l] = degree[l] = (int)(turn_.first[slot[l] + 1] - first[l]);
        }
        most = degree[0];
    }

    /// The nodes at these slots are updated next.
    void expect(const int32_t* slots, int count) {
        coming.count = count, coming.asked = 0;
        for (int l = 0; l < count; ++l) {
            const int64_t a = slots[l], i = turn_.nodes[a];
            coming.first[l] = turn_.first[a], coming.degree[l] = turn_.first[a + 1] - turn_.first[a];
            coming.edges[l] = A::edge_contexts(i), coming.node[l] = A::node_context(i);
        }
        coming.most = count ? (int)coming.degree[0] : 0;
    }

    /// Ask for the next piece of what they read: first the contexts of edges, then packets and the contexts of
    /// nodes. Whether there was one.
    HOG_ASKS bool ask() {
        constexpr int side = A::APART ? LANES : 1;  // numbers side by side
        const int p = coming.asked++, after = A::APART ? p : p - coming.most;
        if (p < coming.most)
            for (int l = 0; l < coming.count && p < coming.degree[l]; ++l)
                for (int x = 0; x < EDGE * side; x += 8) HOG_ASK_FOR(coming.edges[l] + p * EDGE * side + x);
        if (after < 0) return true;
        for (int l = 0; l < coming.count && after < coming.degree[l]; ++l)
            for (int x = 0; x < K * side; x += 8) {
                const int64_t e = coming.first[l] + after;
                HOG_ASK_FOR(turn_.inbox.of(e, replica) + x);
                HOG_ASK_FOR(turn_.mail.of(e, replica) + x);
                if (!A::APART) HOG_ASK_FOR(turn_.letters.of(e, replica) + x);
            }
        const int lane_ = A::APART ? after - coming.most : after;
        if (lane_ >= 0 && lane_ < coming.count)
            for (int x = 0; x < NODE * side; x += 8) HOG_ASK_FOR(coming.node[lane_] + x);
        return after < coming.most || lane_ < coming.count;
    }

    /// Memory for packs of nodes with up to so many edges.
    void lay_out(Arena& arena, int positions) {
        Layout counted{nullptr, 0};
        lay(counted, positions);
        Layout memory{arena.room(counted.used), 0};
        lay(memory, positions);
    }

    virtual void update() {
        A::fill(contexts);
        read(turn_.h, h);
        read_views();
        hear(0);
        step(h, now, Mask{} - 1);
        refresh(now, 0);
        write(turn_.out, now);
        if (turn_.also.at) write(turn_.also, now);
    }
    virtual ~Steps() = default;

  protected:
    const Rule& rule_;
    const Memory& m_;
    const Numbers& x_;
    const Turn& turn_;
    int64_t slot[LANES];
    V *contexts, *h, *now, *views, *toward, *heard, *blocks;
    Tape tape;
    Quadratic model;

    virtual void lay(Layout& to, size_t P) {
        contexts = A::APART ? nullptr : to.take(P * EDGE + NODE);
        h = to.take(K), now = to.take(K), views = to.take(P * K);
        toward = to.take(P * K + 2 * K), heard = to.take(letter());
        blocks = to.take(2 * K * K + 2 * K + M), tape = new_tape(to, P);
        if (rule_.step == BLOCKS || rule_.messages) model = new_model(to, P);
        pad = to.take(A::pad_size());
    }

    Tape new_tape(Layout& to, size_t P) const {
        const size_t hidden = P * H * s.message().hidden();
        const bool plain = S::CONSTANT && rule_.step != BLOCKS && !rule_.messages;
        return Tape{to.take(hidden), plain ? nullptr : to.take(hidden), to.take(s.loop().hidden()),
                    to.take(s.loop().hidden()), to.take(s.update().hidden()),
                    to.take(s.update().hidden())};
    }
    Quadratic new_model(Layout& to, size_t P) const {
        return Quadratic{to.take(K), to.take(K * K), to.take(M * M), to.take(P * K),
                         to.take(P * K * K), to.take(P * K * K), to.take(P * M * K)};
    }

    // -- memory and packets, lane by lane ----------------------------------------------------------

    int64_t edge_of(int p, int l) const { return f.order[place(p, l)]; }
    double& of_node(const Field& field, int c, int l) const {
        return field.of(node[l], replica_of(l))[c * field.channel];
    }
    double& of_edge(const Field& field, int c, int p, int l) const {
        return field.of(edge_of(p, l), replica_of(l))[c * field.channel];
    }
    void recall(const Field& field, int count, V* to) const {
        const Rows at = A::rows(field, node);
        if (count == K) return A::read_rows(at, to);
        HOG_EACH(c, count) to[c] = at[c];
    }
    /// Remember some numbers of the lanes in `who`.
    void keep(const Field& field, int count, const V* from, Mask who) const {
        for (int l = 0; l < lanes; ++l) {
            if (!who[l]) continue;
            double* at = field.of(node[l], replica_of(l));
            HOG_EACH(c, count) at[c * field.channel] = part(from[c], l);
        }
    }
    void keep(const Field& field, int count, const V* from) const {
        if (count == K) A::write_rows(from, A::rows(field, node), lanes);
        else keep(field, count, from, Mask{} - 1);
    }
    void read(const Field& field, V* to) const { A::read_rows(A::rows(field, slot), to); }
    void write(const Field& field, const V* from) const { A::write_rows(from, A::rows(field, slot), lanes); }
    void read_views() {
        HOG_EACH(p, most) {
            V* const to = views + p * K;
            A::read_rows(A::rows(turn_.inbox, p), to);
            HOG_EACH(c, K) to[c] = pick(there(p), to[c], wide(0.0));
        }
    }
    /// Sums of the letters, which begin at number `from` of the mail.
    void hear(int from) {
        const int count = letter();
        HOG_EACH(c, count) heard[c] = wide(0.0);
        HOG_EACH(p, most) {
            const Rows at = A::rows(turn_.mail, p, from);
            V* rest = pad;
            HOG_ROOM(gradient, K, rest);
            A::read_rows(at, gradient);
            HOG_EACH(c, K) heard[c] += pick(there(p), gradient[c], wide(0.0));
            for (int c = K; c < count; ++c) heard[c] += pick(there(p), at[c], wide(0.0));
        }
    }
    void write_letters(int from, int count, const V* letters) const {
        HOG_EACH(p, most) {
            const Rows to = A::rows(turn_.letters, p, from);
            int some = 0;  // nodes with more edges come first
            while (some < lanes && degree[some] > p) ++some;
            if (count == K) A::write_rows(letters + p * K, to, some);
            else
                for (int l = 0; l < some; ++l)
                    HOG_EACH(c, count) to.at[l][c * to.channel] = part(letters[p * count + c], l);
        }
    }

    // -- the rule ----------------------------------------------------------------------------------

    /// The step from `from` [K]; the lanes in `who` remember it.
    void step(const V* from, V* to, Mask who) {
        V* g = blocks;  // its room is free
        recall(m_.gradient, K, g);
        HOG_EACH(c, K) g[c] += heard[c];
        if (rule_.step != BLOCKS) {
            HOG_EACH(c, K) {
                V rate = wide(x_.rate);
                if (rule_.step == GIVEN)
                    for (int l = 0; l < LANES; ++l)
                        lane(rate, l) = rule_.rates[(replica_of(l) * K + c) * f.nodes + node[l]];
                to[c] = from[c] - rate * g[c];
            }
            return;
        }
        V *last = pad, *block = last + K, trust;
        recall(m_.last, K, last);
        recall(m_.damped, 1, &trust);
        recall(m_.block, K * K, block);
        V turned = wide(0.0), size = wide(0.0), before = wide(0.0);
        HOG_EACH(c, K) turned += g[c] * last[c], size += g[c] * g[c], before += last[c] * last[c];
        const Mask overshot = (turned < 0.0) & (size > before);
        trust = pick(overshot, 0.5 * trust, 1.1 * trust);
        trust = smaller(larger(trust, wide(1e-3 * x_.damping)), wide(x_.damping));
        keep(m_.last, K, g, who);
        keep(m_.damped, 1, &trust, who);
        HOG_EACH(i, K * K) block[i] += heard[K + i];
        eliminate(K, block, g, 1);
        HOG_EACH(c, K) to[c] = from[c] - trust * g[c];
    }

    /// The gradients and blocks of the nodes' energies at `at` and the inbox; the letters begin at
    /// number `from` of what is sent.
    void refresh(const V* at, int from) {
        if (rule_.step != BLOCKS) {
            V* own = blocks;
            A::local(at, views, tape, own, toward, [&] { ask(); });
            while (ask()) {}
            keep(m_.gradient, K, own);
            write_letters(from, K, toward);
            return;
        }
        V* sums = blocks;
        A::pass(at, views, tape, sums, pad);
        A::quadratic(at, tape, MAJORISED, tape, model);
        HOG_EACH(p, most) {  // the neighbours' blocks C + J' U J
            const Matrix j{model.j + p * M * K, K};
            product(M, M, K, {model.u, M}, j, pad);
            add_product(K, M, K, j.turned(), {pad, K}, model.c + p * K * K);
        }
        keep(m_.gradient, K, model.own);
        keep(m_.block, K * K, model.b);
        write_letters(from, K, model.toward);
        write_letters(from + K, K * K, model.c);
    }
};

}  // namespace hog

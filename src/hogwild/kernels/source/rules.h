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
template <class S>
class Steps : public Stars<S> {
  public:
    using A = Stars<S>;
    using typename A::Rows;
    using A::C, A::D, A::H, A::K, A::M, A::Un, A::degree, A::degrees, A::f, A::first, A::lanes,
        A::most, A::node, A::pad, A::place, A::q, A::qn, A::replica, A::s, A::there, A::w;

    Steps(const Rule& rule, const Turn& turn)
        : A(rule.filled), rule_(rule), m_(rule.memory), x_(rule.numbers), turn_(turn) {}

    /// Numbers of the letter of a gradient step.
    int letter() const { return K + (rule_.step == BLOCKS ? K * K : 0); }

    /// Take the nodes at these slots of the turn.
    void seat(const int32_t* slots, int count, int64_t replica_) {
        lanes = count, most = 0, replica = replica_;
        for (int l = 0; l < LANES; ++l) {
            slot[l] = slots[l < count ? l : 0];
            node[l] = turn_.nodes[slot[l]];
            first[l] = turn_.first[slot[l]];
            degrees[l] = degree[l] = (int)(turn_.first[slot[l] + 1] - first[l]);
            most = std::max(most, degree[l]);
        }
    }

    /// Ask for the contexts of the nodes at these slots, which a later pack will read.
    HOG_ASKS void expect(const int32_t* slots, int count, int64_t replica_) const {
#if !HOG_GPU
        for (int l = 0; l < count && !f.lane_weights; ++l) {
            const int64_t i = turn_.nodes[slots[l]];
            const int64_t many = turn_.first[slots[l] + 1] - turn_.first[slots[l]];
            const double* at = f.node_context(i, replica_, f.node_row());
            for (int64_t x = 0; x < f.node_row(); x += 8) HOG_ASK_FOR(at + x);
            at = f.edge_contexts(i, replica_, f.edge_row());
            for (int64_t x = 0; x < many * f.edge_row(); x += 8) HOG_ASK_FOR(at + x);
        }
#endif
    }

    /// Memory for packs of nodes with up to so many edges.
    void lay_out(Arena& arena, int positions) {
        Layout counted{nullptr, 0};
        lay(counted, positions);
        Layout memory{arena.room(counted.used), 0};
        lay(memory, positions);
    }

    virtual void update() {
        A::fill();
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
    V *h, *now, *views, *toward, *heard, *blocks;
    Tape tape;
    Quadratic model;

    virtual void lay(Layout& to, size_t P) {
        q = to.take(P * f.edge_row()), w = to.take(P * H), qn = to.take(f.node_row());
        h = to.take(K), now = to.take(K), views = to.take(P * K);
        toward = to.take(P * K + 2 * K), heard = to.take(letter());
        blocks = to.take(2 * K * K + 2 * K + M), tape = new_tape(to, P);
        if (rule_.step == BLOCKS || rule_.messages) model = new_model(to, P);
        pad = to.take(A::pad_size());
    }

    Tape new_tape(Layout& to, size_t P) const {
        const size_t hidden = P * H * s.message().hidden();
        return Tape{to.take(hidden), to.take(hidden), to.take(s.loop().hidden()),
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
        return field.of(node[l], replica)[c * field.channel];
    }
    double& of_edge(const Field& field, int c, int p, int l) const {
        return field.of(edge_of(p, l), replica)[c * field.channel];
    }
    void recall(const Field& field, int count, V* to) const {
        Rows at;
        at.channel = field.channel;
        for (int l = 0; l < LANES; ++l) at.at[l] = field.of(node[l], replica);
        HOG_EACH(c, count) to[c] = at[c];
    }
    /// Remember some numbers of the lanes in `who`.
    void keep(const Field& field, int count, const V* from, Mask who) const {
        for (int l = 0; l < lanes; ++l) {
            if (!who[l]) continue;
            double* at = field.of(node[l], replica);
            HOG_EACH(c, count) at[c * field.channel] = part(from[c], l);
        }
    }
    void keep(const Field& field, int count, const V* from) const {
        keep(field, count, from, Mask{} - 1);
    }
    void read(const Field& field, V* to) const {
        Rows at;
        at.channel = field.channel;
        for (int l = 0; l < LANES; ++l) at.at[l] = field.of(slot[l], replica);
        HOG_EACH(c, K) to[c] = at[c];
    }
    void write(const Field& field, const V* from) const {
        for (int l = 0; l < lanes; ++l) {
            double* at = field.of(slot[l], replica);
            HOG_EACH(c, K) at[c * field.channel] = part(from[c], l);
        }
    }
    void read_views() {
        HOG_EACH(p, most) {
            const Rows at = A::rows(turn_.inbox, p);
            const Mask m = there(p);
            HOG_EACH(c, K) views[p * K + c] = pick(m, at[c], wide(0.0));
        }
    }
    /// Sums of the letters, which begin at number `from` of the mail.
    void hear(int from) {
        const int count = letter();
        HOG_EACH(c, count) heard[c] = wide(0.0);
        HOG_EACH(p, most) {
            const Rows at = A::rows(turn_.mail, p, from);
            const Mask m = there(p);
            HOG_EACH(c, count) heard[c] += pick(m, at[c], wide(0.0));
        }
    }
    void write_letters(int from, int count, const V* letters) const {
        for (int l = 0; l < lanes; ++l)
            HOG_EACH(p, degree[l]) {
                double* at =
                    turn_.letters.of(first[l] + p, replica) + from * turn_.letters.channel;
                HOG_EACH(c, count) at[c * turn_.letters.channel] = part(letters[p * count + c], l);
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
                        lane(rate, l) = rule_.rates[(replica * K + c) * f.nodes + node[l]];
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
            A::local(at, views, tape, own, toward);
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

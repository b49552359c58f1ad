// Quadratic messages of some nodes, one node a lane. The formulas are those of
// hogwild_node/rules/messages.py, elimination.py, mode.py, trust.py and retreat.py.
//
// Arrays of variables [variables, fields] hold at v the v-th distinct neighbour of each node. Where
// no two edges into a node have one sender and none is a self-loop, variables are positions.
#pragma once
#include "rules.h"

namespace hog {

/// Points in the variables of the nodes' clusters.
struct Point {
    V *own, *near;  // [K], [variables, K]
};

template <class S>
class Messengers : public Steps<S> {
  public:
    using A = Steps<S>;
    using typename A::Rows;
    using A::C, A::D, A::H, A::K, A::M, A::degree, A::f, A::first, A::lanes, A::most, A::node, A::pad,
        A::place, A::replica, A::s, A::there;
    using A::edge_of, A::h, A::keep, A::letter, A::m_, A::model, A::now, A::of_edge, A::of_node,
        A::recall, A::rule_, A::tape, A::toward, A::turn_, A::views, A::x_;

    Messengers(const Rule& rule, const Turn& turn) : A(rule, turn) {}

    /// Numbers in a message: an upper triangle and a vector.
    int width() const { return K * (2 * K + 1) + 2 * K; }

    void update() override {
        A::fill();
        A::read(turn_.h, h);
        A::read_views();
        number_variables();
        for (int l = 0; l < LANES; ++l) known_[l] = m_.known[replica * f.nodes + node[l]] ? -1 : 0;
        remember();
        hear_messages();
        A::hear(width());
        hold_back();
        Mask sound = mode();
        const Mask resting = watch(sound);
        sound &= ~resting;
        send(resting);
        for (int l = 0; l < lanes; ++l)
            m_.known[replica * f.nodes + node[l]] = sound[l] ? 1 : 0;
        keep(m_.own, K, z.own);
        to_edges(z, K, on_edges);
        for (int l = 0; l < lanes; ++l)
            HOG_EACH(p, degree[l])
                HOG_EACH(c, K) of_edge(m_.near, c, p, l) = part(on_edges[p * K + c], l);
        HOG_EACH(c, K) now[c] = z.own[c];
        Mask all = sound;
        for (int l = lanes; l < LANES; ++l) all[l] = -1;
        if (any(~all)) {
            A::step(h, toward, ~sound & ~stays_);
            V* home = toward + K;
            recall(m_.home, K, home);
            HOG_EACH(c, K) {
                now[c] = sound ? z.own[c] : toward[c];
                now[c] = stays_ ? home[c] : now[c];
            }
            keep(m_.home, K, now, resting);
        }
        A::refresh(now, width());
        A::write(turn_.out, now);
        if (turn_.also.at) A::write(turn_.also, now);
    }

  protected:
    int variables = 0;  // largest number of distinct neighbours
    int count_[LANES];
    Mask known_, called_, stays_;
    Point z, before, trial, d, ahead, away;
    V *on_edges, *precision, *linear, *share_of, *hold, *packed, *room, *silent;
    Tape far;
    // The elimination: merged arrays of variables, terms and their sums.
    V *mx, *mc, *mj, *mt, *b, *own, *loop_j, *loops, *gn, *gi, *y, *inverse;
    V *tw, *tv, *tt, *tg, *ts, *sums, *u_, *g_, *v_, *lu, *dx, *dg, *gj;
    const V *ex, *ec, *ej, *et;

    int terms() const { return M * M + M * K + K * K + M + K; }
    void lay(Layout& to, size_t P) override {
        A::lay(to, P);
        const size_t k2 = K * K;
        for (Point* point : {&z, &before, &trial, &d, &ahead, &away})
            point->own = to.take(K), point->near = to.take(P * K);
        on_edges = to.take(P * K), precision = to.take(P * 4 * k2);
        linear = to.take(P * (2 * K)), share_of = to.take(P), packed = to.take(P * width());
        silent = to.take(P), room = to.take(P * (width() + 2 * letter() + K));
        mx = to.take(P * k2), mc = to.take(P * k2), mj = to.take(P * M * K);
        mt = to.take(P * K), gn = to.take(P * K), gi = to.take(P * K);
        y = to.take(P * k2), inverse = to.take(P * k2);
        tw = to.take(P * M * M), tv = to.take(P * M * K), tt = to.take(P * k2);
        tg = to.take(P * M), ts = to.take(P * K);
        far = A::new_tape(to, P);
        hold = to.take(K), b = to.take(k2), own = to.take(K);
        loops = to.take(2 * k2 + M * K + K), sums = to.take(2 * terms());
        u_ = to.take(M * M), g_ = to.take(2 * M * M), v_ = to.take(2 * M * K);
        lu = to.take(M * M + k2), dx = to.take(k2 + 2 * K), dg = to.take(2 * K + M);
        gj = to.take(M * K + 4 * k2 + 2 * (2 * K));
    }

    // -- variables ---------------------------------------------------------------------------------

    int variable_of(int p, int l) const {
        return f.variable ? (int)f.variable[place(p, l)] : p;
    }
    void number_variables() {
        variables = 0;
        for (int l = 0; l < LANES; ++l) {
            count_[l] = 0;
            HOG_EACH(p, degree[l]) count_[l] = std::max(count_[l], variable_of(p, l) + 1);
            variables = std::max(variables, count_[l]);
        }
        if (!f.variable) return;
        HOG_EACH(v, variables) share_of[v] = wide(0.0);
        for (int l = 0; l < LANES; ++l)
            HOG_EACH(p, degree[l])
                if (variable_of(p, l) >= 0) lane(share_of[variable_of(p, l)], l) += 1.0;
    }
    Mask has(int v) const {
        Mask m;
        for (int l = 0; l < LANES; ++l) m[l] = v < count_[l] ? -1 : 0;
        return m;
    }
    /// Sums of edges' values over each variable, and over each node's self-loops.
    void merge(const V* from, int fields, V* to, V* loop) const {
        if (!f.variable) {
            HOG_EACH(i, variables * fields) to[i] = from[i];
            return;
        }
        HOG_EACH(i, variables * fields) to[i] = wide(0.0);
        if (loop) HOG_EACH(i, fields) loop[i] = wide(0.0);
        for (int l = 0; l < LANES; ++l)
            HOG_EACH(p, degree[l]) {
                const int v = variable_of(p, l);
                V* at = v >= 0 ? to + v * fields : loop;
                if (!at) continue;
                HOG_EACH(i, fields) lane(at[i], l) += part(from[p * fields + i], l);
            }
    }
    void average(int fields, V* x) const {
        if (!f.variable) return;
        HOG_EACH(v, variables) HOG_EACH(i, fields) x[v * fields + i] /= larger(share_of[v], wide(1.0));
    }
    /// The value of each edge's variable.
    void to_edges(const Point& from, int fields, V* to) const {
        if (!f.variable) {
            HOG_EACH(i, variables * fields) to[i] = from.near[i];
            return;
        }
        HOG_EACH(i, most * fields) to[i] = wide(0.0);
        for (int l = 0; l < LANES; ++l)
            HOG_EACH(p, degree[l]) {
                const int v = variable_of(p, l);
                const V* at = v >= 0 ? from.near + v * fields : from.own;
                HOG_EACH(i, fields) lane(to[p * fields + i], l) = part(at[i], l);
            }
    }
    void copy(const Point& from, const Point& to) const {
        HOG_EACH(c, K) to.own[c] = from.own[c];
        HOG_EACH(i, variables * K) to.near[i] = from.near[i];
    }
    V largest_of(const Point& x) const {
        V most_ = wide(0.0);
        HOG_EACH(c, K) most_ = largest(most_, absolute(x.own[c]));
        HOG_EACH(v, variables) {
            const Mask m = has(v);
            HOG_EACH(c, K) most_ = largest(most_, m ? absolute(x.near[v * K + c]) : wide(0.0));
        }
        return most_;
    }

    // -- what a node knows before its update ---------------------------------------------------------

    /// The last mode of each node; for nodes without one, their embedding and their inbox.
    void remember() {
        recall(m_.own, K, before.own);
        HOG_EACH(c, K) before.own[c] = known_ ? before.own[c] : h[c];
        HOG_EACH(i, most * K) on_edges[i] = views[i];
        for (int l = 0; l < LANES; ++l)
            if (known_[l])
                HOG_EACH(p, degree[l])
                    HOG_EACH(c, K) lane(on_edges[p * K + c], l) = of_edge(m_.near, c, p, l);
        merge(on_edges, K, before.near, nullptr);
        average(K, before.near);
    }

    /// The messages heard. A neighbour that rests sends zeros; see MessageRule._heard.
    void hear_messages() {
        const int count = width();
        called_ = Mask{};
        HOG_EACH(p, most) {
            const Rows at = A::rows(turn_.mail, p);
            const Mask m = there(p);
            Mask zeros = m;
            HOG_EACH(c, count) {
                const V x = m ? at[c] : wide(0.0);
                packed[p * count + c] = x;
                zeros &= x == 0.0;
            }
            for (int l = 0; l < lanes; ++l) {
                if (p >= degree[l]) continue;
                unsigned char& quiet = m_.quiet[replica * f.edges + edge_of(p, l)];
                if (zeros[l] && !quiet) called_[l] = -1;
                quiet = zeros[l] ? 1 : 0;
            }
        }
        const V* from = packed;
        if (f.variable) {
            merge(packed, count, room, nullptr);
            average(count, room);
            from = room;
        }
        Mask some = Mask{};
        HOG_EACH(v, variables) {
            const V* at = from + v * count;
            Mask quiet = has(v);
            HOG_EACH(c, count) quiet &= at[c] == 0.0;
            silent[v] = quiet ? wide(1.0) : wide(0.0);
            some |= quiet;
            int n = 0;
            HOG_EACH(i, (2 * K)) for (int j = i; j < (2 * K); ++j, ++n)
                precision[(v * (2 * K) + i) * (2 * K) + j] = precision[(v * (2 * K) + j) * (2 * K) + i] = at[n];
            HOG_EACH(i, (2 * K)) linear[v * (2 * K) + i] = at[n + i];
        }
        if (!any(some)) return;
        look(before, MAJORISED);
        const int letters = letter();
        V* said = room;  // letters of the edges, then of the variables
        HOG_EACH(p, most) {
            const Rows at = A::rows(turn_.mail, p, count);
            const Mask m = there(p);
            HOG_EACH(c, letters) said[p * letters + c] = m ? at[c] : wide(0.0);
        }
        V *merged = said + most * letters, *felt = merged + variables * letters;
        merge(said, letters, merged, nullptr);
        merge(model.toward, K, felt, nullptr);
        V stiff = wide(0.0);
        HOG_EACH(c, K) stiff += model.b[c * K + c];
        stiff = stiff / (double)K;
        HOG_EACH(v, variables) {
            const Mask quiet = silent[v] > 0.0;
            if (!any(quiet)) continue;
            V *P = precision + v * (2 * K) * (2 * K), *L = linear + v * (2 * K);
            HOG_EACH(i, (2 * K)) HOG_EACH(j, (2 * K)) {
                V x = wide(0.0);
                if (i < K && i == j) x = stiff;
                if (i >= K && j >= K && rule_.step == BLOCKS)
                    x = merged[v * letters + K + (i - K) * K + j - K];
                P[i * (2 * K) + j] = quiet ? x : P[i * (2 * K) + j];
            }
            HOG_EACH(i, (2 * K)) {
                V x = i < K ? felt[v * K + i] : -merged[v * letters + i - K];
                HOG_EACH(j, (2 * K))
                    x += P[i * (2 * K) + j] * (j < K ? before.near[v * K + j] : before.own[j - K]);
                L[i] = quiet ? x : L[i];
            }
        }
    }

    /// The curvatures that hold nodes of little trust near their embeddings.
    void hold_back() {
        V share;
        recall(m_.share, 1, &share);
        const V doubt = 1.0 / (share * share) - 1.0;
        HOG_EACH(c, K) hold[c] = wide(0.0);
        if (!any(doubt > 0.0)) return;
        look(before, MAJORISED);
        gather(before, false);
        HOG_EACH(c, K) {
            V seen = b[c * K + c];
            HOG_EACH(v, variables) seen += precision[(v * (2 * K) + K + c) * (2 * K) + K + c];
            seen = seen < 0.0 ? wide(0.0) : seen;
            hold[c] = doubt > 0.0 ? x_.hold * doubt * seen : wide(0.0);
        }
    }

    // -- models and eliminations -------------------------------------------------------------------

    /// The quadratic models at a point.
    void look(const Point& at, Bend bend) {
        to_edges(at, K, on_edges);
        V* m = loops;  // its room is free
        A::pass(at.own, on_edges, tape, m, pad);
        A::quadratic(at.own, tape, bend, bend == AS_FAR_AS ? far : tape, model);
    }

    /// Models and messages in the variables of the clusters (Elimination.__init__ in hogwild_node).
    void gather(const Point& at, bool anchored) {
        HOG_EACH(i, K * K) b[i] = model.b[i];
        HOG_EACH(i, K) own[i] = model.own[i];
        ex = model.x, ec = model.c, ej = model.j, et = model.toward;
        if (f.variable) {
            V *lx = loops, *lc = lx + K * K, *lj = lc + K * K, *lt = lj + M * K;
            merge(model.x, K * K, mx, lx);
            merge(model.c, K * K, mc, lc);
            merge(model.j, M * K, mj, lj);
            merge(model.toward, K, mt, lt);
            HOG_EACH(i, K) HOG_EACH(j, K) b[i * K + j] += lx[i * K + j] + lx[j * K + i] + lc[i * K + j];
            HOG_EACH(i, K) own[i] += lt[i];
            ex = mx, ec = mc, ej = mj, et = mt, loop_j = lj;
        }
        if (anchored)
            HOG_EACH(i, K) {
                b[i * K + i] += hold[i];
                own[i] += hold[i] * (at.own[i] - h[i]);
            }
    }

    /// Gradients and terms of all variables, and the sums of the terms.
    void reduce(const Point& at) {
        HOG_EACH(i, terms()) sums[i] = wide(0.0);
        HOG_EACH(v, variables) {
            const Mask here = has(v);
            const V *P = precision + v * (2 * K) * (2 * K), *j = ej + v * M * K;
            V *Y = y + v * K * K, *I = inverse + v * K * K, *n = gn + v * K, *g = gi + v * K;
            HOG_EACH(i, (2 * K)) {
                V sum = -linear[v * (2 * K) + i];
                HOG_EACH(c, K) sum += P[i * (2 * K) + c] * at.near[v * K + c];
                HOG_EACH(c, K) sum += P[i * (2 * K) + K + c] * at.own[c];
                if (i < K) n[i] = et[v * K + i] + sum;
                else g[i - K] = sum;
            }
            HOG_EACH(i, K) HOG_EACH(c, K) {
                Y[i * K + c] = ex[(v * K + i) * K + c] + P[(K + i) * (2 * K) + c];
                const V there = ec[(v * K + i) * K + c] + P[i * (2 * K) + c];
                lu[i * K + c] = here ? there : wide(i == c ? 1.0 : 0.0);
                I[i * K + c] = wide(i == c ? 1.0 : 0.0);
            }
            eliminate(K, lu, I, K);
            V *jk = gj, *yk = jk + M * K;
            HOG_EACH(c, M) HOG_EACH(i, K) {
                V sum = wide(0.0);
                HOG_EACH(x, K) sum += j[c * K + x] * I[x * K + i];
                jk[c * K + i] = sum;
            }
            HOG_EACH(c, K) HOG_EACH(i, K) {
                V sum = wide(0.0);
                HOG_EACH(x, K) sum += Y[c * K + x] * I[x * K + i];
                yk[c * K + i] = sum;
            }
            V *W = tw + v * M * M, *Vv = tv + v * M * K, *T = tt + v * K * K, *w_ = tg + v * M,
              *sg = ts + v * K;
            HOG_EACH(c, M) {
                V sum = wide(0.0);
                HOG_EACH(e, M) {
                    V x = wide(0.0);
                    HOG_EACH(i, K) x += jk[c * K + i] * j[e * K + i];
                    W[c * M + e] = x;
                }
                HOG_EACH(e, K) {
                    V x = wide(0.0);
                    HOG_EACH(i, K) x += jk[c * K + i] * Y[e * K + i];
                    Vv[c * K + e] = x;
                }
                HOG_EACH(i, K) sum += jk[c * K + i] * n[i];
                w_[c] = sum;
            }
            HOG_EACH(c, K) {
                V sum = wide(0.0);
                HOG_EACH(e, K) {
                    V x = wide(0.0);
                    HOG_EACH(i, K) x += yk[c * K + i] * Y[e * K + i];
                    T[c * K + e] = x - P[(K + c) * (2 * K) + K + e];
                }
                HOG_EACH(i, K) sum += yk[c * K + i] * n[i];
                sg[c] = sum - g[c];
            }
            V* to = sums;
            auto add = [&](const V* from, int fields) {
                HOG_EACH(i, fields) to[i] += from[i];
                to += fields;
            };
            add(W, M * M), add(Vv, M * K), add(T, K * K), add(w_, M), add(sg, K);
        }
    }

    /// Eliminate the neighbours: curvature A [K, K] and gradient [K] in the node's own displacement
    /// go to dx and dg, V to v_, G to g_. `total` holds the five sums.
    void condense(const V* total) {
        const V *W = total, *Vs = W + M * M, *T = Vs + M * K, *w_ = T + K * K, *sg = w_ + M;
        HOG_EACH(i, M * K) v_[i] = f.variable ? Vs[i] - loop_j[i] : Vs[i];
        V *G = g_, *half = g_ + M * M;
        HOG_EACH(c, M) HOG_EACH(e, M) {
            V sum = wide(c == e ? 1.0 : 0.0);
            HOG_EACH(x, M) sum += model.u[c * M + x] * W[x * M + e];
            lu[c * M + e] = sum;
            half[c * M + e] = model.u[c * M + e];
        }
        eliminate(M, lu, half, M);
        HOG_EACH(c, M) HOG_EACH(e, M) G[c * M + e] = 0.5 * (half[c * M + e] + half[e * M + c]);
        V* GV = v_ + M * K;
        HOG_EACH(c, M) HOG_EACH(i, K) {
            V sum = wide(0.0);
            HOG_EACH(e, M) sum += G[c * M + e] * v_[e * K + i];
            GV[c * K + i] = sum;
        }
        HOG_EACH(i, K) {
            V sum = own[i] - sg[i];
            HOG_EACH(c, M) sum += GV[c * K + i] * w_[c];
            dg[i] = sum;
            HOG_EACH(j, K) {
                V x = b[i * K + j] - T[i * K + j];
                HOG_EACH(c, M) x += v_[c * K + i] * GV[c * K + j];
                dx[i * K + j] = x;
            }
        }
    }

    /// The displacement to the minimiser of models and messages, and the slope along it.
    V solve(const Point& to) {
        condense(sums);
        const V* w_ = sums + M * M + M * K + K * K;
        eliminate(K, dx, dg, 1);
        HOG_EACH(i, K) to.own[i] = -dg[i];
        V* tension = dg + K;
        HOG_EACH(c, M) u_[c] = w_[c];
        HOG_EACH(c, M) HOG_EACH(i, K) u_[c] += v_[c * K + i] * to.own[i];
        HOG_EACH(c, M) {
            V sum = wide(0.0);
            HOG_EACH(e, M) sum -= g_[c * M + e] * u_[e];
            tension[c] = sum;
        }
        HOG_EACH(v, variables) {
            V* pull_ = dx;
            HOG_EACH(i, K) {
                V sum = gn[v * K + i];
                HOG_EACH(c, K) sum += y[(v * K + c) * K + i] * to.own[c];
                HOG_EACH(c, M) sum += ej[(v * M + c) * K + i] * tension[c];
                pull_[i] = sum;
            }
            HOG_EACH(i, K) {
                V sum = wide(0.0);
                HOG_EACH(c, K) sum -= inverse[(v * K + i) * K + c] * pull_[c];
                to.near[v * K + i] = sum;
            }
        }
        return slope(to);
    }

    /// The derivative of models and messages along a displacement.
    V slope(const Point& along) const {
        V sum = wide(0.0);
        HOG_EACH(i, K) sum += own[i] * along.own[i];
        HOG_EACH(v, variables) HOG_EACH(i, K)
            sum += gi[v * K + i] * along.own[i] + gn[v * K + i] * along.near[v * K + i];
        return sum;
    }

    // -- the mode ----------------------------------------------------------------------------------

    void move(const Point& from, V t, const Point& along, const Point& to) const {
        HOG_EACH(i, K) to.own[i] = from.own[i] + t * along.own[i];
        HOG_EACH(i, variables * K) to.near[i] = from.near[i] + t * along.near[i];
    }
    void choose(Mask m, const Point& yes, const Point& to) const {
        HOG_EACH(i, K) to.own[i] = m ? yes.own[i] : to.own[i];
        HOG_EACH(i, variables * K) to.near[i] = m ? yes.near[i] : to.near[i];
    }

    /// The modes of the clusters, from `before` to `z`; for which nodes the search succeeded.
    Mask mode() {
        look(before, TRUE_CURVATURE);
        gather(before, true);
        reduce(before);
        V steep = solve(d);
        const Mask there =
            finite(steep) & (largest_of(d) <= x_.arrived * largest_of(before));
        copy(before, z);
        move(before, wide(1.0), d, trial);
        choose(there, trial, z);
        Mask busy = ~there, moved = Mask{};
        for (int l = lanes; l < LANES; ++l) busy[l] = 0;
        V t = wide(1.0);
        const V goal = x_.enough * absolute(steep);
        for (int pass_ = 0; pass_ < (int)x_.passes && any(busy); ++pass_) {
            move(z, t, d, trial);
            look(trial, TRUE_CURVATURE);
            gather(trial, true);
            reduce(trial);
            const V turned = slope(d);
            const Mask good = busy & (turned <= 0.5 * absolute(steep));
            const V next = solve(ahead);
            V secant = steep / (steep - turned);
            secant = secant == secant ? secant : wide(0.1);
            secant = smaller(larger(secant, wide(0.1)), wide(0.7));
            choose(good, trial, z);
            choose(good, ahead, d);
            t = good ? wide(1.0) : secant * t;
            steep = good ? next : steep;
            moved |= good;
            busy &= ~(good & (absolute(steep) <= goal));
        }
        return there | (finite(steep) & moved);
    }

    // -- trust and retreat, lane by lane -----------------------------------------------------------

    static double at_least(double x, double least) { return x < least ? least : x; }
    static double larger_or_nan(double a, double b) { return a > b || a != a ? a : b; }

    /// Update the trust of the nodes and count their rests; returns which nodes rest now, and sets
    /// which of them stay at home.
    Mask watch(Mask sound) {
        Mask resting = Mask{};
        stays_ = Mask{};
        for (int l = 0; l < lanes; ++l) {
            const bool rests = of_node(m_.left, 0, l) > 0.0;
            double size = 0, after = 0, home = 0;
            HOG_EACH(c, K) {
                const double x = std::fabs(part(before.own[c], l)), x2 = std::fabs(part(z.own[c], l));
                size = larger_or_nan(larger_or_nan(size, x), x2);
                after = larger_or_nan(after, x2);
                home = larger_or_nan(home, std::fabs(of_node(m_.home, c, l)));
            }
            const bool beyond = of_node(m_.times, 0, l) > 0.0 && !(after <= x_.leash * home);
            const bool lost = trust(l, sound[l] && !rests, size, 1e3 * EPSILON * after, !rests,
                                    called_[l] || beyond);
            const double times = std::min(of_node(m_.times, 0, l) + lost, x_.most);
            const double whole = x_.rest * std::exp2(times);
            const double left = lost ? whole : at_least(of_node(m_.left, 0, l) - 1.0, 0.0);
            of_node(m_.times, 0, l) = times, of_node(m_.left, 0, l) = left;
            stays_[l] = left > 0.5 * whole ? -1 : 0;
            resting[l] = rests || lost ? -1 : 0;
        }
        return resting;
    }
    static constexpr double EPSILON = std::numeric_limits<double>::epsilon();

    bool trust(int l, bool valid, double size, double noise, bool awake, bool astray) {
        const int64_t at = replica * f.nodes + node[l];
        const double none = std::numeric_limits<double>::quiet_NaN();
        double far_ = 0, along = 0, last = 0;
        HOG_EACH(c, K) {
            const double move_ = valid ? part(z.own[c], l) - part(before.own[c], l) : none;
            double& old = of_node(m_.move, c, l);
            far_ = larger_or_nan(std::fabs(move_), far_);
            along += move_ * old;
            last = std::max(last, std::fabs(old));
            old = move_ == move_ ? move_ : 0.0;
        }
        const bool turned = along < 0.0 && far_ >= x_.turn * last && far_ >= x_.swing * size;
        const bool calm = far_ < x_.swing * size;
        const double turns = at_least(of_node(m_.turns, 0, l) + turned - x_.ease * calm, 0.0);
        const double count = of_node(m_.count, 0, l) + 1.0;
        const bool due = std::fmod(count, x_.window) == 0.0;
        const double peak = larger_or_nan(of_node(m_.peak, 0, l), far_), was = of_node(m_.before, 0, l);
        const bool calmer = due && (peak < was || peak <= noise);
        const bool wilder = due && !calmer && !(peak <= x_.margin * was) && awake;
        const double points = (double)wilder - (double)calmer, share = of_node(m_.share, 0, l);
        const double score = at_least(of_node(m_.score, 0, l) + points, -x_.credit);
        const double favour = at_least(of_node(m_.favour, 0, l) - points, 0.0);
        const bool turning = turns >= x_.strikes;
        const bool lost = ((turning && share <= x_.doubt) || astray) && awake;
        const bool down = score >= x_.strikes || turning || lost;
        const bool up = !down && share < 1.0 &&
                        favour >= 2.0 * x_.strikes * std::exp2(of_node(m_.failures, 0, l));
        of_node(m_.count, 0, l) = count;
        of_node(m_.share, 0, l) = at_least(down ? 0.5 * share : up ? 2.0 * share : share, x_.floor);
        of_node(m_.failures, 0, l) = std::min(of_node(m_.failures, 0, l) + down, x_.memory);
        of_node(m_.score, 0, l) = down || up ? 0.0 : score;
        of_node(m_.favour, 0, l) = down || up ? 0.0 : favour;
        of_node(m_.turns, 0, l) = down ? 0.0 : turns;
        of_node(m_.before, 0, l) = due && peak == peak ? peak : was;
        of_node(m_.peak, 0, l) = due || lost ? 0.0 : peak;
        m_.lost[at] = lost ? 1 : 0;
        return lost;
    }

    // -- the messages to send ----------------------------------------------------------------------

    void send(Mask resting) {
        V share;
        recall(m_.share, 1, &share);
        const V reach = x_.reach / (share * share);
        HOG_EACH(i, K) away.own[i] = z.own[i] + reach * (before.own[i] - z.own[i]);
        HOG_EACH(i, variables * K)
            away.near[i] = z.near[i] + reach * (before.near[i] - z.near[i]);
        to_edges(away, K, on_edges);
        A::pass(away.own, on_edges, far, loops, pad);
        look(z, AS_FAR_AS);
        gather(z, true);
        reduce(z);
        const int count = width();
        V *others = sums + terms(), *P = gj + M * K, *at = P + (2 * K) * (2 * K);
        HOG_EACH(v, variables) {
            const V* term[] = {tw + v * M * M, tv + v * M * K, tt + v * K * K, tg + v * M, ts + v * K};
            const int fields[] = {M * M, M * K, K * K, M, K};
            int n = 0;
            HOG_EACH(part, 5) HOG_EACH(i, fields[part]) {
                others[n] = sums[n] - term[part][i];
                ++n;
            }
            condense(others);
            const V *w_ = others + M * M + M * K + K * K, *j = ej + v * M * K;
            HOG_EACH(c, M) HOG_EACH(i, K) {
                V sum = wide(0.0);
                HOG_EACH(e, M) sum += g_[c * M + e] * j[e * K + i];
                gj[c * K + i] = sum;
            }
            HOG_EACH(a, K) HOG_EACH(c, K) {
                P[a * (2 * K) + c] = 0.5 * (dx[a * K + c] + dx[c * K + a]);
                V cross = ex[(v * K + a) * K + c], there = ec[(v * K + a) * K + c],
                  back = ec[(v * K + c) * K + a];
                HOG_EACH(e, M) {
                    cross -= v_[e * K + a] * gj[e * K + c];
                    there += j[e * K + a] * gj[e * K + c];
                    back += j[e * K + c] * gj[e * K + a];
                }
                P[a * (2 * K) + K + c] = P[(K + c) * (2 * K) + a] = cross;
                P[(K + a) * (2 * K) + K + c] = 0.5 * (there + back);
            }
            V* to = packed + v * count;
            n = 0;
            HOG_EACH(a, (2 * K)) for (int c = a; c < (2 * K); ++c) to[n++] = P[a * (2 * K) + c];
            HOG_EACH(i, K) {
                at[i] = z.own[i];
                at[K + i] = z.near[v * K + i];
            }
            HOG_EACH(a, (2 * K)) {
                V sum = a < K ? -dg[a] : -et[v * K + a - K];
                if (a >= K) HOG_EACH(e, M) sum += gj[e * K + a - K] * w_[e];
                HOG_EACH(c, (2 * K)) sum += P[a * (2 * K) + c] * at[c];
                to[n++] = sum;
            }
        }
        for (int l = 0; l < lanes; ++l)
            HOG_EACH(p, degree[l]) {
                const int v = variable_of(p, l);
                double* to = turn_.letters.of(first[l] + p, replica);
                bool good = true;
                if (v >= 0) HOG_EACH(c, count) good = good && all_finite(part(packed[v * count + c], l));
                HOG_EACH(c, count) {
                    double& last = of_edge(m_.sent, c, p, l);
                    const double fresh = v < 0 ? 0.0 : part(packed[v * count + c], l);
                    last = resting[l] ? 0.0 : good ? fresh : last;
                    to[c * turn_.letters.channel] = last;
                }
            }
    }
};

}  // namespace hog

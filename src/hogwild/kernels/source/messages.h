// Quadratic messages of some nodes, one node a lane. The formulas are those of
// hogwild_node/rules/messages.py, mode.py and safeguard.py.
#pragma once
#include "clusters.h"

namespace hog {

template <class S>
class Messengers : public Clusters<S> {
  public:
    using A = Clusters<S>;
    using typename A::Rows;
    using A::K, A::M, A::degree, A::f, A::first, A::lanes, A::most, A::node, A::pad, A::replica,
        A::there;
    using A::edge_of, A::h, A::keep, A::letter, A::m_, A::model, A::now, A::of_edge, A::of_node,
        A::recall, A::rule_, A::toward, A::turn_, A::views, A::x_;
    using A::b, A::condense, A::copy, A::dg, A::dx, A::far, A::g_, A::gather, A::gj, A::hold, A::largest_of,
        A::linear, A::look, A::messages, A::precision, A::reduce, A::slope, A::solve, A::sums, A::terms, A::tg,
        A::ts, A::tt, A::tv, A::tw, A::v_, A::width;

    Messengers(const Rule& rule, const Turn& turn) : A(rule, turn) {}

    void update() override {
        A::fill();
        A::read(turn_.h, h);
        A::read_views();
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
        for (int l = 0; l < lanes; ++l)
            HOG_EACH(p, degree[l])
                HOG_EACH(c, K) of_edge(m_.near, c, p, l) = part(z.near[p * K + c], l);
        HOG_EACH(c, K) now[c] = z.own[c];
        Mask all = sound;
        for (int l = lanes; l < LANES; ++l) all[l] = -1;
        if (any(~all)) {
            A::step(h, toward, ~sound & ~stays_);
            V* home = toward + K;
            recall(m_.home, K, home);
            HOG_EACH(c, K) {
                now[c] = pick(sound, z.own[c], toward[c]);
                now[c] = pick(stays_, home[c], now[c]);
            }
            keep(m_.home, K, now, resting);
        }
        A::refresh(now, width());
        A::write(turn_.out, now);
        if (turn_.also.at) A::write(turn_.also, now);
    }

  protected:
    Mask known_, called_, stays_;
    Point z, before, trial, d, ahead, away;
    V *packed, *room, *silent;

    void lay(Layout& to, size_t P) override {
        A::lay(to, P);
        for (Point* point : {&z, &before, &trial, &d, &ahead, &away})
            point->own = to.take(K), point->near = to.take(P * K);
        packed = to.take(P * width()), silent = to.take(P);
        room = to.take(P * letter());
    }

    // -- what a node knows before its update ---------------------------------------------------------

    /// The last mode of each node; for nodes without one, their embedding and their inbox.
    void remember() {
        recall(m_.own, K, before.own);
        HOG_EACH(c, K) before.own[c] = pick(known_, before.own[c], h[c]);
        HOG_EACH(i, most * K) before.near[i] = views[i];
        for (int l = 0; l < LANES; ++l)
            if (known_[l])
                HOG_EACH(p, degree[l])
                    HOG_EACH(c, K) lane(before.near[p * K + c], l) = of_edge(m_.near, c, p, l);
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
                const V x = pick(m, at[c], wide(0.0));
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
        Mask some = Mask{};
        HOG_EACH(v, most) {
            const V* at = packed + v * count;
            Mask quiet = there(v);
            HOG_EACH(c, count) quiet &= at[c] == 0.0;
            silent[v] = pick(quiet, wide(1.0), wide(0.0));
            some |= quiet;
            int n = 0;
            HOG_EACH(i, (2 * K)) for (int j = i; j < (2 * K); ++j, ++n)
                precision[(v * (2 * K) + i) * (2 * K) + j] = precision[(v * (2 * K) + j) * (2 * K) + i] = at[n];
            HOG_EACH(i, (2 * K)) linear[v * (2 * K) + i] = at[n + i];
        }
        if (!any(some)) return;
        look(before, MAJORISED);
        const int letters = letter();
        HOG_EACH(p, most) {
            const Rows at = A::rows(turn_.mail, p, count);
            const Mask m = there(p);
            HOG_EACH(c, letters) room[p * letters + c] = pick(m, at[c], wide(0.0));
        }
        V stiff = wide(0.0);
        HOG_EACH(c, K) stiff += model.b[c * K + c];
        stiff = stiff / (double)K;
        HOG_EACH(v, most) {
            const Mask quiet = silent[v] > 0.0;
            if (!any(quiet)) continue;
            V *P = precision + v * (2 * K) * (2 * K), *L = linear + v * (2 * K);
            HOG_EACH(i, (2 * K)) HOG_EACH(j, (2 * K)) {
                V x = wide(0.0);
                if (i < K && i == j) x = stiff;
                if (i >= K && j >= K && rule_.step == BLOCKS)
                    x = room[v * letters + K + (i - K) * K + j - K];
                P[i * (2 * K) + j] = pick(quiet, x, P[i * (2 * K) + j]);
            }
            HOG_EACH(i, (2 * K)) {
                V x = i < K ? model.toward[v * K + i] : -room[v * letters + i - K];
                HOG_EACH(j, (2 * K))
                    x += P[i * (2 * K) + j] * (j < K ? before.near[v * K + j] : before.own[j - K]);
                L[i] = pick(quiet, x, L[i]);
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
            HOG_EACH(v, most) seen += precision[(v * (2 * K) + K + c) * (2 * K) + K + c];
            seen = pick(seen < 0.0, wide(0.0), seen);
            hold[c] = pick(doubt > 0.0, x_.hold * doubt * seen, wide(0.0));
        }
    }

    // -- the mode ----------------------------------------------------------------------------------

    void move(const Point& from, V t, const Point& along, const Point& to) const {
        HOG_EACH(i, K) to.own[i] = from.own[i] + t * along.own[i];
        HOG_EACH(i, most * K) to.near[i] = from.near[i] + t * along.near[i];
    }
    void choose(Mask m, const Point& yes, const Point& to) const {
        HOG_EACH(i, K) to.own[i] = pick(m, yes.own[i], to.own[i]);
        HOG_EACH(i, most * K) to.near[i] = pick(m, yes.near[i], to.near[i]);
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
            secant = pick(secant == secant, secant, wide(0.1));
            secant = smaller(larger(secant, wide(0.1)), wide(0.7));
            choose(good, trial, z);
            choose(good, ahead, d);
            t = pick(good, wide(1.0), secant * t);
            steep = pick(good, next, steep);
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
        HOG_EACH(i, most * K)
            away.near[i] = z.near[i] + reach * (before.near[i] - z.near[i]);
        A::pass(away.own, away.near, far, messages, pad);
        look(z, AS_FAR_AS);
        gather(z, true);
        reduce(z);
        const int count = width();
        V *others = sums + terms(), *P = gj + M * K, *at = P + 4 * K * K, *jgj = at + 2 * K;
        HOG_EACH(v, most) {
            const V* term[] = {tw + v * M * M, tv + v * M * K, tt + v * K * K, tg + v * M, ts + v * K};
            const int fields[] = {M * M, M * K, K * K, M, K};
            int n = 0;
            HOG_EACH(part, 5) HOG_EACH(i, fields[part]) {
                others[n] = sums[n] - term[part][i];
                ++n;
            }
            condense(others);
            const V *w_ = others + M * M + M * K + K * K, *x = model.x + v * K * K, *c_ = model.c + v * K * K;
            const Matrix j{model.j + v * M * K, K};
            product(M, M, K, {g_, M}, j, gj);
            product(K, M, K, j.turned(), {gj, K}, jgj);
            HOG_EACH(a, K) HOG_EACH(c, K) {
                V cross = x[a * K + c];
                HOG_EACH(e, M) cross -= v_[e * K + a] * gj[e * K + c];
                P[a * 2 * K + c] = 0.5 * (dx[a * K + c] + dx[c * K + a]);
                P[a * 2 * K + K + c] = P[(K + c) * 2 * K + a] = cross;
                P[(K + a) * 2 * K + K + c] =
                    0.5 * (c_[a * K + c] + jgj[a * K + c] + (c_[c * K + a] + jgj[c * K + a]));
            }
            V* to = packed + v * count;
            HOG_EACH(a, 2 * K) for (int c = a; c < 2 * K; ++c) *to++ = P[a * 2 * K + c];
            HOG_EACH(i, K) {
                at[i] = z.own[i], at[K + i] = z.near[v * K + i];
                to[i] = -dg[i], to[K + i] = -model.toward[v * K + i];
            }
            add_product(K, M, 1, Matrix{gj, K}.turned(), {w_, 1}, to + K);
            add_product(2 * K, 2 * K, 1, {P, 2 * K}, {at, 1}, to);
        }
        for (int l = 0; l < lanes; ++l)
            HOG_EACH(p, degree[l]) {
                const V* const fresh = packed + p * count;
                double* to = turn_.letters.of(first[l] + p, replica);
                bool good = true;
                HOG_EACH(c, count) good = good && all_finite(part(fresh[c], l));
                HOG_EACH(c, count) {
                    double& last = of_edge(m_.sent, c, p, l);
                    last = resting[l] ? 0.0 : good ? part(fresh[c], l) : last;
                    to[c * turn_.letters.channel] = last;
                }
            }
    }
};

}  // namespace hog

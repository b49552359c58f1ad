// The clusters of some nodes, one node a lane: neighbours as variables, and Gaussian elimination. The
// formulas are those of hogwild_node/rules/elimination.py. All edges into a node have different senders,
// and none is a self-loop: the variable of an edge is its position.
#pragma once
#include "rules.h"

namespace hog {

/// Points in the variables of the nodes' clusters.
struct Point {
    V *own, *near;  // [K], [positions, K]
};

/// Nodes with their neighbours, what they heard of them, and eliminations.
template <class S>
class Clusters : public Steps<S> {
  public:
    using A = Steps<S>;
    using A::C, A::D, A::H, A::K, A::M, A::h, A::model, A::most, A::pad, A::tape, A::there;

    Clusters(const Rule& rule, const Turn& turn) : A(rule, turn) {}

    /// Numbers in a message: an upper triangle and a vector.
    int width() const { return K * (2 * K + 1) + 2 * K; }

  protected:
    V *hold, *precision, *linear;  // messages heard: [positions, 2K, 2K], [positions, 2K]
    Tape far;
    // The elimination: terms and their sums.
    V *b, *own, *messages, *gn, *gi, *y, *inverse;
    V *tw, *tv, *tt, *tg, *ts, *sums, *u_, *g_, *v_, *lu, *dx, *dg, *gj;

    int terms() const { return M * M + M * K + K * K + M + K; }
    void lay(Layout& to, size_t P) override {
        A::lay(to, P);
        const size_t k2 = K * K;
        precision = to.take(P * 4 * k2), linear = to.take(P * 2 * K);
        gn = to.take(P * K), gi = to.take(P * K);
        y = to.take(P * k2), inverse = to.take(P * k2);
        tw = to.take(P * M * M), tv = to.take(P * M * K), tt = to.take(P * k2);
        tg = to.take(P * M), ts = to.take(P * K);
        far = A::new_tape(to, P);
        hold = to.take(K), b = to.take(k2), own = to.take(K);
        messages = to.take(M), sums = to.take(2 * terms());
        u_ = to.take(M * M), g_ = to.take(2 * M * M), v_ = to.take(2 * M * K);
        lu = to.take(M * M + k2), dx = to.take(k2 + 2 * K), dg = to.take(2 * K + M);
        gj = to.take(M * K + 5 * k2 + 2 * K);
    }

    void copy(const Point& from, const Point& to) const {
        HOG_EACH(c, K) to.own[c] = from.own[c];
        HOG_EACH(i, most * K) to.near[i] = from.near[i];
    }
    V largest_of(const Point& x) const {
        V most_ = wide(0.0);
        HOG_EACH(c, K) most_ = largest(most_, absolute(x.own[c]));
        HOG_EACH(v, most) {
            const Mask m = there(v);
            HOG_EACH(c, K) most_ = largest(most_, pick(m, absolute(x.near[v * K + c]), wide(0.0)));
        }
        return most_;
    }

    // -- models and eliminations -------------------------------------------------------------------

    /// The quadratic models at a point.
    void look(const Point& at, Bend bend) {
        A::pass(at.own, at.near, tape, messages, pad);
        A::quadratic(at.own, tape, bend, bend == AS_FAR_AS ? far : tape, model);
    }

    /// Models and messages in the variables of the clusters (Elimination.__init__ in hogwild_node).
    void gather(const Point& at, bool anchored) {
        HOG_EACH(i, K * K) b[i] = model.b[i];
        HOG_EACH(i, K) own[i] = model.own[i];
        if (anchored)
            HOG_EACH(i, K) {
                b[i * K + i] += hold[i];
                own[i] += hold[i] * (at.own[i] - h[i]);
            }
    }

    /// Gradients and terms of all neighbours, and the sums of the terms.
    void reduce(const Point& at) {
        HOG_EACH(i, terms()) sums[i] = wide(0.0);
        HOG_EACH(v, most) {
            const Mask here = there(v);
            const Matrix P{precision + v * 4 * K * K, 2 * K}, j{model.j + v * M * K, K};
            V *Y = y + v * K * K, *I = inverse + v * K * K, *n = gn + v * K, *g = gi + v * K;
            HOG_EACH(i, 2 * K) {
                V sum = -linear[v * 2 * K + i];
                HOG_EACH(c, K) sum += P(i, c) * at.near[v * K + c];
                HOG_EACH(c, K) sum += P(i, K + c) * at.own[c];
                if (i < K) n[i] = model.toward[v * K + i] + sum;
                else g[i - K] = sum;
            }
            HOG_EACH(i, K) HOG_EACH(c, K) {
                Y[i * K + c] = model.x[(v * K + i) * K + c] + P(K + i, c);
                const V there = model.c[(v * K + i) * K + c] + P(i, c);
                lu[i * K + c] = pick(here, there, wide(i == c ? 1.0 : 0.0));
                I[i * K + c] = wide(i == c ? 1.0 : 0.0);
            }
            eliminate(K, lu, I, K);
            V *jk = gj, *yk = jk + M * K;
            product(M, K, K, j, {I, K}, jk);
            product(K, K, K, {Y, K}, {I, K}, yk);
            V *W = tw + v * M * M, *Vv = tv + v * M * K, *T = tt + v * K * K, *w_ = tg + v * M,
              *sg = ts + v * K;
            product(M, K, M, {jk, K}, j.turned(), W);
            product(M, K, K, {jk, K}, Matrix{Y, K}.turned(), Vv);
            product(K, K, K, {yk, K}, Matrix{Y, K}.turned(), T);
            HOG_EACH(c, K) HOG_EACH(e, K) T[c * K + e] -= P(K + c, K + e);
            product(M, K, 1, {jk, K}, {n, 1}, w_);
            product(K, K, 1, {yk, K}, {n, 1}, sg);
            HOG_EACH(c, K) sg[c] -= g[c];
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
        HOG_EACH(i, M * K) v_[i] = Vs[i];
        V *G = g_, *half = g_ + M * M, *GV = v_ + M * K;
        HOG_EACH(i, M * M) lu[i] = wide(i % (M + 1) ? 0.0 : 1.0), half[i] = model.u[i];
        add_product(M, M, M, {model.u, M}, {W, M}, lu);
        eliminate(M, lu, half, M);
        HOG_EACH(c, M) HOG_EACH(e, M) G[c * M + e] = 0.5 * (half[c * M + e] + half[e * M + c]);
        product(M, M, K, {G, M}, {v_, K}, GV);
        HOG_EACH(i, K) dg[i] = own[i] - sg[i];
        add_product(K, M, 1, Matrix{GV, K}.turned(), {w_, 1}, dg);
        HOG_EACH(i, K * K) dx[i] = b[i] - T[i];
        add_product(K, M, K, Matrix{v_, K}.turned(), {GV, K}, dx);
    }

    /// The displacement to the minimiser of models and messages, and the slope along it.
    V solve(const Point& to) {
        condense(sums);
        const V* w_ = sums + M * M + M * K + K * K;
        eliminate(K, dx, dg, 1);
        HOG_EACH(i, K) to.own[i] = -dg[i];
        V* tension = dg + K;
        HOG_EACH(c, M) u_[c] = w_[c];
        add_product(M, K, 1, {v_, K}, {to.own, 1}, u_);
        product(M, M, 1, {g_, M}, {u_, 1}, tension);
        HOG_EACH(v, most) {
            V *pull_ = dx, *near = to.near + v * K;
            HOG_EACH(i, K) {
                V sum = gn[v * K + i];
                HOG_EACH(c, K) sum += y[(v * K + c) * K + i] * to.own[c];
                HOG_EACH(c, M) sum -= model.j[(v * M + c) * K + i] * tension[c];
                pull_[i] = -sum;
            }
            product(K, K, 1, {inverse + v * K * K, K}, {pull_, 1}, near);
        }
        return slope(to);
    }

    /// The derivative of models and messages along a displacement.
    V slope(const Point& along) const {
        V sum = wide(0.0);
        HOG_EACH(i, K) sum += own[i] * along.own[i];
        HOG_EACH(v, most) HOG_EACH(i, K)
            sum += gi[v * K + i] * along.own[i] + gn[v * K + i] * along.near[v * K + i];
        return sum;
    }
};

}  // namespace hog

// The energy of one graph and one replica: value, gradient, Hessian, Newton's method, adjoint.
//
//     E(H) = sum over i of u(m_i, h_i) + beta/2 |h_i|^2,
//     m_i  = sum over edges e into i of w_e m(h_i, h_j) + w_i m_0(h_i).
//
// hogwild_node/round.py writes the same arithmetic for torch and NumPy; the tests compare both. A
// node's block of the Hessian, the coupling of an edge and the couplings between two senders of one
// receiver follow from the local quadratic models (hogwild_node/quadratic.py).
#pragma once
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "fronts.h"
#include "picnn.h"
#include "plan.h"

namespace hog {

/// The sizes of a model. Parameters of one replica: `heads` message networks, the self message, the
/// update; each has its weights and then its feature path (Net).
struct Sizes {
    int k, channels, heads, concat, ends;
    int sent;  // whether the senders' part of o_0 is given on nodes (otherwise on edges)
    double beta;
    Net message, loop, update;

    int merged() const { return channels * (concat ? heads : 1); }
    int parameters() const {
        return heads * message.parameters() + loop.parameters() + update.parameters();
    }
    /// Rows of o_0 on nodes: message (own, then sent), self message, update.
    int node_rows() const {
        return heads * message.rows0 * ((ends == 2) + sent) + loop.rows0 + update.rows0;
    }
    int edge_rows() const { return heads * message.rows0; }
};

/// What a batch of graphs and replicas poses. Arrays are row-major with the last dimension fastest.
struct Posed {
    const Plan* plan;
    const Sizes* sizes;
    int64_t replicas;
    const double* parameters;   // [R, parameters]
    const double* nodes;        // o_0 on nodes, [R, node rows, N]
    const double* edges;        // o_0 on edges, [R, edge rows, E], or nullptr
    const double* weight;       // [R or 1, H or 1, E], or nullptr: all one
    int64_t weight_replica, weight_head;  // strides of the weight, zero where it is shared
    const double* loop_weight;  // [N], or nullptr
};

/// How Newton's method runs (hogwild/solvers/newton.py).
struct Options {
    double atol, rtol;
    int64_t max_iter, max_backtracks, patience;
};

enum Status { CONVERGED = 0, MAX_ITERATIONS = 1, STALLED = 2, NOT_FINITE = 3 };

/// Where the gradients of a batch go; same shapes as in Posed, weights with all replicas and heads.
struct Cotangents {
    double *parameters, *nodes, *edges, *weight, *loop_weight;
};

struct Adder {
    V* to;
    HOG_METHOD void add(int i, V x) const { to[i] += x; }
};

/// Softplus where a parameter must be nonnegative; `slope` gets the derivative, if it is not null.
inline void effective(const Net& net, const double* raw, double* out, double* slope) {
    for (int i = 0; i < net.parameters(); ++i) {
        out[i] = raw[i];
        if (slope) slope[i] = 1.0;
    }
    auto bend = [&](int i) {
        V s;
        const V x = softplus(wide(raw[i]), s);
        out[i] = lane(x, 0);
        if (slope) slope[i] = lane(s, 0);
    };
    for (int l = 0; l < net.L; ++l) {
        const int width = net.w[l];
        for (int i = 0; i < width; ++i)
            for (int j = 0; j < net.D; ++j)
                if (net.rises(j)) bend(net.p[l] + i * net.D + j);
        for (int i = 0; i < width * net.before(l); ++i) bend(net.p[l] + width * net.D + i);
    }
}

#ifdef HOG_SEPARATE
/// The same for sanitizers: every block is an allocation, so that they see where it ends.
class Arena {
  public:
    void reset() { blocks_.clear(); }
    void reserve(size_t) {}
    V* take(size_t vectors) {
        const size_t bytes = std::max<size_t>(vectors, 1) * sizeof(V);
        blocks_.emplace_back(std::aligned_alloc(sizeof(V), bytes), &std::free);
        if (!blocks_.back()) throw std::bad_alloc();
        return (V*)std::memset(blocks_.back().get(), 0xff, bytes);  // NaN
    }

  private:
    std::vector<std::unique_ptr<void, void (*)(void*)>> blocks_;
};
#else
/// Memory of one thread, in blocks of vectors; it grows and is used again.
class Arena {
  public:
    void reset() { used_ = 0; }
    void reserve(size_t vectors) {
        if (room_.size() < (vectors + 1) * LANES) room_.resize((vectors + 1) * LANES);
    }
    V* take(size_t vectors) {
        const size_t address = (size_t)room_.data();
        V* base = (V*)((address + sizeof(V) - 1) / sizeof(V) * sizeof(V));
        V* out = base + used_;
        used_ += vectors;
        return out;
    }

  private:
    std::vector<double> room_;
    size_t used_ = 0;
};
#endif

/// One graph and one replica.
class Task {
  public:
    double value = 0, noise = 0, residual = 0, scale = 0;
    double *h, *g, *d, *trial;  // [n, k]

    Task(const Posed& posed, const double* parameters, int64_t graph, int64_t replica, Arena& arena)
        : p_(posed), s_(*posed.sizes), g_(*posed.plan->of[graph]), w_(parameters), graph_(graph),
          replica_(replica), n(g_.n), e(g_.e), K(s_.k), C(s_.channels), H(s_.heads),
          M(s_.merged()), D(s_.ends * s_.k), Un(s_.merged() + s_.k),
          np((n + LANES - 1) / LANES), ep((e + LANES - 1) / LANES) {
        const Net &me = s_.message, &lo = s_.loop, &up = s_.update;
        const int big = std::max({me.widest, lo.widest, up.widest});
        const int wide_net = std::max({D * me.hidden, K * lo.hidden, Un * up.hidden});
        const int q = std::max({me.context(), lo.context(), up.context()});
        const int rows = std::max({me.rows0, lo.rows0, up.rows0});
        pad_size_ = wide_net + 12 * big + 6 * std::max(D, Un) + 8 * std::max({me.hidden, lo.hidden, up.hidden}) + 2 * Un * Un + 2 * D * D + 2 * M * D + 2 * q + 2 * rows + 8 * M + 64;
        const size_t E = ep, N = np;
        size_t total = 0;
        auto count = [&](size_t x) { total += x; };
        struct Want { V** at; size_t size; };
        const Want wants[] = {
            {&qm, E * H * me.context()}, {&ql, N * lo.context()}, {&qu, N * up.context()},
            {&sm, E * H * me.hidden}, {&am, E * H * me.hidden}, {&sl, N * lo.hidden},
            {&al, N * lo.hidden}, {&su, N * up.hidden}, {&au, N * up.hidden},
            {&wt, E * H}, {&lw, N}, {&O, E * M}, {&m, N * M}, {&mb, N * M}, {&U, N * Un * Un},
            {&A, N * M * K}, {&B, N * K * K}, {&half, N * M * K}, {&Ji, E * M * K},
            {&Jj, E * M * K}, {&UJ, E * M * K}, {&Hii, E * K * K}, {&X, E * K * K},
            {&Hjj, E * K * K}, {&G, E * D}, {&md, N * M}, {&mt, N * M}, {&pad_, (size_t)pad_size_},
            {&star_, (size_t)most_senders() * 2 * M * K / LANES + 1},
        };
        for (const Want& want : wants) {
            // Places in these arrays are 32-bit numbers below: 64-bit ones are slower.
            if (want.size >= INT32_MAX / LANES) throw std::length_error("an array has 16 GiB");
            count(want.size);
        }
        const size_t vector = (size_t)n * K / LANES + 1;
        const size_t numbers = front_numbers(g_, K) / LANES + 1;
        const size_t panel = panel_numbers(g_, K) / LANES + 1;
        total += 5 * vector + numbers + panel;
        arena.reset();
        arena.reserve(total);
        for (const Want& want : wants) *want.at = arena.take(want.size);
        for (double** at : {&h, &g, &sc, &d, &trial}) *at = (double*)arena.take(vector);
        double* memory = (double*)arena.take(numbers);
        fronts_ = Fronts{&g_, K, memory, (double*)arena.take(panel)};
    }

    /// Everything that no iteration changes: the contexts of all networks, and the weights.
    void fill_contexts() {
        const int64_t n0 = p_.plan->first[graph_], e0 = p_.plan->edge_first[graph_];
        V* o0 = pad_;
        for (int b = 0; b < ep; ++b) {
            for (int hd = 0; hd < H; ++hd) {
                read_edges(b, hd, o0);
                hog::fill(s_.message, head(hd) + s_.message.weights(), o0, qm + (b * H + hd) * s_.message.context(), o0 + s_.message.rows0);
                V w = wide(0.0);
                for (int l = 0; l < LANES && b * LANES + l < e; ++l) {
                    double x = s_.concat ? 1.0 : 1.0 / H;
                    if (p_.weight)
                        x *= p_.weight[replica_ * p_.weight_replica + hd * p_.weight_head +
                                       p_.plan->edge[e0 + b * LANES + l]];
                    lane(w, l) = x;
                }
                wt[b * H + hd] = w;
            }
        }
        for (int b = 0; b < np; ++b) {
            read_nodes(loop_row(), s_.loop.rows0, b, o0);
            hog::fill(s_.loop, loop() + s_.loop.weights(), o0, ql + b * s_.loop.context(), o0 + s_.loop.rows0);
            read_nodes(loop_row() + s_.loop.rows0, s_.update.rows0, b, o0);
            hog::fill(s_.update, update() + s_.update.weights(), o0, qu + b * s_.update.context(), o0 + s_.update.rows0);
            V w = wide(0.0);
            for (int l = 0; l < LANES && b * LANES + l < n; ++l)
                lane(w, l) = p_.loop_weight ? p_.loop_weight[n0 + b * LANES + l] : 1.0;
            lw[b] = w;
        }
    }

    void start(const double* h0) {  // [R, k, N], or nullptr: zero
        const int64_t n0 = p_.plan->first[graph_], N = p_.plan->nodes;
        for (int i = 0; i < n; ++i)
            for (int c = 0; c < K; ++c)
                h[i * K + c] = h0 ? h0[(replica_ * K + c) * N + n0 + i] : 0.0;
    }
    void write(const double* x, double* out) const {
        const int64_t n0 = p_.plan->first[graph_], N = p_.plan->nodes;
        for (int i = 0; i < n; ++i)
            for (int c = 0; c < K; ++c) out[(replica_ * K + c) * N + n0 + i] = x[i * K + c];
    }

    /// The energy at x, and the rounding error of it.
    void evaluate(const double* x) {
        V* y = pad_;
        V* out = y + std::max(D, Un);
        V* pad = out + std::max(M, C);
        const Net &me = s_.message, &lo = s_.loop, &up = s_.update;
        for (int b = 0; b < ep; ++b) {
            read_ends(x, b, y);
            V* o = O + b * M;
            for (int c = 0; c < M; ++c) o[c] = wide(0.0);
            for (int hd = 0; hd < H; ++hd) {
                const int at = b * H + hd, first = s_.concat ? hd * C : 0;
                forward(me, head(hd), qm + at * me.context(), y, sm + at * me.hidden,
                        am + at * me.hidden, out, pad);
                for (int c = 0; c < C; ++c) o[first + c] += wt[at] * out[c];
            }
        }
        V val = wide(0.0), mag = wide(0.0);
        for (int b = 0; b < np; ++b) {
            read_own(x, b, y);
            forward(lo, loop(), ql + b * lo.context(), y, sl + b * lo.hidden, al + b * lo.hidden,
                    out, pad);
            V* sum = m + b * M;
            for (int c = 0; c < M; ++c) sum[c] = lw[b] * out[c];
            for (int l = 0; l < LANES && b * LANES + l < n; ++l) {
                const int i = b * LANES + l;
                for (int q = g_.ptr[i]; q < g_.ptr[i + 1]; ++q)
                    for (int c = 0; c < M; ++c) lane(sum[c], l) += at(O, M, q, c);
            }
            for (int c = K - 1; c >= 0; --c) y[M + c] = y[c];
            for (int c = 0; c < M; ++c) y[c] = sum[c];
            forward(up, update(), qu + b * up.context(), y, su + b * up.hidden, au + b * up.hidden,
                    out, pad);
            V square = wide(0.0);
            for (int c = 0; c < K; ++c) square += y[M + c] * y[M + c];
            square *= 0.5 * s_.beta;
            V local = out[0], on = wide(0.0);
            for (int l = 0; l < LANES; ++l) {
                if (b * LANES + l < n) lane(on, l) = 1.0;
                else lane(local, l) = lane(square, l) = 0.0;
            }
            val += local + square;
            mag += absolute(local) + square;
        }
        value = sum_lanes(val);
        noise = 64 * std::numeric_limits<double>::epsilon() * sum_lanes(mag);
    }

    /// Gradient and local quadratic models at the point of the last `evaluate`.
    void differentiate(const double* x, double reach) {
        const Net &me = s_.message, &lo = s_.loop, &up = s_.update;
        V* p = pad_;
        V* J = p + std::max(M, 1);
        V* gr = J + std::max(M * D, Un);
        V* Hs = gr + std::max(D, Un);
        V* pad = Hs + std::max(D * D, Un * Un);
        for (int i = 0; i < n * K; ++i) {
            g[i] = s_.beta * x[i];
            sc[i] = std::fabs(g[i]);
        }
        for (int b = 0; b < np; ++b) {
            p[0] = wide(1.0);
            jet(up, update(), qu + b * up.context(), su + b * up.hidden, au + b * up.hidden, p, reach,
                J, gr, Hs, pad);
            V* u = U + b * Un * Un;
            for (int i = 0; i < Un; ++i)
                for (int j = 0; j <= i; ++j) u[i * Un + j] = u[j * Un + i] = Hs[i * Un + j];
            for (int c = 0; c < M; ++c) {
                mb[b * M + c] = gr[c];
                p[c] = lw[b] * gr[c];
            }
            for (int l = 0; l < LANES && b * LANES + l < n; ++l)
                for (int c = 0; c < K; ++c) add_gradient(b * LANES + l, c, lane(gr[M + c], l));
            jet(lo, loop(), ql + b * lo.context(), sl + b * lo.hidden, al + b * lo.hidden, p, reach,
                J, gr, Hs, pad);
            for (int i = 0; i < M * K; ++i) A[b * M * K + i] = lw[b] * J[i];
            V* block = B + b * K * K;
            for (int i = 0; i < K; ++i)
                for (int j = 0; j <= i; ++j) block[i * K + j] = block[j * K + i] = Hs[i * K + j];
            for (int l = 0; l < LANES && b * LANES + l < n; ++l)
                for (int c = 0; c < K; ++c) add_gradient(b * LANES + l, c, lane(gr[c], l));
        }
        const int two = s_.ends == 2;
        for (int b = 0; b < ep; ++b) {
            V *ji = Ji + b * M * K, *jj = Jj + b * M * K, *hii = Hii + b * K * K,
              *hjj = Hjj + b * K * K, *xx = X + b * K * K, *gb = G + b * D;
            for (int i = 0; i < M * K; ++i) ji[i] = jj[i] = wide(0.0);
            for (int i = 0; i < K * K; ++i) hii[i] = hjj[i] = xx[i] = wide(0.0);
            for (int i = 0; i < D; ++i) gb[i] = wide(0.0);
            for (int hd = 0; hd < H; ++hd) {
                const int at_ = b * H + hd, first = s_.concat ? hd * C : 0;
                const V w = wt[at_];
                for (int c = 0; c < C; ++c) {
                    V x_ = wide(0.0);
                    for (int l = 0; l < LANES && b * LANES + l < e; ++l)
                        lane(x_, l) = at(mb, M, g_.dst[b * LANES + l], first + c);
                    p[c] = w * x_;
                }
                jet(me, head(hd), qm + at_ * me.context(), sm + at_ * me.hidden,
                    am + at_ * me.hidden, p, reach, J, gr, Hs, pad);
                // The inputs are ordered (channel, end).
                for (int c = 0; c < C; ++c)
                    for (int a = 0; a < K; ++a) {
                        const V* row = J + c * D + s_.ends * a;
                        jj[(first + c) * K + a] += w * row[s_.ends - 1];
                        if (two) ji[(first + c) * K + a] += w * row[0];
                    }
                auto Hat = [&](int i, int j) { return i >= j ? Hs[i * D + j] : Hs[j * D + i]; };
                for (int a = 0; a < K; ++a)
                    for (int c = 0; c < K; ++c) {
                        const int ia = s_.ends * a, ic = s_.ends * c;
                        hjj[a * K + c] += Hat(ia + s_.ends - 1, ic + s_.ends - 1);
                        if (!two) continue;
                        hii[a * K + c] += Hat(ia, ic);
                        xx[a * K + c] += Hat(ia, ic + 1);
                    }
                for (int i = 0; i < D; ++i) gb[i] += gr[i];
            }
        }
        for (int i = 0; i < n; ++i) {
            if (two)
                for (int q = g_.ptr[i]; q < g_.ptr[i + 1]; ++q) {
                    for (int c = 0; c < M * K; ++c) at(A, M * K, i, c) += at(Ji, M * K, q, c);
                    for (int c = 0; c < K * K; ++c) at(B, K * K, i, c) += at(Hii, K * K, q, c);
                    for (int c = 0; c < K; ++c) add_gradient(i, c, at(G, D, q, 2 * c));
                }
            for (int o = g_.out_ptr[i]; o < g_.out_ptr[i + 1]; ++o)
                for (int c = 0; c < K; ++c)
                    add_gradient(i, c, at(G, D, g_.out_edge[o], s_.ends * c + s_.ends - 1));
        }
        residual = scale = 0;
        for (int i = 0; i < n * K; ++i) {
            const double size = std::fabs(g[i]);
            if (!(size <= residual)) residual = size;  // NaN stays
            if (residual != residual) break;
            if (sc[i] > scale) scale = sc[i];
        }
    }

    /// Factorise the Hessian at the point of the last `differentiate`.
    bool factorise() {
        // half = Umm A + Umh, B = B + Uhh + A' half + Uhm A + beta, UJ = Umm Jj, X += half' Jj
        for (int b = 0; b < np; ++b) {
            const V *u = U + b * Un * Un, *a = A + b * M * K;
            V *hf = half + b * M * K, *block = B + b * K * K;
            for (int c = 0; c < M; ++c)
                for (int x = 0; x < K; ++x) {
                    V sum = u[c * Un + M + x];
                    for (int q = 0; q < M; ++q) sum += u[c * Un + q] * a[q * K + x];
                    hf[c * K + x] = sum;
                }
            for (int x = 0; x < K; ++x)
                for (int y = 0; y < K; ++y) {
                    V sum = block[x * K + y] + u[(M + x) * Un + M + y];
                    for (int c = 0; c < M; ++c)
                        sum += a[c * K + x] * hf[c * K + y] + u[c * Un + M + x] * a[c * K + y];
                    block[x * K + y] = x == y ? sum + s_.beta : sum;
                }
        }
        for (int b = 0; b < ep; ++b) {
            const V* jj = Jj + b * M * K;
            V *uj = UJ + b * M * K, *xx = X + b * K * K, *cc = Hjj + b * K * K;
            V* hf = pad_;
            V* uu = hf + M * K;
            for (int l = 0; l < LANES; ++l) {
                const int i = g_.dst[std::min(b * LANES + l, e - 1)];
                for (int c = 0; c < M * K; ++c) lane(hf[c], l) = at(half, M * K, i, c);
                for (int c = 0; c < M; ++c)
                    for (int q = 0; q < M; ++q)
                        lane(uu[c * M + q], l) = at(U, Un * Un, i, c * Un + q);
            }
            for (int c = 0; c < M; ++c)
                for (int x = 0; x < K; ++x) {
                    V sum = wide(0.0);
                    for (int q = 0; q < M; ++q) sum += uu[c * M + q] * jj[q * K + x];
                    uj[c * K + x] = sum;
                }
            for (int x = 0; x < K; ++x)
                for (int y = 0; y < K; ++y) {
                    V sum = xx[x * K + y], own = cc[x * K + y];
                    for (int c = 0; c < M; ++c) {
                        sum += hf[c * K + x] * jj[c * K + y];
                        own += jj[c * K + x] * uj[c * K + y];
                    }
                    xx[x * K + y] = sum;
                    cc[x * K + y] = own;
                }
        }
        if (K == 2 && M == 2)
            return fronts_.factorise(
                [this](int i, double* F, int stride) { add_star<2, 2>(i, F, stride); });
        if (K == 2)
            return fronts_.factorise(
                [this](int i, double* F, int stride) { add_star<2, 0>(i, F, stride); });
        return fronts_.factorise(
            [this](int i, double* F, int stride) { add_star<0, 0>(i, F, stride); });
    }

    /// d becomes H^-1 d; false where that is not finite.
    bool solve_linear() const {
        fronts_.solve(d);
        double sum = 0;
        for (int i = 0; i < n * K; ++i) sum += d[i];
        return std::isfinite(sum);
    }

    /// Newton's method from h; the answer replaces h. The same rules as hogwild/solvers: Armijo's
    /// condition, the slope where rounding hides the decrease, secant curvature after `patience`.
    int newton(const Options& o, int64_t& iterations) {
        double t = 1, reach = 1;
        iterations = 0;
        evaluate(h);
        differentiate(h, 0.0);
        double here = value, rounding = noise;
        for (;;) {
            if (residual <= o.atol + o.rtol * scale) return CONVERGED;
            if (!std::isfinite(residual)) return NOT_FINITE;
            if (iterations == o.max_iter) return MAX_ITERATIONS;
            const bool late = iterations >= o.patience;
            if (late) differentiate(h, reach);
            ++iterations;
            bool sound = factorise();
            for (int i = 0; i < n * K; ++i) d[i] = -g[i];
            if (sound) fronts_.solve(d);
            double slope = dot(g, d);
            if (!sound || !(slope < 0)) {  // rounding broke the factorisation
                for (int i = 0; i < n; ++i)
                    for (int c = 0; c < K; ++c) {
                        const double own = at(B, K * K, i, c * K + c);
                        d[i * K + c] = own > 0 ? -g[i * K + c] / own : -g[i * K + c];
                    }
                slope = dot(g, d);
            }
            t = late ? 1.0 : std::min(4 * t, 1.0);
            bool accepted = false;
            for (int64_t tried = 0; tried < o.max_backtracks; ++tried) {
                for (int i = 0; i < n * K; ++i) trial[i] = h[i] + t * d[i];
                evaluate(trial);
                if (value <= here + 1e-4 * t * slope) {
                    differentiate(trial, 0.0);
                    accepted = true;
                } else if (value <= here + rounding) {
                    differentiate(trial, 0.0);
                    accepted = !(dot(g, d) > 0.8 * std::fabs(slope));
                }
                if (accepted) break;
                double share = -0.5 * slope * t / (value - here - slope * t);
                if (!(share == share)) share = 0.1;
                t *= std::min(std::max(share, 0.1), 0.5);
            }
            if (!accepted) {
                evaluate(h);
                differentiate(h, 0.0);
                return residual <= o.atol + o.rtol * scale ? CONVERGED : STALLED;
            }
            std::swap(h, trial);
            here = value;
            rounding = noise;
            if (late) reach = std::min(std::max(t == 1.0 ? 0.25 * reach : 16.0 * reach, 1e-3), 1e9);
        }
    }

    /// The gradient of a loss in all that the problem is made of, from lambda = H^-1 dL/dh in d. The
    /// state must be that of `differentiate` at the solution h.
    void reverse(const Cotangents& out, V* sums) {
        const Net &me = s_.message, &lo = s_.loop, &up = s_.update;
        const int64_t n0 = p_.plan->first[graph_], e0 = p_.plan->edge_first[graph_];
        const int64_t N = p_.plan->nodes, E = p_.plan->edges;
        const double* lambda = d;
        // Lanes behind the last node: what an earlier task left there may be NaN.
        for (int i = 0; i < np * M; ++i) md[i] = wide(0.0);
        for (int i = 0; i < n; ++i)
            for (int c = 0; c < M; ++c) {
                double z = 0;
                for (int a = 0; a < K; ++a) z -= at(A, M * K, i, c * K + a) * lambda[i * K + a];
                for (int q = g_.ptr[i]; q < g_.ptr[i + 1]; ++q)
                    for (int a = 0; a < K; ++a)
                        z -= at(Jj, M * K, q, c * K + a) * lambda[g_.src[q] * K + a];
                at(md, M, i, c) = z;
            }
        for (int b = 0; b < np; ++b) {
            const V* u = U + b * Un * Un;
            for (int c = 0; c < M; ++c) {
                V z = wide(0.0);
                for (int q = 0; q < M; ++q) z += u[c * Un + q] * md[b * M + q];
                for (int l = 0; l < LANES && b * LANES + l < n; ++l)
                    for (int a = 0; a < K; ++a)
                        lane(z, l) -= lane(u[c * Un + M + a], l) * lambda[(b * LANES + l) * K + a];
                mt[b * M + c] = z;
            }
        }
        const int wide_y = std::max(D, Un), q_most = std::max({me.context(), lo.context(), up.context()});
        const int rows = std::max({me.rows0, lo.rows0, up.rows0});
        V *y = pad_, *t = y + wide_y, *p = t + wide_y, *r = p + std::max(M, 1),
          *val = r + std::max(M, 1), *mov = val + std::max(M, 1), *pm = mov + std::max(M, 1),
          *rm = pm + M, *qb = rm + M, *o0 = qb + q_most, *o0b = o0 + rows, *pad = o0b + rows;
        V *head_sums = sums, *loop_sums = sums + H * me.parameters(),
          *update_sums = loop_sums + lo.parameters();
        double* nodes = out.nodes + replica_ * s_.node_rows() * N;
        for (int b = 0; b < np; ++b) {
            V on = wide(0.0);
            for (int l = 0; l < LANES && b * LANES + l < n; ++l) lane(on, l) = 1.0;
            for (int c = 0; c < M; ++c) {
                y[c] = m[b * M + c];
                t[c] = on * md[b * M + c];
            }
            read_own(h, b, y + M);
            read_own(lambda, b, t + M);
            for (int a = 0; a < K; ++a) t[M + a] = -on * t[M + a];
            p[0] = on;
            r[0] = wide(0.0);
            cotangents(up, update(), qu + b * up.context(), su + b * up.hidden, au + b * up.hidden, y,
                       t, p, r, val, mov, qb, Adder{update_sums}, pad);
            read_nodes(loop_row() + lo.rows0, up.rows0, b, o0);
            fill_reverse(up, update() + up.weights(), o0, qb, o0b, Adder{update_sums + up.weights()}, pad);
            write_nodes(nodes, loop_row() + lo.rows0, up.rows0, b, o0b);
            for (int c = 0; c < M; ++c) {
                p[c] = lw[b] * mb[b * M + c];
                r[c] = lw[b] * mt[b * M + c];
            }
            cotangents(lo, loop(), ql + b * lo.context(), sl + b * lo.hidden, al + b * lo.hidden,
                       y + M, t + M, p, r, val, mov, qb, Adder{loop_sums}, pad);
            read_nodes(loop_row(), lo.rows0, b, o0);
            fill_reverse(lo, loop() + lo.weights(), o0, qb, o0b, Adder{loop_sums + lo.weights()}, pad);
            write_nodes(nodes, loop_row(), lo.rows0, b, o0b);
            if (out.loop_weight)
                for (int l = 0; l < LANES && b * LANES + l < n; ++l) {
                    double z = 0;
                    for (int c = 0; c < M; ++c)
                        z += lane(mb[b * M + c], l) * lane(mov[c], l) +
                             lane(mt[b * M + c], l) * lane(val[c], l);
                    out.loop_weight[replica_ * N + n0 + b * LANES + l] = z;
                }
        }
        const int own_rows = s_.ends == 2 ? H * me.rows0 : 0;
        for (int i = 0; i < (own_rows + (s_.sent ? H * me.rows0 : 0)); ++i)
            std::memset(nodes + (int64_t)i * N + n0, 0, sizeof(double) * n);
        for (int b = 0; b < ep; ++b)
            for (int hd = 0; hd < H; ++hd) {
                const int at_ = b * H + hd, first = s_.concat ? hd * C : 0;
                read_ends(h, b, y);
                read_ends(lambda, b, t);
                for (int i = 0; i < D; ++i) t[i] = -t[i];
                for (int c = 0; c < C; ++c)
                    for (int l = 0; l < LANES; ++l) {
                        const int i = g_.dst[std::min(b * LANES + l, e - 1)];
                        lane(p[c], l) = at(mb, M, i, first + c);
                        lane(r[c], l) = at(mt, M, i, first + c);
                    }
                const V w = wt[at_];
                V share = wide(s_.concat ? 1.0 : 1.0 / H), felt = wide(0.0);
                for (int c = 0; c < C; ++c) {
                    pm[c] = p[c];
                    rm[c] = r[c];
                    p[c] = w * p[c];
                    r[c] = w * r[c];
                }
                cotangents(me, head(hd), qm + at_ * me.context(), sm + at_ * me.hidden,
                           am + at_ * me.hidden, y, t, p, r, val, mov, qb,
                           Adder{head_sums + hd * me.parameters()}, pad);
                for (int c = 0; c < C; ++c) felt += pm[c] * mov[c] + rm[c] * val[c];
                if (out.weight)
                    for (int l = 0; l < LANES && b * LANES + l < e; ++l)
                        out.weight[(replica_ * H + hd) * E + p_.plan->edge[e0 + b * LANES + l]] =
                            lane(share, l) * lane(felt, l);
                read_edges(b, hd, o0);
                fill_reverse(me, head(hd) + me.weights(), o0, qb, o0b,
                             Adder{head_sums + hd * me.parameters() + me.weights()}, pad);
                for (int l = 0; l < LANES && b * LANES + l < e; ++l) {
                    const int q = b * LANES + l;
                    const int64_t i = n0 + g_.dst[q], j = n0 + g_.src[q];
                    for (int x = 0; x < me.rows0; ++x) {
                        const double z = lane(o0b[x], l);
                        if (s_.ends == 2) nodes[(int64_t)(hd * me.rows0 + x) * N + i] += z;
                        if (s_.sent)
                            nodes[(int64_t)(own_rows + hd * me.rows0 + x) * N + j] += z;
                        if (out.edges)
                            out.edges[(replica_ * s_.edge_rows() + hd * me.rows0 + x) * E +
                                      p_.plan->edge[e0 + q]] = z;
                    }
                }
            }
    }

    /// dL/dh of the caller, in d.
    void load(const double* gradient) {
        const int64_t n0 = p_.plan->first[graph_], N = p_.plan->nodes;
        for (int i = 0; i < n; ++i)
            for (int c = 0; c < K; ++c) d[i * K + c] = gradient[(replica_ * K + c) * N + n0 + i];
    }

  private:
    const Posed& p_;
    const Sizes& s_;
    const GraphPlan& g_;
    const double* w_;
    const int64_t graph_, replica_;
    const int n, e, K, C, H, M, D, Un, np, ep;
    int pad_size_;
    double* sc;
    V *qm, *ql, *qu, *sm, *am, *sl, *al, *su, *au, *wt, *lw, *O, *m, *mb, *U, *A, *B, *half, *Ji, *Jj,
        *UJ, *Hii, *X, *Hjj, *G, *md, *mt, *pad_, *star_;
    Fronts fronts_;

    int most_senders() const {
        int most = 0;
        for (int i = 0; i < n; ++i) most = std::max(most, g_.ptr[i + 1] - g_.ptr[i]);
        return most;
    }
    const double* head(int hd) const { return w_ + hd * s_.message.parameters(); }
    const double* loop() const { return w_ + H * s_.message.parameters(); }
    const double* update() const { return loop() + s_.loop.parameters(); }
    int loop_row() const { return H * s_.message.rows0 * ((s_.ends == 2) + s_.sent); }

    static double& at(V* array, int fields, int i, int f) {
        return ((double*)array)[((i / LANES) * fields + f) * LANES + i % LANES];
    }
    static double at(const V* array, int fields, int i, int f) {
        return ((const double*)array)[((i / LANES) * fields + f) * LANES + i % LANES];
    }
    void add_gradient(int i, int c, double x) {
        g[i * K + c] += x;
        sc[i * K + c] += std::fabs(x);
    }
    double dot(const double* x, const double* y) const {
        double sum = 0;
        for (int i = 0; i < n * K; ++i) sum += x[i] * y[i];
        return sum;
    }

    /// Rows of o_0 for a pack of nodes. Lanes behind the last node repeat it.
    void read_nodes(int row, int rows, int b, V* o0) const {
        const int64_t n0 = p_.plan->first[graph_], N = p_.plan->nodes;
        const double* from = p_.nodes + (replica_ * s_.node_rows() + row) * N + n0;
        for (int x = 0; x < rows; ++x)
            for (int l = 0; l < LANES; ++l)
                lane(o0[x], l) = from[x * N + std::min(b * LANES + l, n - 1)];
    }
    void write_nodes(double* nodes, int row, int rows, int b, const V* o0b) const {
        const int64_t n0 = p_.plan->first[graph_], N = p_.plan->nodes;
        for (int x = 0; x < rows; ++x)
            for (int l = 0; l < LANES && b * LANES + l < n; ++l)
                nodes[(row + x) * N + n0 + b * LANES + l] = lane(o0b[x], l);
    }
    /// The same for a pack of edges and one head.
    void read_edges(int b, int hd, V* o0) const {
        const Net& me = s_.message;
        const int64_t n0 = p_.plan->first[graph_], N = p_.plan->nodes, E = p_.plan->edges,
                      e0 = p_.plan->edge_first[graph_];
        const double* from = p_.nodes + replica_ * s_.node_rows() * N + n0;
        const int own = hd * me.rows0, sent = (s_.ends == 2 ? H * me.rows0 : 0) + own;
        for (int l = 0; l < LANES; ++l) {
            const int q = std::min(b * LANES + l, e - 1), i = g_.dst[q], j = g_.src[q];
            const int64_t number = p_.plan->edge[e0 + q];
            for (int x = 0; x < me.rows0; ++x) {
                double z = 0;
                if (s_.ends == 2) z += from[(int64_t)(own + x) * N + i];
                if (s_.sent) z += from[(int64_t)(sent + x) * N + j];
                if (p_.edges) z += p_.edges[(replica_ * s_.edge_rows() + own + x) * E + number];
                lane(o0[x], l) = z;
            }
        }
    }
    void read_own(const double* x, int b, V* y) const {
        for (int l = 0; l < LANES; ++l) {
            const double* row = x + std::min(b * LANES + l, n - 1) * K;
            for (int c = 0; c < K; ++c) lane(y[c], l) = row[c];
        }
    }
    void read_ends(const double* x, int b, V* y) const {
        for (int l = 0; l < LANES; ++l) {
            const int q = std::min(b * LANES + l, e - 1);
            const double *own = x + g_.dst[q] * K, *other = x + g_.src[q] * K;
            for (int c = 0; c < K; ++c) {
                if (s_.ends == 2) lane(y[2 * c], l) = own[c];
                lane(y[s_.ends * c + s_.ends - 1], l) = other[c];
            }
        }
    }

    /// Add sum over c of left[c]' right[c] (rows [k]) to a front, at the rows of the node at
    /// position a and the columns of the node at b; the transpose where that is above the diagonal,
    /// and the sum of both on the diagonal.
    template <int KS>
    static void add_products(double* F, int stride, int a, int b, const double* left,
                             const double* right, int count, int kd) {
        const int k = KS ? KS : kd;
        if (a == b) {
            double* to = F + (size_t)a * k * stride + a * k;
            for (int c = 0; c < count; ++c, left += k, right += k)
                for (int x = 0; x < k; ++x)
                    for (int y = 0; y <= x; ++y)
                        to[(size_t)x * stride + y] += left[x] * right[y] + left[y] * right[x];
            return;
        }
        if (a < b) {
            std::swap(a, b);
            std::swap(left, right);
        }
        double* to = F + (size_t)a * k * stride + b * k;
        for (int x = 0; x < k; ++x, to += stride)
            for (int c = 0; c < count; ++c) {
                const double share = left[c * k + x];
                for (int y = 0; y < k; ++y) to[y] += share * right[c * k + y];
            }
    }

    /// Add the block of row i of an array [k, k] at positions a and b; half of it with its transpose
    /// on the diagonal if it is symmetric.
    template <int KS>
    void add_block(double* F, int stride, int a, int b, const V* array, int i, bool symmetric) const {
        const int k = KS ? KS : K;
        if (a == b) {
            double* to = F + (size_t)a * k * stride + a * k;
            for (int x = 0; x < k; ++x)
                for (int y = 0; y <= x; ++y) {
                    const double there = at(array, k * k, i, x * k + y);
                    to[(size_t)x * stride + y] +=
                        symmetric ? there : there + at(array, k * k, i, y * k + x);
                }
            return;
        }
        const bool below = a > b;
        double* to = F + (size_t)(below ? a : b) * k * stride + (below ? b : a) * k;
        for (int x = 0; x < k; ++x)
            for (int y = 0; y < k; ++y)
                to[(size_t)x * stride + y] += at(array, k * k, i, below ? x * k + y : y * k + x);
    }

    /// Add the star of node i to a front.
    template <int KS, int MS>
    void add_star(int i, double* F, int stride) const {
        const int k = KS ? KS : K, c_ = MS ? MS : M, size = c_ * k, own = g_.own[i];
        double* both = (double*)star_;  // Jj and UJ of every sender, [2, M, k] each
        add_block<KS>(F, stride, own, own, B, i, true);
        for (int q = g_.ptr[i]; q < g_.ptr[i + 1]; ++q) {
            double* mine = both + (size_t)(q - g_.ptr[i]) * 2 * size;
            for (int c = 0; c < size; ++c) {
                mine[c] = at(Jj, size, q, c);
                mine[size + c] = at(UJ, size, q, c);
            }
            const int there = g_.slot[q];
            add_block<KS>(F, stride, own, there, X, q, false);
            add_block<KS>(F, stride, there, there, Hjj, q, true);
            for (int o = g_.ptr[i]; o < q; ++o)
                add_products<KS>(F, stride, there, g_.slot[o], mine,
                                 both + (size_t)(o - g_.ptr[i]) * 2 * size + size, c_, k);
        }
    }
};

}  // namespace hog

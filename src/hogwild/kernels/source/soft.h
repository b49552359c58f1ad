// Soft energies on a CPU (hogwild_node/soft.py): accelerated gradient steps, and conjugate gradients for the
// adjoint. Nothing is factorised, and widths are numbers: one compiled function serves all of them.
//
// A row holds what belongs to a node or an edge. Its length is a multiple of a vector's, filled with zeros.
// With B = [W' V' U'] a node's row of Y B holds W h, V h and U h for the channels of edges, of edges and of the
// node; what comes back is multiplied by B'. Each edge writes its slope once, and both ends read it, so that
// no two threads write to one place, and the sums do not depend on their number.
#pragma once
#include <cmath>
#include <limits>

#include "batch.h"
#include "crew.h"
#include "listening.h"

namespace hog {

/// A problem on all graphs and replicas.
template <class T>
struct SoftPosed {
    int64_t replicas, graphs, nodes, edges, k, w, o, heads;
    int64_t edge_stride;  // numbers of a replica in here, there and weight; zero where all share them
    const int64_t *batch, *src, *dst;
    const T *anchor;                // [R, N, k]
    const T *bias;                  // [R, E, w]
    const T *here, *there, *weight; // [R or 1, H, E]
    const T *forth, *back;          // [R, k, m] B and [R, m, k], its transpose; m = 2 w + o
    const T *low, *rise;            // [R, w] the slopes of the edges' ramps
    const T *offset;                // [R, N, o]
    const T *inner_low, *inner_rise; // [R, o]
    const double* lipschitz;        // [R]
    double beta, width;             // the width of a ramp

    int64_t m() const { return 2 * w + o; }
};

/// Edges by receiver and by sender. Graphs have adjacent nodes, and so adjacent edges by receiver.
struct SoftEdges {
    std::vector<int64_t> graph;       // first node of every graph, and the number of nodes
    std::vector<int64_t> in, edge;    // where a node's edges begin; the caller's number of every edge
    std::vector<int64_t> out, place;  // the same by sender; the place of the edge by receiver

    template <class T>
    explicit SoftEdges(const SoftPosed<T>& p)
        : graph(p.graphs + 1), in(p.nodes + 2), edge(p.edges), out(p.nodes + 2), place(p.edges) {
        for (int64_t i = 0; i < p.nodes; ++i) {
            if (p.batch[i] < 0 || p.batch[i] >= p.graphs || (i && p.batch[i] < p.batch[i - 1]))
                throw std::out_of_range("batch is not sorted, or names a graph that does not exist");
            ++graph[p.batch[i] + 1];
        }
        for (int64_t g = 0; g < p.graphs; ++g) graph[g + 1] += graph[g];
        for (int64_t e = 0; e < p.edges; ++e) {
            if (p.src[e] < 0 || p.src[e] >= p.nodes || p.dst[e] < 0 || p.dst[e] >= p.nodes ||
                p.batch[p.src[e]] != p.batch[p.dst[e]])
                throw std::out_of_range("an edge joins two graphs, or names a node that does not exist");
            ++in[p.dst[e] + 2], ++out[p.src[e] + 2];
        }
        for (int64_t i = 0; i < p.nodes; ++i) in[i + 2] += in[i + 1], out[i + 2] += out[i + 1];
        for (int64_t e = 0; e < p.edges; ++e) edge[in[p.dst[e] + 1]++] = e;
        for (int64_t q = 0; q < p.edges; ++q) place[out[p.src[edge[q]] + 1]++] = q;
    }
};

/// Y [rows, length] times B [length, m], by tiles of R rows and C vectors.
template <class T, int R, int C>
HOG_PART void soft_tile(const T* y, const T* b, T* out, int64_t length, int64_t m) {
    typedef Vector<T, 64> Of;
    typedef typename Of::type X;
    constexpr int L = 64 / sizeof(T);
    X sum[R][C];
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) sum[r][c] = Of::all(0);
    for (int64_t l = 0; l < length; ++l) {
        X row[C];
        for (int c = 0; c < C; ++c) row[c] = Of::load(b + l * m + c * L);
        for (int r = 0; r < R; ++r) {
            const T factor = y[r * length + l];
            for (int c = 0; c < C; ++c) sum[r][c] += factor * row[c];
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < C; ++c) Of::store(sum[r][c], out + r * m + c * L);
}
template <class T>
void soft_product(const T* y, const T* b, T* out, int64_t rows, int64_t length, int64_t m) {
    constexpr int L = 64 / sizeof(T), R = REGISTER == 64 ? 6 : 4, C = REGISTER == 64 ? 2 : 1;
    for (int64_t c = 0; c < m;) {
        const bool both = C == 2 && c + 2 * L <= m;
        int64_t r = 0;
        for (; r + R <= rows; r += R) {
            if (both)
                soft_tile<T, R, C>(y + r * length, b + c, out + r * m + c, length, m);
            else
                soft_tile<T, R, 1>(y + r * length, b + c, out + r * m + c, length, m);
        }
        for (; r < rows; ++r) {
            if (both)
                soft_tile<T, 1, C>(y + r * length, b + c, out + r * m + c, length, m);
            else
                soft_tile<T, 1, 1>(y + r * length, b + c, out + r * m + c, length, m);
        }
        c += both ? C * L : L;
    }
}

/// Where gradients go (SoftTask::cotangents). `bent` and `straight` [R, N, m] are what h and l are multiplied
/// by for the gradient of the matrices; `straightest` and `steepest` [R, G, w + o] belong to the ramps.
template <class T>
struct SoftCotangents {
    T *bias, *here, *there, *weight;  // [R, E, w]; [R, H, E], or null
    T *bent, *straight, *straightest, *steepest;
};

/// One graph and replica, for one thread or a few.
template <class T, class Team>
class SoftTask {
    typedef Vector<T, 64> Of;
    typedef typename Of::type X;
    static constexpr int L = 64 / sizeof(T);

  public:
    /// Numbers that a task needs for so many nodes, edges and threads.
    static size_t numbers(const SoftPosed<T>& p, int64_t n, int64_t e, int64_t threads) {
        return n * (4 * p.k + 3 * p.m() + p.o) + 2 * e * p.w + 2 * (p.w + p.o) * threads;
    }

    SoftTask(const SoftPosed<T>& p, const SoftEdges& edges, int64_t graph, int64_t r, T* memory, Team team)
        : p_(p), to_(edges), team_(team), graph_(graph), n0_(edges.graph[graph]), n_(edges.graph[graph + 1] - n0_),
          q0_(edges.in[n0_]), e_(edges.in[n0_ + n_] - q0_), r_(r), k_(p.k), w_(p.w), m_(p.m()),
          first_(team.first((int)n_)), last_(team.last((int)n_)) {
        for (T** each : {&y_, &x_, &before_, &g_}) *each = memory, memory += n_ * k_;
        for (T** each : {&sent_, &back_, &dual_}) *each = memory, memory += n_ * m_;
        for (T** each : {&slope_, &gate_}) *each = memory, memory += e_ * w_;
        inner_gate_ = memory, flat_ = memory + n_ * p.o + 2 * (w_ + p.o) * team.rank();
        anchor_ = p.anchor + (r * p.nodes + n0_) * k_;
    }

    /// Accelerated gradient steps (solvers/momentum.py) from `start` [R, N, k]. Steps taken; the residual
    /// and its limit.
    int64_t solve(const T* start, double atol, double rtol, int64_t most, T* h, double& residual, double& limit) {
        const double large = p_.lipschitz[r_], beta = p_.beta;
        const double rho = 1.0 - std::sqrt(beta / large);
        const T rate = (T)((1.0 + rho) / large), keep = (T)(rho * rho / (2.0 - rho));
        const T ahead = (T)(rho * rho / ((1.0 + rho) * (2.0 - rho)));
        const int64_t from = first_ * k_, to = last_ * k_, at = (r_ * p_.nodes + n0_) * k_;
        for (int64_t i = from; i < to; ++i) y_[i] = x_[i] = before_[i] = start[at + i];
        int64_t t = 0;
        for (;; ++t) {
            gradient();
            double size = largest(y_), anchors = largest(anchor_), nothing = 0;
            residual = largest(g_);
            team_.max(residual, size), team_.max(anchors, nothing);
            limit = atol + rtol * (beta * anchors + large * size);
            if (residual <= limit || !std::isfinite(residual) || t >= most) break;
            if (asked_to_end()) break;
            for (int64_t i = from; i < to; i += L) {
                const X x = Of::load(x_ + i), old = Of::load(before_ + i), g = Of::load(g_ + i);
                const X fresh = x + keep * (x - old) - rate * g;
                Of::store(x, before_ + i);
                Of::store(fresh, x_ + i);
                Of::store(fresh + ahead * (fresh - x), y_ + i);
            }
        }
        for (int64_t i = from; i < to; ++i) h[at + i] = y_[i];
        return t;
    }

    /// Conjugate gradients for H x = b with the Hessian at `h`, all [R, N, k]. Steps taken; the residual
    /// norm, and its limit.
    int64_t dual(const T* h, const T* b, double rtol, int64_t most, T* x, double& residual, double& limit) {
        const int64_t from = first_ * k_, to = last_ * k_, at = (r_ * p_.nodes + n0_) * k_;
        for (int64_t i = from; i < to; ++i) y_[i] = h[at + i];
        product(y_);
        edges<Gates>();
        T *direction = y_, *r = x_, *found = before_;
        double rr = 0, nothing = 0, most_b = largest(b + at);
        team_.max(most_b, nothing);
        // Squares of small numbers are zero in single precision: the largest entry becomes about one.
        const int power = most_b > 0 && std::isfinite(most_b) ? std::max(std::ilogb(most_b), -100) : 0;
        const T down = (T)std::ldexp(1.0, -power), up = (T)std::ldexp(1.0, power);
        for (int64_t i = from; i < to; ++i) {
            direction[i] = r[i] = down * b[at + i], found[i] = 0;
            rr += (double)r[i] * r[i];
        }
        team_.sum(rr, nothing);
        residual = std::sqrt(rr), limit = rtol * residual;
        int64_t t = 0;
        for (; t < most && residual > limit && std::isfinite(residual); ++t) {
            if (asked_to_end()) break;
            apply(direction);
            double along = dot(direction, g_), fresh = 0;
            team_.sum(along, nothing);
            const T step = (T)(rr / along);
            for (int64_t i = from; i < to; ++i) found[i] += step * direction[i], r[i] -= step * g_[i];
            fresh = dot(r, r);
            team_.sum(fresh, nothing);
            const T ratio = (T)(fresh / rr);
            for (int64_t i = from; i < to; ++i) direction[i] = r[i] + ratio * direction[i];
            rr = fresh, residual = std::sqrt(rr);
        }
        for (int64_t i = from; i < to; ++i) x[at + i] = up * found[i];
        residual *= up, limit *= up;
        return t;
    }

    /// The gradients of <l, gradient at h> in all that the energy is made of; h and l are [R, N, k].
    void cotangents(const T* h, const T* l, const SoftCotangents<T>& to) {
        const int64_t at = (r_ * p_.nodes + n0_) * k_;
        const T* b = p_.forth + r_ * k_ * m_;
        soft_product(l + at + first_ * k_, b, dual_ + first_ * m_, last_ - first_, k_, m_);
        soft_product(h + at + first_ * k_, b, sent_ + first_ * m_, last_ - first_, k_, m_);
        team_.sync();
        const int64_t E = p_.edges, rows = r_ * p_.nodes + n0_, ramps = w_ + p_.o;
        const X zero = Of::all(0);
        T* steep = flat_ + ramps;  // of this thread, as `flat_`
        for (int64_t c = 0; c < 2 * ramps; c += L) Of::store(zero, flat_ + c);
        const auto add = [&](const X& d, const X& z, const X& up, int64_t c) {
            Of::store(Of::load(flat_ + c) + d * (z - up), flat_ + c);
            Of::store(Of::load(steep + c) + d * up, steep + c);
        };
        for (int64_t i = first_; i < last_; ++i) {
            const T *own = sent_ + i * m_, *ahead = dual_ + i * m_;
            T *bent = to.bent + (rows + i) * m_, *straight = to.straight + (rows + i) * m_;
            for (int64_t c = 0; c < w_; c += L) Of::store(zero, bent + c), Of::store(zero, straight + c);
            each_head(i, [&](int64_t q, int64_t e, int64_t head, int64_t begin, int64_t end, T s, T t, T weight) {
                const int64_t out = (r_ * p_.heads + head) * E + e;
                const T* heard = sent_ + (p_.src[e] - n0_) * m_ + w_;
                const T* far = dual_ + (p_.src[e] - n0_) * m_ + w_;
                const T* bias = p_.bias + (r_ * E + e) * w_;
                T *slope = slope_ + (q - q0_) * w_, *gate = gate_ + (q - q0_) * w_;
                X here = zero, there = zero, heavier = zero;
                for (int64_t c = begin; c < end; c += L) {
                    const X a = Of::load(own + c), f = Of::load(heard + c);
                    const X da = Of::load(ahead + c), df = Of::load(far + c);
                    const X z = s * a + t * f + Of::load(bias + c), d = s * da + t * df, up = ramp(z);
                    const X low = Of::load(p_.low + r_ * w_ + c), rise = Of::load(p_.rise + r_ * w_ + c);
                    const X pull = low * z + rise * up;
                    const X bend = weight * ((low + rise * rising(z)) * d);
                    Of::store(bend, gate + c);
                    Of::store(weight * pull, slope + c);
                    Of::store(bend, to.bias + (r_ * E + e) * w_ + c);
                    Of::store(Of::load(bent + c) + s * bend, bent + c);
                    Of::store(Of::load(straight + c) + (s * weight) * pull, straight + c);
                    here += bend * a + weight * (pull * da);
                    there += bend * f + weight * (pull * df);
                    heavier += pull * d;
                    add(weight * d, z, up, c);
                }
                if (to.here) {
                    to.here[out] = total(here), to.there[out] = total(there);
                    to.weight[out] = total(heavier);
                }
            });
            const T *low = p_.inner_low + r_ * p_.o, *rise = p_.inner_rise + r_ * p_.o;
            for (int64_t c = 0; c < p_.o; c += L) {
                const X d = Of::load(ahead + 2 * w_ + c);
                const X z = Of::load(own + 2 * w_ + c) + Of::load(p_.offset + (rows + i) * p_.o + c);
                Of::store((Of::load(low + c) + Of::load(rise + c) * rising(z)) * d, bent + 2 * w_ + c);
                const X up = ramp(z);
                Of::store(Of::load(low + c) * z + Of::load(rise + c) * up, straight + 2 * w_ + c);
                add(d, z, up, w_ + c);
            }
        }
        team_.sync();
        for (int64_t j = first_; j < last_; ++j) {
            T *bent = to.bent + (rows + j) * m_ + w_, *straight = to.straight + (rows + j) * m_ + w_;
            send_back(j, gate_, bent);
            send_back(j, slope_, straight);
        }
        if (team_.rank()) return;
        const int64_t at_graph = (r_ * p_.graphs + graph_) * ramps;
        for (int64_t c = 0; c < ramps; ++c) {
            T one = 0, other = 0;
            for (int t = 0; t < team_.size(); ++t)
                one += flat_[2 * ramps * t + c], other += steep[2 * ramps * t + c];
            to.straightest[at_graph + c] = one, to.steepest[at_graph + c] = other;
        }
    }

  private:
    static T total(const X& x) {
        T sum = 0;
        for (int l = 0; l < L; ++l) sum += x[l];
        return sum;
    }

    /// What an edge does with its argument: its slope; its curvature, which is kept; its kept curvature times
    /// the argument.
    struct Slopes {};
    struct Gates {};
    struct Linear {};
    static constexpr int64_t LARGE = 1 << 22;  // numbers of edges above which a step may last

    const SoftPosed<T>& p_;
    const SoftEdges& to_;
    Team team_;
    const int64_t graph_, n0_, n_, q0_, e_, r_, k_, w_, m_, first_, last_;
    T *y_, *x_, *before_, *g_, *sent_, *back_, *dual_, *slope_, *gate_, *inner_gate_, *flat_;
    const T* anchor_;

    /// z between 0 and a width: half of it below, half above the middle of the ramp.
    HOG_PART X clamped(const X& z) const {
        const T width = (T)p_.width;
        const X zero = Of::all(0), most = Of::all(width), x = z + (T)0.5 * width;
        const X low = pick(x > zero, x, zero);
        return pick(low < most, low, most);
    }
    /// The ramp's derivative, from 0 to 1.
    HOG_PART X rising(const X& z) const { return ((T)1 / (T)p_.width) * clamped(z); }
    HOG_PART X ramp(const X& z) const {
        const X u = clamped(z), beyond = z - (T)0.5 * (T)p_.width, zero = Of::all(0);
        return ((T)0.5 / (T)p_.width) * (u * u) + pick(beyond > zero, beyond, zero);
    }
    HOG_PART X act(Slopes, const X& z, const T* low, const T* rise, T weight, T*) const {
        return weight * (Of::load(low) * z + Of::load(rise) * ramp(z));
    }
    HOG_PART X act(Gates, const X& z, const T* low, const T* rise, T weight, T* gate) const {
        Of::store(weight * (Of::load(low) + Of::load(rise) * rising(z)), gate);
        return Of::all(0);
    }
    HOG_PART X act(Linear, const X& z, const T*, const T*, T, T* gate) const { return Of::load(gate) * z; }

    bool asked_to_end() const {
        double asked = e_ * w_ > LARGE && team_.rank() == 0 && Listening::here().asked_to_end(), nothing = 0;
        if (e_ * w_ > LARGE) team_.max(asked, nothing);
        return asked != 0;
    }

    /// visit(place of the edge, edge, head, first and last channel, scales of both ends, weight) for the heads of
    /// the edges into node i.
    template <class Visit>
    HOG_PART void each_head(int64_t i, const Visit& visit) const {
        const int64_t each = w_ / p_.heads, set = r_ * p_.edge_stride;
        for (int64_t q = to_.in[n0_ + i]; q < to_.in[n0_ + i + 1]; ++q)
            for (int64_t head = 0; head < p_.heads; ++head) {
                const int64_t e = to_.edge[q], of = set + head * p_.edges + e;
                visit(q, e, head, head * each, (head + 1) * each, p_.here[of], p_.there[of], p_.weight[of]);
            }
    }

    /// sum [w] of the rows `from` of the edges out of node j, times the scales of their sender.
    void send_back(int64_t j, const T* from, T* sum) const {
        const int64_t each = w_ / p_.heads;
        for (int64_t c = 0; c < w_; c += L) Of::store(Of::all(0), sum + c);
        for (int64_t o = to_.out[n0_ + j]; o < to_.out[n0_ + j + 1]; ++o) {
            const int64_t q = to_.place[o];
            const T* row = from + (q - q0_) * w_;
            for (int64_t head = 0; head < p_.heads; ++head) {
                const T t = p_.there[r_ * p_.edge_stride + head * p_.edges + to_.edge[q]];
                for (int64_t c = head * each; c < (head + 1) * each; c += L)
                    Of::store(Of::load(sum + c) + t * Of::load(row + c), sum + c);
            }
        }
    }

    /// y B for the rows of this thread, for all threads to read.
    void product(const T* y) {
        const T* b = p_.forth + r_ * k_ * m_;
        soft_product(y + first_ * k_, b, sent_ + first_ * m_, last_ - first_, k_, m_);
        team_.sync();
    }

    /// Slopes of all edges and of the nodes' own terms, at the arguments in `sent_`, and their sums at both ends.
    template <class Mode>
    void edges() {
        const T *low = p_.low + r_ * w_, *rise = p_.rise + r_ * w_;
        for (int64_t i = first_; i < last_; ++i) {
            const T* own = sent_ + i * m_;
            T* sum = back_ + i * m_;
            for (int64_t c = 0; c < w_; c += L) Of::store(Of::all(0), sum + c);
            each_head(i, [&](int64_t q, int64_t e, int64_t, int64_t begin, int64_t end, T s, T t, T weight) {
                const T* heard = sent_ + (p_.src[e] - n0_) * m_ + w_;
                const T* bias = p_.bias + (r_ * p_.edges + e) * w_;
                T *slope = slope_ + (q - q0_) * w_, *gate = gate_ + (q - q0_) * w_;
                for (int64_t c = begin; c < end; c += L) {
                    X z = s * Of::load(own + c) + t * Of::load(heard + c);
                    if (!std::is_same<Mode, Linear>::value) z += Of::load(bias + c);
                    const X found = act(Mode(), z, low + c, rise + c, weight, gate + c);
                    if (std::is_same<Mode, Gates>::value) continue;
                    Of::store(found, slope + c);
                    Of::store(Of::load(sum + c) + s * found, sum + c);
                }
            });
            const T *low = p_.inner_low + r_ * p_.o, *rise = p_.inner_rise + r_ * p_.o;
            for (int64_t c = 0; c < p_.o; c += L) {
                X z = Of::load(own + 2 * w_ + c);
                if (!std::is_same<Mode, Linear>::value)
                    z += Of::load(p_.offset + (r_ * p_.nodes + n0_ + i) * p_.o + c);
                Of::store(act(Mode(), z, low + c, rise + c, (T)1, inner_gate_ + i * p_.o + c), sum + 2 * w_ + c);
            }
        }
        team_.sync();
        if (std::is_same<Mode, Gates>::value) return;
        for (int64_t j = first_; j < last_; ++j) send_back(j, slope_, back_ + j * m_ + w_);
        soft_product(back_ + first_ * m_, p_.back + r_ * m_ * k_, g_ + first_ * k_, last_ - first_, m_, k_);
    }

    /// The gradient at `y_`, in `g_`.
    void gradient() {
        product(y_);
        edges<Slopes>();
        const T beta = (T)p_.beta;
        for (int64_t i = first_ * k_; i < last_ * k_; ++i) g_[i] += beta * (y_[i] - anchor_[i]);
    }
    /// The Hessian times v, in `g_`.
    void apply(const T* v) {
        product(v);
        edges<Linear>();
        const T beta = (T)p_.beta;
        for (int64_t i = first_ * k_; i < last_ * k_; ++i) g_[i] += beta * v[i];
    }

    /// The largest absolute number of this thread's rows; NaN where one is not finite.
    double largest(const T* x) const {
        X most = Of::all(0), wrong = Of::all(0);
        for (int64_t i = first_ * k_; i < last_ * k_; i += L) {
            const X a = Of::load(x + i), b = pick(a < Of::all(0), -a, a);
            most = pick(b > most, b, most);
            wrong += a - a;
        }
        double out = 0;
        for (int l = 0; l < L; ++l) {
            if (!(wrong[l] == 0)) return std::numeric_limits<double>::quiet_NaN();
            out = std::max(out, (double)most[l]);
        }
        return out;
    }
    double dot(const T* x, const T* y) const {
        double sum = 0;
        for (int64_t i = first_; i < last_; ++i) {
            X part = Of::all(0);
            for (int64_t c = 0; c < k_; c += L) part += Of::load(x + i * k_ + c) * Of::load(y + i * k_ + c);
            for (int l = 0; l < L; ++l) sum += part[l];
        }
        return sum;
    }
};

/// Run `work(task, problem)` for every graph and replica: threads take graphs, or share large ones.
template <class T, class Work>
void soft_batch(const SoftPosed<T>& p, int64_t threads, const Work& work) {
    constexpr int64_t SHARED = 1 << 17;  // numbers of a graph's edges and nodes from which threads share it
    const SoftEdges edges(p);
    const auto size = [&](int64_t g) {
        const int64_t first = edges.graph[g], last = edges.graph[g + 1];
        return SoftTask<T, Alone>::numbers(p, last - first, edges.in[last] - edges.in[first], threads);
    };
    const auto vectors = [&](int64_t g) { return whole((size(g) * sizeof(T) + 7) / 8); };
    std::vector<int64_t> small, large;
    for (int64_t g = 0; g < p.graphs; ++g)
        (threads > 1 && (int64_t)size(g) > SHARED && p.graphs * p.replicas < 4 * threads ? large : small).push_back(g);
    std::sort(small.begin(), small.end(), [&](int64_t a, int64_t b) { return size(a) > size(b); });
    Arenas arenas(threads);
    each_task((int64_t)small.size() * p.replicas, threads, [&](int64_t t, int64_t thread) {
        const int64_t g = small[t / p.replicas], r = t % p.replicas;
        T* memory = (T*)arenas[thread].room(vectors(g));
        work(SoftTask<T, Alone>(p, edges, g, r, memory, Alone{}), r * p.graphs + g, 0);
    });
    for (int64_t g : large)
        for (int64_t r = 0; r < p.replicas; ++r) {
            T* memory = (T*)arenas[0].room(vectors(g));
            Common common((int)threads);
            crew(common, (int)threads, [&](int rank) {
                work(SoftTask<T, Crew>(p, edges, g, r, memory, Crew{&common, rank}), r * p.graphs + g, rank);
            });
        }
}

}  // namespace hog

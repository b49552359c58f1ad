// Cholesky factorisation of a tree of fronts (plan.h), and solves with the factor.
//
// A front is a dense matrix [width, width], row by row (rows begin at whole vectors); only its lower triangle is used. After the
// elimination of the pivots their rows and columns hold the factor (with the inverse on the
// diagonal), and the rest is the Schur complement that the parent adds up.
#pragma once
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "plan.h"
#include "vectors.h"

namespace hog {

constexpr int PANEL = 16;  // pivots that are eliminated together

/// Numbers between two rows of a front: whole vectors, so that no row ends within one.
HOG_FN int front_stride(int width) { return (width + LANES - 1) / LANES * LANES; }

/// F[i, l] -= sum over m of T[m, i] T[m, l] for ROWS rows i and the vectors l from `from` to `to`.
template <int ROWS>
HOG_FN void subtract_products(double* F, int stride, const double* T, int count, int i, int from,
                              int to) {
    for (int l = from; l < to; l += 2 * LANES) {
        const bool two = l + LANES < to;
        V sum[ROWS][2];
        for (int r = 0; r < ROWS; ++r) {
            sum[r][0] = *(const V*)(F + (size_t)r * stride + l);
            sum[r][1] = two ? *(const V*)(F + (size_t)r * stride + l + LANES) : wide(0.0);
        }
        for (int m = 0; m < count; ++m) {
            const double* row = T + (size_t)m * stride;
            const V left = *(const V*)(row + l);
            const V right = *(const V*)(row + (two ? l + LANES : l));
            for (int r = 0; r < ROWS; ++r) {
                sum[r][0] -= row[i + r] * left;
                sum[r][1] -= row[i + r] * right;
            }
        }
        for (int r = 0; r < ROWS; ++r) {
            *(V*)(F + (size_t)r * stride + l) = sum[r][0];
            if (two) *(V*)(F + (size_t)r * stride + l + LANES) = sum[r][1];
        }
    }
}

/// Eliminate the first `pivots` unknowns of a front; false where a pivot is not positive. `T` has
/// room for PANEL rows. What lies above the diagonal is not used and may change.
HOG_FN bool eliminate_pivots(double* F, int width, int pivots, double* T) {
    const int stride = front_stride(width);
    for (int j0 = 0; j0 < pivots; j0 += PANEL) {
        const int count = pivots - j0 < PANEL ? pivots - j0 : PANEL, j1 = j0 + count;
        const int start = j0 / LANES * LANES;
        for (int m = 0; m < count; ++m) {  // the columns of the panel as rows of T
            double* row = T + (size_t)m * stride;
            for (int i = start; i < j0 + m; ++i) row[i] = 0.0;
            for (int i = j0 + m; i < width; ++i) row[i] = F[(size_t)i * stride + j0 + m];
            for (int i = width; i < stride; ++i) row[i] = 0.0;
        }
        for (int m = 0; m < count; ++m) {
            double* row = T + (size_t)m * stride;
            const int j = j0 + m, first = j / LANES * LANES;
            for (int q = 0; q < m; ++q) {
                const double* above = T + (size_t)q * stride;
                const double share = above[j];
                for (int i = first; i < stride; i += LANES)
                    *(V*)(row + i) -= share * *(const V*)(above + i);
            }
            const double x = row[j];
            if (!(x > 0)) return false;
            const double inverse = 1 / std::sqrt(x);
            for (int i = first; i < stride; i += LANES) *(V*)(row + i) *= inverse;
            for (int i = start; i < j; ++i) row[i] = 0.0;
            row[j] = inverse;
        }
        for (int i = j0; i < width; ++i)
            for (int m = 0; m < count && j0 + m <= i; ++m)
                F[(size_t)i * stride + j0 + m] = T[(size_t)m * stride + i];
        for (int m = 0; m < count; ++m)  // nothing is subtracted from the columns of the panel
            for (int i = start; i < j1; ++i) T[(size_t)m * stride + i] = 0.0;
        const int from = j1 / LANES * LANES;
        int i = j1;
        for (; i + 4 <= width; i += 4)
            subtract_products<4>(F + (size_t)i * stride, stride, T, count, i, from,
                                 front_stride(i + 4));
        for (; i < width; ++i)
            subtract_products<1>(F + (size_t)i * stride, stride, T, count, i, from,
                                 front_stride(i + 1));
    }
    return true;
}

/// The numbers that one front holds, and all fronts of a graph, for k unknowns a node.
HOG_FN size_t front_numbers(int width) { return (size_t)width * front_stride(width); }
HOG_FN size_t front_numbers(const GraphPlan& g, int k) {
    size_t total = 0;
    for (int f = 0; f < g.fronts; ++f) total += front_numbers(g.width(f) * k);
    return total;
}

/// The numbers that the elimination of a graph's fronts needs beside them, and a star with m
/// channels.
HOG_FN size_t panel_numbers(const GraphPlan& g, int k) {
    return (size_t)PANEL * front_stride(std::max(g.widest, 1) * k);
}
HOG_FN size_t sender_numbers(const GraphPlan& g, int k, int m) {
    return (size_t)g.degree * 2 * m * k + 1;
}

/// The fronts of one graph in one block of memory; the linear solver of a Task (energy.h) on a CPU.
struct Fronts {
    static constexpr bool matrix_free = false;
    const GraphPlan* g;
    int k;
    double* memory;  // front_numbers
    double* panel;   // panel_numbers
    double* senders; // sender_numbers

    /// x = sign H^-1 from for the Hessian of a task; false where the factorisation failed or x is
    /// not finite.
    template <class Task>
    bool solve(const Task& task, const double* from, double sign, double* x) const {
        const int m = task.s().merged();
        bool sound;
        if (k == 2 && m == 2)
            sound = factorise([&](int i, double* F, int w) { add_star<2, 2>(task, i, F, w); });
        else if (k == 2)
            sound = factorise([&](int i, double* F, int w) { add_star<2, 0>(task, i, F, w); });
        else
            sound = factorise([&](int i, double* F, int w) { add_star<0, 0>(task, i, F, w); });
        double sum = 0;
        for (int i = 0; i < g->n * k; ++i) x[i] = sign * from[i];
        if (!sound) return false;
        substitute(x, panel);
        for (int i = 0; i < g->n * k; ++i) sum += x[i];
        return std::isfinite(sum);
    }

    /// Factorise the sum of all stars. `star(i, F, width)` adds the star of node i to a front.
    template <class Star>
    bool factorise(const Star& star) const {
        std::memset(memory, 0, sizeof(double) * front_numbers(*g, k));
        std::vector<double*>& at = places();
        for (int f = 0; f < g->fronts; ++f) {
            const int pivots = (g->pivot_ptr[f + 1] - g->pivot_ptr[f]) * k;
            const int b0 = g->bound_ptr[f], b = g->bound_ptr[f + 1] - b0, width = pivots + b * k;
            const int stride = front_stride(width);
            double* F = at[f];
            for (int s = g->star_ptr[f]; s < g->star_ptr[f + 1]; ++s) star(g->star[s], F, stride);
            if (!eliminate_pivots(F, width, pivots, panel)) return false;
            if (!b) continue;
            const int above = g->parent[f], stride_above = front_stride(g->width(above) * k);
            double* G = at[above];
            const int32_t* into = g->into.data() + b0;
            for (int i = 0; i < b; ++i)
                for (int c = 0; c < k; ++c) {
                    const double* x = F + (size_t)(pivots + i * k + c) * stride + pivots;
                    double* y = G + (size_t)(into[i] * k + c) * stride_above;
                    for (int j = 0; j < i; ++j)
                        for (int d = 0; d < k; ++d) y[into[j] * k + d] += x[j * k + d];
                    for (int d = 0; d <= c; ++d) y[into[i] * k + d] += x[i * k + d];
                }
        }
        return true;
    }

    /// Solve in place: x [n, k] becomes H^-1 x, for one right-hand side or eight. `y` has room for the widest
    /// front.
    template <class P>
    void substitute(P* x, P* y) const {
        std::vector<double*>& at = places();
        for (int f = 0; f < g->fronts; ++f)
            in_front(f, [&](int pivots, int b, const int32_t* pivot, const int32_t* bound, int stride) {
                const double* F = at[f];
                gather(x, pivot, pivots / k, y);
                for (int i = 0; i < pivots; ++i) {
                    P t = y[i];
                    for (int j = 0; j < i; ++j) t -= F[(size_t)i * stride + j] * y[j];
                    y[i] = t * F[(size_t)i * stride + i];
                }
                scatter(y, pivot, pivots / k, x);
                for (int i = 0; i < b * k; ++i) {
                    const double* r = F + (size_t)(pivots + i) * stride;
                    P t = P{};
                    for (int j = 0; j < pivots; ++j) t += r[j] * y[j];
                    x[bound[i / k] * k + i % k] -= t;
                }
            });
        for (int f = g->fronts - 1; f >= 0; --f)
            in_front(f, [&](int pivots, int b, const int32_t* pivot, const int32_t* bound, int stride) {
                const double* F = at[f];
                gather(x, pivot, pivots / k, y);
                for (int i = 0; i < b * k; ++i) {
                    const P t = x[bound[i / k] * k + i % k];
                    const double* r = F + (size_t)(pivots + i) * stride;
                    for (int j = 0; j < pivots; ++j) y[j] -= r[j] * t;
                }
                for (int i = pivots - 1; i >= 0; --i) {
                    const P t = y[i] * F[(size_t)i * stride + i];
                    y[i] = t;
                    for (int j = 0; j < i; ++j) y[j] -= F[(size_t)i * stride + j] * t;
                }
                scatter(y, pivot, pivots / k, x);
            });
    }

  private:
    /// Add sum over c of left[c]' right[c] (rows [k]) to a front, at the rows of the node at
    /// position a and the columns of the node at b; the transpose where that is above the diagonal,
    /// and the sum of both on the diagonal.
    template <int KS>
    void add_products(double* F, int stride, int a, int b, const double* left, const double* right,
                      int count) const {
        const int n = KS ? KS : k;
        if (a == b) {
            double* to = F + (size_t)a * n * stride + a * n;
            for (int c = 0; c < count; ++c, left += n, right += n)
                for (int x = 0; x < n; ++x)
                    for (int y = 0; y <= x; ++y)
                        to[(size_t)x * stride + y] += left[x] * right[y] + left[y] * right[x];
            return;
        }
        if (a < b) {
            std::swap(a, b);
            std::swap(left, right);
        }
        double* to = F + (size_t)a * n * stride + b * n;
        for (int x = 0; x < n; ++x, to += stride)
            for (int c = 0; c < count; ++c) {
                const double share = left[c * n + x];
                for (int y = 0; y < n; ++y) to[y] += share * right[c * n + y];
            }
    }

    /// Add the block [k, k] of row i at positions a and b; with its transpose on the diagonal, unless
    /// it is symmetric.
    template <int KS, class Rows>
    void add_block(double* F, int stride, int a, int b, const Rows& rows, int i,
                   bool symmetric) const {
        const int n = KS ? KS : k;
        if (a == b) {
            double* to = F + (size_t)a * n * stride + a * n;
            for (int x = 0; x < n; ++x)
                for (int y = 0; y <= x; ++y)
                    to[(size_t)x * stride + y] +=
                        rows.at(i, x * n + y) + (symmetric ? 0.0 : rows.at(i, y * n + x));
            return;
        }
        const bool below = a > b;
        double* to = F + (size_t)(below ? a : b) * n * stride + (below ? b : a) * n;
        for (int x = 0; x < n; ++x)
            for (int y = 0; y < n; ++y)
                to[(size_t)x * stride + y] += rows.at(i, below ? x * n + y : y * n + x);
    }

    /// Add the star of node i to a front.
    template <int KS, int MS, class Task>
    void add_star(const Task& t, int i, double* F, int stride) const {
        const int n = KS ? KS : k, m = MS ? MS : t.s().merged(), size = m * n, own = g->own[i];
        double* both = senders;  // Jj and UJ of every sender, [2, M, k] each
        add_block<KS>(F, stride, own, own, t.B, i, true);
        for (int q = g->ptr[i]; q < g->ptr[i + 1]; ++q) {
            double* mine = both + (size_t)(q - g->ptr[i]) * 2 * size;
            for (int c = 0; c < size; ++c) {
                mine[c] = t.Jj.at(q, c);
                mine[size + c] = t.UJ.at(q, c);
            }
            const int there = g->slot[q];
            add_block<KS>(F, stride, own, there, t.X, q, false);
            add_block<KS>(F, stride, there, there, t.Hjj, q, true);
            for (int o = g->ptr[i]; o < q; ++o)
                add_products<KS>(F, stride, there, g->slot[o], mine,
                                 both + (size_t)(o - g->ptr[i]) * 2 * size + size, m);
        }
    }

    /// Where every front begins.
    std::vector<double*>& places() const {
        static thread_local std::vector<double*> at;
        at.resize(g->fronts);
        double* next = memory;
        for (int f = 0; f < g->fronts; ++f) {
            at[f] = next;
            next += front_numbers(g->width(f) * k);
        }
        return at;
    }
    /// `what(pivots, boundary nodes, pivots' nodes, boundary's nodes, stride)` of a front.
    template <class What>
    void in_front(int f, const What& what) const {
        const int pivots = (g->pivot_ptr[f + 1] - g->pivot_ptr[f]) * k, b = g->bound_ptr[f + 1] - g->bound_ptr[f];
        what(pivots, b, g->pivot.data() + g->pivot_ptr[f], g->bound.data() + g->bound_ptr[f],
             front_stride(pivots + b * k));
    }
    template <class P>
    void gather(const P* x, const int32_t* node, int count, P* y) const {
        for (int i = 0; i < count; ++i)
            for (int c = 0; c < k; ++c) y[i * k + c] = x[node[i] * k + c];
    }
    template <class P>
    void scatter(const P* y, const int32_t* node, int count, P* x) const {
        for (int i = 0; i < count; ++i)
            for (int c = 0; c < k; ++c) x[node[i] * k + c] = y[i * k + c];
    }
};

}  // namespace hog

// Cholesky factors of symmetric positive definite matrices with one block [k, k] a node and a pair of
// nodes, kept for several right-hand sides.
#pragma once
#include "batch.h"

namespace hog {

/// The factors of every graph of a plan, in R replicas.
class Factor {
  public:
    /// `diagonal` [R, k, k, N]; `off` [R, k, k, E]: what an edge adds to the rows of its receiver in the
    /// columns of its sender, and transposed. Edges from a node to itself add nothing.
    Factor(const Plan& plan, int64_t k, int64_t replicas, const double* diagonal, const double* off,
           int64_t threads)
        : plan_(plan), k_((int)k), memory_(plan.graphs * replicas), replicas_(replicas) {
        Arenas arenas(threads);
        const std::vector<int64_t> order = largest_first(plan);
        each_task(plan.graphs * replicas, threads, [&](int64_t t, int64_t thread) {
            factorise(order[t / replicas], t % replicas, diagonal, off, arenas[thread]);
        });
    }

    /// x = A^-1 b for right-hand sides [R, columns, k, N]; NaN where a matrix is not positive definite.
    void solve(int64_t columns, const double* b, int64_t threads, double* x) const {
        Arenas arenas(threads);
        each_task(plan_.graphs * replicas_, threads, [&](int64_t t, int64_t thread) {
            const int64_t g = t / replicas_, r = t % replicas_;
            const int64_t at = r * columns * k_ * plan_.nodes + plan_.first[g];
            if (columns == 1)
                substitute<double>(g, r, columns, b + at, arenas[thread], x + at);
            else
                substitute<V>(g, r, columns, b + at, arenas[thread], x + at);
        });
    }

  private:
    const Plan& plan_;
    const int k_;
    std::vector<std::unique_ptr<double[]>> memory_;  // of a graph and replica; nullptr: no factor
    const int64_t replicas_;

    /// The fronts of a graph and replica, with scratch memory of a thread.
    Fronts fronts(int64_t g, int64_t r, V* scratch) const {
        double* memory = memory_[g * replicas_ + r].get();
        memory += (sizeof(V) - (size_t)memory % sizeof(V)) % sizeof(V) / sizeof(double);
        return Fronts{plan_.of[g].get(), k_, memory, (double*)scratch, nullptr};
    }
    size_t panel(int64_t g) const { return whole(panel_numbers(*plan_.of[g], k_)); }

    void factorise(int64_t g, int64_t r, const double* diagonal, const double* off, Arena& arena) {
        const GraphPlan& one = *plan_.of[g];
        const int64_t n0 = plan_.first[g], e0 = plan_.edge_first[g];
        const int k = k_;
        std::unique_ptr<double[]>& memory = memory_[g * replicas_ + r];
        memory.reset(new double[front_numbers(one, k) + LANES]);
        diagonal += r * k * k * plan_.nodes, off += r * k * k * plan_.edges;
        const bool sound = fronts(g, r, arena.room(panel(g))).factorise([&](int item, double* F,
                                                                             int stride) {
            const int a = one.own[item];
            if (item < one.n) {
                for (int x = 0; x < k; ++x)
                    for (int y = 0; y <= x; ++y)
                        F[(size_t)(a * k + x) * stride + a * k + y] +=
                            diagonal[(x * k + y) * plan_.nodes + n0 + item];
                return;
            }
            const int q = item - one.n, b = one.slot[q];
            if (a == b) return;
            const double* block = off + plan_.edge[e0 + q];
            for (int x = 0; x < k; ++x)
                for (int y = 0; y < k; ++y)
                    F[a > b ? (size_t)(a * k + x) * stride + b * k + y
                            : (size_t)(b * k + y) * stride + a * k + x] +=
                        block[(x * k + y) * plan_.edges];
        });
        if (!sound) memory.reset();
    }

    /// Solve for columns [columns, k, N], one after the other or eight side by side.
    template <class P>
    void substitute(int64_t g, int64_t r, int64_t columns, const double* b, Arena& arena, double* x) const {
        constexpr int lanes = sizeof(P) / sizeof(double);
        const GraphPlan& one = *plan_.of[g];
        const int64_t N = plan_.nodes, rest = N * k_;
        const int all = one.n * k_;
        V* scratch = arena.room(panel(g) + (size_t)all + std::max(one.widest, 1) * k_);
        P *y = (P*)(scratch + panel(g)), *part = y + all;
        for (int64_t c = 0; c < columns; c += lanes) {
            for (int i = 0; i < all; ++i)
                for (int l = 0; l < lanes; ++l)
                    ((double*)(y + i))[l] = b[std::min(c + l, columns - 1) * rest + i % k_ * N + i / k_];
            if (memory_[g * replicas_ + r])
                fronts(g, r, scratch).substitute(y, part);
            else
                std::fill(y, y + all, P{} + NAN);
            for (int i = 0; i < all; ++i)
                for (int l = 0; l < lanes && c + l < columns; ++l)
                    x[(c + l) * rest + i % k_ * N + i / k_] = ((const double*)(y + i))[l];
        }
    }
};

}  // namespace hog

// Systems A x = b with one symmetric positive definite number a pair of neighbours, for many right-hand
// sides: graph signal denoising, where all channels and replicas share the matrix.
#pragma once
#include "batch.h"

namespace hog {

/// A factor of one graph's matrix, and solves with eight right-hand sides side by side.
class SymmetricTask {
  public:
    SymmetricTask(const Plan& plan, int64_t graph, Arena& arena)
        : plan_(plan), g_(*plan.of[graph]), graph_(graph) {
        const size_t numbers = whole(front_numbers(g_, 1)), panel = whole(panel_numbers(g_, 1));
        V* memory = arena.room(numbers + panel + g_.n + g_.widest);
        fronts_ = Fronts{&g_, 1, (double*)memory, (double*)(memory + numbers), nullptr};
        x_ = memory + numbers + panel;
        part_ = x_ + g_.n;
    }

    /// `diagonal` [N], and `edge` [E]: what an edge adds to the entries of its two ends.
    bool factorise(const double* diagonal, const double* edge) {
        const int64_t n0 = plan_.first[graph_], e0 = plan_.edge_first[graph_];
        return fronts_.factorise([&](int item, double* F, int stride) {
            const int a = g_.own[item];
            if (item < g_.n) {
                F[(size_t)a * stride + a] += diagonal[n0 + item];
                return;
            }
            const int q = item - g_.n, b = g_.slot[q];
            if (a != b)
                F[(size_t)std::max(a, b) * stride + std::min(a, b)] +=
                    edge[plan_.edge[e0 + q]];
        });
    }

    /// x = A^-1 b for the right-hand sides [columns, N]; false where that is not finite.
    bool solve(int64_t columns, const double* b, double* x) {
        const int64_t n0 = plan_.first[graph_], N = plan_.nodes;
        V sum = wide(0.0);
        for (int64_t c = 0; c < columns; c += LANES) {
            for (int l = 0; l < LANES; ++l) {
                const double* from = b + std::min(c + l, columns - 1) * N + n0;
                for (int i = 0; i < g_.n; ++i) lane(x_[i], l) = from[i];
            }
            fronts_.substitute_columns(x_, part_);
            for (int l = 0; l < LANES && c + l < columns; ++l) {
                double* to = x + (c + l) * N + n0;
                for (int i = 0; i < g_.n; ++i) to[i] = get(x_[i], l);
            }
            for (int i = 0; i < g_.n; ++i) sum += x_[i];
        }
        return std::isfinite(sum_lanes(sum));
    }

  private:
    const Plan& plan_;
    const GraphPlan& g_;
    const int64_t graph_;
    Fronts fronts_;
    V *x_, *part_;
};

/// Solve for every graph; `sound` [G] tells where the matrix was positive definite.
inline void solve_symmetric(const Plan& plan, const double* diagonal, const double* edge,
                            int64_t columns, const double* b, int64_t threads, double* x,
                            int64_t* sound) {
    std::vector<Arena> arenas(std::max<int64_t>(threads, 1));
    const std::vector<int64_t> order = largest_first(plan);
    each_task(plan.graphs, threads, [&](int64_t t, int64_t thread) {
        SymmetricTask task(plan, order[t], arenas[thread]);
        sound[order[t]] = task.factorise(diagonal, edge) && task.solve(columns, b, x);
    });
}

}  // namespace hog

// The linear solver of a Task (energy.h) where all threads of a GPU compute one large graph: conjugate
// gradients with the blocks of its Hessian (system.h).
#pragma once
#include "grid_gpu.h"
#include "system.h"

namespace hog {

/// The nodes of a graph, dealt out to all threads.
struct GridNodes {
    const Grid& team;
    const int n;

    HOG_METHOD void sync() const { team.sync(); }

    template <class Each>
    HOG_METHOD void each(const Each& what) const {
        HOG_PACKS(i, n) what(i);
    }
    /// `what(i, a, b)` adds to a, and makes b larger; all threads get the sum and the largest one.
    template <class Each>
    HOG_METHOD void sum_and_max(const Each& what, double& a, double& b) const {
        a = b = 0;
        HOG_PACKS(i, n) what(i, a, b);
        team.sum_and_max(a, b);
    }
    /// `hear(i)` for all nodes, and then `answer(i, a)`, which adds to a; all threads get the sum.
    template <class Hear, class Answer>
    HOG_METHOD double both_ways(const Hear& hear, const Answer& answer) const {
        HOG_PACKS(i, n) hear(i);
        team.sync();
        double sum = 0, none = 0;
        HOG_PACKS(i, n) answer(i, sum);
        team.sum(sum, none);
        return sum;
    }
};

/// Copy the blocks of a task's Hessian, and invert those of the nodes.
template <class T, int K, int M, class Task>
HOG_LARGE void fill_system(const System<T, K, M, GridNodes>& to, const Task& t) {
    const Grid& team = t.team;
    HOG_PACKS(e, t.v.e) {
        T* row = to.edge + (size_t)e * to.EDGE;
        HOG_EACH(c, M * K) row[c] = (T)t.Jj.at(e, c);
        HOG_EACH(c, K * K) row[M * K + c] = (T)t.X.at(e, c);
    }
    HOG_PACKS(i, t.v.n) {
        double own[K * K], whole[K * K];
        HOG_EACH(c, K * K) own[c] = whole[c] = t.B.at(i, c);
        for (int o = t.v.out_ptr[i]; o < t.v.out_ptr[i + 1]; ++o) {
            const int e = t.v.out_edge[o];
            double J[M * K], UJ[M * K];
            HOG_EACH(c, M * K) J[c] = t.Jj.at(e, c), UJ[c] = t.UJ.at(e, c);
            HOG_EACH(a, K) HOG_EACH(c, K) {
                const double sent = t.Hjj.at(e, a * K + c);
                double paired = 0;
                HOG_EACH(m, M) paired += J[m * K + a] * UJ[m * K + c];
                whole[a * K + c] += sent;
                own[a * K + c] += sent - paired;
            }
        }
        invert<K>(whole);
        to.put_node(i, own, whole);
        T* const u = to.node + (size_t)i * to.NODE + K * K;
        HOG_EACH(a, M) HOG_EACH(c, M) u[a * M + c] = (T)t.Um.at(i, a * (M + K) + c);
    }
    team.sync();
}

/// Solves with single precision, and refines the solution in double precision.
struct GridKrylov {
    static constexpr bool matrix_free = false;
    double* memory;
    double rtol, atol;  // Refined

    template <class Task>
    HOG_LARGE bool solve(const Task& t, const double* from, double sign, double* x) const {
        constexpr int K = Task::s().k(), M = Task::s().merged();
        const GridNodes nodes{t.team, t.v.n};
        double* room = memory;
        const System<double, K, M, GridNodes> fine(t.v, nodes, room);
        float* rest = (float*)room;
        const System<float, K, M, GridNodes> fast(t.v, nodes, rest);
        fill_system(fast, t);
        return Refined{rtol, atol}.solve(fine, fast, K, from, sign, x, [&] { fill_system(fine, t); });
    }
};

}  // namespace hog

// Conjugate gradients with products of the Hessian: the linear solver of a Task (energy.h) where
// embeddings are wide. A product costs as much as the networks, O(k w) an edge with hidden widths w, and
// the blocks of the Hessian, O(k^2) an edge, are never made.
#pragma once
#include <cmath>
#include <cstddef>

#include "vectors.h"

namespace hog {

/// Numbers of memory that the iteration needs.
HOG_FN size_t krylov_numbers(int n, int k) { return 5 * (size_t)n * k; }

struct Krylov {
    static constexpr bool matrix_free = true;
    double* memory;      // krylov_numbers
    double rtol, atol;   // relative to the right-hand side, in the largest entry; rtol 0: adapt
    int most;            // iterations

    /// x = sign H^-1 from; false where that does not converge or is not finite. Within Newton's
    /// method (rtol = 0) the tolerance follows the residual, which keeps the convergence quadratic.
    template <class Task>
    bool solve(Task& task, const double* from, double sign, double* x) const {
        const auto& team = task.team;
        const int all = task.v.n * task.s().k(), first = team.first(all), last = team.last(all);
        double *r = memory, *p = r + all, *z = p + all, *q = z + all, *inverse = q + all;
        task.diagonal(inverse);
        double size = 0, rz = 0, none = 0;
        for (int i = first; i < last; ++i) {
            inverse[i] = 1 / inverse[i];
            r[i] = sign * from[i];
            x[i] = 0;
            p[i] = inverse[i] * r[i];
            rz += r[i] * p[i];
            size = std::fmax(size, std::fabs(r[i]));
        }
        team.sum(rz, none);
        team.max(size, none);
        const double share = rtol > 0 ? rtol : std::fmin(std::fmax(size, 1e-10), 1e-2);
        const double limit = std::fmax(share * size, atol);
        double worst = size;
        for (int turn = 0; turn < most; ++turn) {
            if (!std::isfinite(rz)) return false;
            if (worst <= limit) return true;
            task.product(p, q);
            double curved = 0, next = 0;
            for (int i = first; i < last; ++i) curved += p[i] * q[i];
            team.sum(curved, none);
            const double step = rz / curved;
            worst = 0;
            for (int i = first; i < last; ++i) {
                x[i] += step * p[i];
                r[i] -= step * q[i];
                z[i] = inverse[i] * r[i];
                next += r[i] * z[i];
                worst = std::fmax(worst, std::fabs(r[i]));
            }
            team.sum(next, none);
            team.max(worst, none);
            for (int i = first; i < last; ++i) p[i] = z[i] + next / rz * p[i];
            rz = next;
            team.sync();
        }
        return rtol == 0;  // a direction of descent all the same
    }
};

}  // namespace hog

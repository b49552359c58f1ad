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
        const int n = task.v.n * task.s().k();
        double *r = memory, *p = r + n, *z = p + n, *q = z + n, *inverse = q + n;
        task.diagonal(inverse);
        double size = 0, rz = 0;
        for (int i = 0; i < n; ++i) {
            inverse[i] = 1 / inverse[i];
            r[i] = sign * from[i];
            x[i] = 0;
            size = std::fmax(size, std::fabs(r[i]));
        }
        const double share = rtol > 0 ? rtol : std::fmin(std::fmax(size, 1e-10), 1e-2);
        const double limit = std::fmax(share * size, atol);
        for (int i = 0; i < n; ++i) {
            p[i] = inverse[i] * r[i];
            rz += r[i] * p[i];
        }
        for (int turn = 0; turn < most; ++turn) {
            double worst = 0;
            for (int i = 0; i < n; ++i) worst = std::fmax(worst, std::fabs(r[i]));
            if (worst <= limit) return std::isfinite(rz);
            if (!std::isfinite(rz)) return false;
            task.product(p, q);
            double curved = 0;
            for (int i = 0; i < n; ++i) curved += p[i] * q[i];
            const double step = rz / curved;
            double next = 0;
            for (int i = 0; i < n; ++i) {
                x[i] += step * p[i];
                r[i] -= step * q[i];
                z[i] = inverse[i] * r[i];
                next += r[i] * z[i];
            }
            for (int i = 0; i < n; ++i) p[i] = z[i] + next / rz * p[i];
            rz = next;
        }
        return rtol == 0;  // a direction of descent all the same
    }
};

}  // namespace hog

// Conjugate gradients with products of the Hessian (hessian.h): the linear solver of a Task (energy.h)
// where embeddings are wide. A product costs as much as the networks, O(k w) an edge with hidden widths
// w, and the blocks of the Hessian, O(k^2) an edge, are never made.
#pragma once
#include <cmath>
#include <cstddef>

#include "draws.h"
#include "hessian.h"

namespace hog {

/// One vector of conjugate gradients, in whole packs.
template <class T>
size_t krylov_length(int n, int k) {
    const size_t lanes = Wide<T>::lanes;
    return ((size_t)n * padded(k) + lanes - 1) / lanes * lanes;
}

/// Packs of memory that the iteration needs on a graph of n nodes and e edges.
template <class Task, class S>
size_t krylov_packs(const S& s, int n, int e) {
    return 5 * (krylov_length<double>(n, s.k()) / 8 + krylov_length<float>(n, s.k()) / 16) +
           Hessian<float, Task>::vectors(s, n, e) + Hessian<double, Task>::rows(s, n, e);
}

/// The vectors of one run, and conjugate gradients with them.
template <class T, class Task>
struct Iteration {
    typedef typename Wide<T>::type P;
    static constexpr int lanes = Wide<T>::lanes;
    const Hessian<T, Task>& hessian;
    const typename Task::Team& team;
    int length;  // packs
    P *x, *r, *p, *q, *inverse;

    Iteration(const Hessian<T, Task>& of, const typename Task::Team& threads, size_t numbers, V* memory)
        : hessian(of), team(threads), length((int)(numbers / lanes)), x((P*)memory), r(x + length),
          p(r + length), q(p + length), inverse(q + length) {}

    /// x += H^-1 r, until r goes down to `limit` in its largest entry, `worst`, or `most` turns have
    /// passed. The number of turns; -1 where numbers are not finite.
    int run(double limit, int most, double& worst) const {
        double rz = 0, none = 0;
        sums(rz, worst);
        each([&](int i) {
            p[i] = inverse[i] * r[i];
            q[i] = P{};  // a product writes nothing behind the last node
        });
        team.sync();
        for (int turn = 0;; ++turn) {
            if (!std::isfinite(rz) || !std::isfinite(worst)) return -1;
            if (worst <= limit || turn == most) return turn;
            hessian.product((const T*)p, (T*)q);
            double curved = total([&](int i) { return p[i] * q[i]; });
            team.sum(curved, none);
            const T step = (T)(rz / curved);
            each([&](int i) {
                x[i] += step * p[i];
                r[i] -= step * q[i];
            });
            double next = 0;
            sums(next, worst);
            const T keep = (T)(next / rz);
            each([&](int i) { p[i] = inverse[i] * r[i] + keep * p[i]; });
            rz = next;
            team.sync();
        }
    }

    template <class Do>
    void each(const Do& what) const {
        HOG_PACKS(i, length) what(i);
    }

    /// The sum over all numbers of the packs that this thread computes; long sums in double precision.
    template <class Of>
    double total(const Of& of) const {
        double all = 0;
        const int end = team.last(length);
        for (int i = team.first(length); i < end;) {
            P sum = P{};
            for (const int stop = std::min(end, i + 64); i < stop; ++i) sum += of(i);
            for (int l = 0; l < lanes; ++l) all += sum[l];
        }
        return all;
    }

    /// r' M r with the preconditioner M, and the largest entry of r.
    void sums(double& rz, double& worst) const {
        rz = total([&](int i) { return r[i] * r[i] * inverse[i]; });
        P most = P{};
        each([&](int i) {
            const P size = pick(r[i] < 0, -r[i], P(r[i]));
            most = pick(size > most, size, most);
        });
        double none = 0;
        worst = 0;
        for (int l = 0; l < lanes; ++l) worst = std::fmax(worst, (double)most[l]);
        team.sum(rz, none);
        team.max(worst, none);
    }
};

/// Solves with single precision, and refines the solution in double precision.
struct Krylov {
    static constexpr bool matrix_free = true;
    V* memory;          // krylov_packs
    double rtol, atol;  // relative to the right-hand side, in the largest entry; rtol 0: adapt
    int most;           // iterations
    double allowed;     // products for each linear system; more of them cost more than a factorisation
    mutable bool begun = false, scaled = false;
    mutable int systems = 0;
    mutable double spent = 0;  // products; one in single precision is half a product

    static constexpr double QUICK = 5e-7;  // what single precision is asked for
    static constexpr double LOOSE = 0.1;   // what Newton's method asks for far from the solution,
    static constexpr double HUBS = 1e-2;   // and where a hub's entry is much larger than the others
    static constexpr int PATIENCE = 100;   // turns until the masses precondition in any case
    static constexpr double SPREAD = 8;    // of the nodes' weights above which it always does

    /// Whether the systems so far took more products than their factorisations would have cost.
    bool exhausted() const { return spent >= allowed * systems; }

    /// x = sign H^-1 from; false where that does not converge or is not finite. Within Newton's
    /// method (rtol = 0) the tolerance follows the residual, which keeps the convergence fast.
    template <class Task>
    bool solve(Task& task, const double* from, double sign, double* x) const {
        const auto& team = task.team;
        const int n = task.v.n, k = task.s().k();
        const size_t wide = krylov_length<double>(n, k), narrow = krylov_length<float>(n, k);
        V* const single = memory + 5 * wide / 8;
        V* const copies = single + 5 * narrow / 16;
        V* const rows = copies + Hessian<float, Task>::vectors(task.s(), n, task.v.e);
        const Hessian<double, Task> exact(task, nullptr, rows);
        const Hessian<float, Task> quick(task, copies, rows);
        const Iteration<double, Task> fine(exact, team, wide, memory);
        const Iteration<float, Task> fast(quick, team, narrow, single);
        const int stride = exact.stride;
        ++systems;
        if (!begun) {
            quick.copy_contexts();
            double ignored;
            precondition(task, fine, fast, fine.hessian.spread(ignored) > SPREAD);
            begun = true;
        } else if (scaled) {
            precondition(task, fine, fast, true);
        }
        quick.copy_point();
        double size = 0, none = 0;
        fine.each([&](int i) { fine.x[i] = fine.r[i] = V{}; });
        team.sync();
        double* const right = (double*)fine.r;
        HOG_PACKS(i, n)
        for (int c = 0; c < k; ++c) {
            right[(size_t)i * stride + c] = sign * from[i * k + c];
            const double entry = std::fabs(from[i * k + c]);
            if (entry > size || entry != entry) size = entry;
        }
        team.max(size, none);
        if (!std::isfinite(size)) return false;
        const double share =
            rtol > 0 ? rtol : std::fmin(std::fmax(size, 1e-5), scaled ? HUBS : LOOSE);
        const double limit = std::fmax(share * size, atol);
        const bool sound = refine(task, fine, fast, size, limit);
        HOG_PACKS(i, n)
        for (int c = 0; c < k; ++c) x[i * k + c] = ((const double*)fine.x)[(size_t)i * stride + c];
        team.sync();
        return sound;
    }

    /// The task's tangents md of the messages and mt along x [n, k].
    template <class Task>
    void tangents(Task& task, const double* x) const {
        const auto& team = task.team;
        const int n = task.v.n, k = task.s().k();
        const size_t wide = krylov_length<double>(n, k), narrow = krylov_length<float>(n, k);
        V* const rows = memory + 5 * (wide / 8 + narrow / 16) +
                        Hessian<float, Task>::vectors(task.s(), n, task.v.e);
        const Hessian<double, Task> exact(task, nullptr, rows);
        const Iteration<double, Task> fine(exact, team, wide, memory);
        HOG_PACKS(i, n)
        for (int c = 0; c < k; ++c) ((double*)fine.p)[(size_t)i * exact.stride + c] = x[i * k + c];
        team.sync();
        exact.tangents((const double*)fine.p, (double*)fine.q);
    }

  private:
    /// So many turns, or those that are left of what is allowed.
    int affordable(int turns, double price) const {
        const double left = std::fmax((allowed * systems - spent) / price, 0.0);
        return left < turns ? (int)left + 1 : turns;
    }

    /// fine.x += H^-1 fine.r, where the largest entry of fine.r is `worst`.
    template <class Task, class Fine, class Fast>
    bool refine(Task& task, const Fine& fine, const Fast& fast, double worst, double limit) const {
        const auto& team = task.team;
        while (worst > limit) {
            const double before = worst, down = 1 / worst;
            const double goal = std::fmax((rtol > 0 ? 0.5 : 1.0) * limit / worst, QUICK);
            fast.each([&](int i) {
                fast.x[i] = typename Fast::P{};
                for (int half = 0; half < 2; ++half) {
                    const double* const from = (const double*)(fine.r + 2 * i + half);
                    float* const to = (float*)(fast.r + i) + half * LANES;
                    const bool there = 2 * i + half < fine.length;
                    for (int l = 0; l < LANES; ++l) to[l] = there ? (float)(down * from[l]) : 0.0f;
                }
            });
            team.sync();
            double left;
            int turns = fast.run(goal, affordable(PATIENCE, 0.5), left);
            spent += 0.5 * std::max(turns, 0);
            if (turns >= 0 && left > goal) {
                if (!scaled) precondition(task, fine, fast, true);
                turns = fast.run(goal, affordable(4 * PATIENCE, 0.5), left);
                spent += 0.5 * std::max(turns, 0);
            }
            if (turns < 0 || left > goal) break;
            fine.each([&](int i) {
                const float* const found = (const float*)(fast.x + i / 2) + i % 2 * LANES;
                double* const to = (double*)(fine.p + i);
                for (int l = 0; l < LANES; ++l) to[l] = before * (double)found[l];
                fine.x[i] += fine.p[i];
            });
            team.sync();
            if (rtol == 0) return true;  // Newton's method measures the residual itself
            fine.hessian.product((const double*)fine.p, (double*)fine.q);
            fine.each([&](int i) { fine.r[i] -= fine.q[i]; });
            double ignored;
            fine.sums(ignored, worst);
            if (!(worst < 0.1 * before)) break;
        }
        if (worst <= limit) return true;
        // Single precision does not suffice. Within Newton's method any direction of descent helps.
        const int turns = fine.run(limit, affordable(most, 1.0), worst);
        spent += std::max(turns, 0);
        return turns >= 0 && (worst <= limit || rtol == 0);
    }

    /// The preconditioner: the identity, or the inverse of what the Hessian's diagonal is about, beta and a
    /// share of the node's mass; one product with random signs tells the share. In ordinary graphs the
    /// diagonal is about the same everywhere; then the identity needs fewer turns, and is free.
    template <class Task, class Fine, class Fast>
    void precondition(Task& task, const Fine& fine, const Fast& fast, bool scale) const {
        const auto& team = task.team;
        scaled = scale;
        fine.each([&](int i) { fine.inverse[i] = V{} + 1.0; });
        team.sync();
        if (scale) {
            const int n = task.v.n, k = task.s().k();
            const size_t stride = fine.hessian.stride;
            fine.each([&](int i) { fine.p[i] = fine.q[i] = V{}; });
            team.sync();
            HOG_PACKS(i, n)
            for (int c = 0; c < k; ++c) ((double*)fine.p)[i * stride + c] = mix(i * stride + c) & 1 ? 1.0 : -1.0;
            team.sync();
            fine.hessian.product((const double*)fine.p, (double*)fine.q);
            double trace = fine.total([&](int i) { return fine.p[i] * fine.q[i]; }), none = 0, mean;
            team.sum(trace, none);
            fine.hessian.spread(mean);
            const double beta = task.s().beta(), share = (trace / ((double)n * k) - beta) / mean;
            HOG_PACKS(i, n)
            for (int c = 0; c < k; ++c)
                ((double*)fine.inverse)[i * stride + c] = 1 / (beta + std::fmax(share, 0.0) * fine.hessian.mass(i));
            team.sync();
        }
        fast.each([&](int i) {
            for (int half = 0; half < 2; ++half)
                for (int l = 0; l < LANES; ++l)
                    fast.inverse[i][half * LANES + l] =
                        2 * i + half < fine.length ? (float)fine.inverse[2 * i + half][l] : 1.0f;
        });
        team.sync();
    }
};

}  // namespace hog

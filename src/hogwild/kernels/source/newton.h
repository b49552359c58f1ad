// Newton's method from h; the answer replaces h. The same rules as hogwild/solvers: Armijo's condition, the
// slope where rounding hides the decrease, secant curvature after `patience`.
//
// A problem `P` has the points h and trial, the gradient g and the direction d, all [n, k]; its value and
// the rounding error `noise` of it, and the residual and the scale of the gradient, at the last point. It is
// a Task (energy.h) or a graph in chunks (chunks.h).
#pragma once
#include "shapes.h"

namespace hog {

template <class P>
HOG_METHOD int newton(P& p, const Options& o, long long& iterations) {
    double t = 1, reach = 1, here = 0, rounding = 0, slope = 0;
    bool late = false;
    int tried = 0;
    for (iterations = -1;;) {
        const double* x = iterations < 0 ? p.h : p.trial;
        p.evaluate(x);
        bool accepted = iterations < 0 || p.value <= here + 1e-4 * t * slope;
        const bool close = !accepted && p.value <= here + rounding;
        if (accepted || close) p.differentiate(x, 0.0);
        if (close) accepted = !(p.dot(p.g, p.d) > 0.8 * fabs(slope));
        if (accepted) {
            if (iterations >= 0) {
                double* other = p.h;
                p.h = p.trial;
                p.trial = other;
                if (late) reach = t == 1.0 ? 0.25 * reach : 16.0 * reach;
                reach = reach < 1e-3 ? 1e-3 : reach > 1e9 ? 1e9 : reach;
            }
            ++iterations;
            here = p.value;
            rounding = p.noise;
            tried = 0;
            if (p.residual <= o.atol + o.rtol * p.scale) return CONVERGED;
            if (!(p.residual < 1.7976931348623157e308)) return NOT_FINITE;
            if (iterations == o.max_iter) return MAX_ITERATIONS;
            late = iterations >= o.patience;
            if (late) p.differentiate(p.h, reach);
            const bool sound = p.solve_linear(p.g, -1.0, p.d);
            if (p.exhausted()) return GAVE_UP;
            slope = sound ? p.dot(p.g, p.d) : 1.0;
            if (!(slope < 0)) {  // rounding broke the linear solve
                p.descend();
                slope = p.dot(p.g, p.d);
            }
            t = late || 4 * t > 1.0 ? 1.0 : 4 * t;
        } else if (++tried == o.max_backtracks || p.stopped()) {
            ++iterations;
            p.evaluate(p.h);
            p.differentiate(p.h, 0.0);
            return p.residual <= o.atol + o.rtol * p.scale ? CONVERGED : STALLED;
        } else {
            double share = -0.5 * slope * t / (p.value - here - slope * t);
            if (!(share == share)) share = 0.1;
            t *= share < 0.1 ? 0.1 : share > 0.5 ? 0.5 : share;
        }
        p.step(t);
    }
}

/// Newton's method on one graph and replica from `from` [k, N] (nullptr: zero); h [k, N] is the result.
template <class P>
HOG_METHOD int solve_one(P& problem, const Options& limits, const double* from, double* h, long long& iterations) {
    problem.fill_contexts();
    problem.read(from, problem.h);
    const int ended = newton(problem, limits, iterations);
    problem.write(problem.h, h);
    return ended;
}

/// The gradient [k, N] at h [k, N].
template <class P>
HOG_METHOD void differentiate_one(P& problem, const double* h, double* gradient) {
    problem.fill_contexts();
    problem.read(h, problem.h);
    problem.evaluate(problem.h);
    problem.differentiate(problem.h, 0.0);
    problem.write(problem.g, gradient);
}

/// lambda = H^-1 dL/dh, into d, from gradient = dL/dh [k, N] at the solution h [k, N].
template <class P>
HOG_METHOD bool solve_dual(P& problem, const double* h, const double* gradient) {
    problem.fill_contexts();
    problem.read(h, problem.h);
    problem.linearise(problem.h);
    problem.read(gradient, problem.trial);
    problem.hold(problem.trial);
    return problem.solve_linear(problem.trial, 1.0, problem.d);
}

}  // namespace hog

// The networks of picnn.h, layer by layer, with all sizes as template parameters: a GPU's compiler then
// unrolls every loop, so that a thread's numbers are in registers. (A loop over layers is unrolled after
// the loops inside it, whose lengths are not known by then.) picnn.h has the meaning of the arguments.
#pragma once
#include "sizes_gpu.h"

namespace hog {

typedef HOG_REAL Real;  // double or float: what the networks compute in

/// What was read before is read again: registers need not hold it.
HOG_FN void read_again() {
#if !defined(HOG_EMULATED)
    asm volatile("" ::: "memory");
#endif
}

#if defined(HOG_EMULATED)
HOG_FN float power_of_two(float x) { return exp2f(x); }
HOG_FN float reciprocal(float x) { return 1.0f / x; }
#else
/// 2^x and 1 / x as the GPU's units for them compute it, to two units in the last place: an exact
/// division or exponential takes ten times as many instructions.
HOG_FN float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
HOG_FN float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

/// log(1 + exp(a)), or the other activation, and its slope, in single precision. `softplus` of vectors.h
/// has the formula; the polynomial's largest error is 5e-9.
HOG_FN float activate(int act, float a, float& slope) {
    if (act == SOFTPLUS) {
        const float e = power_of_two(-1.44269504f * fabsf(a)), one = 1.0f + e, two = 2.0f + e;
        const float inverse = reciprocal(one * two), share = inverse * two, t = e * (inverse * one), q = t * t;
        slope = a >= 0.0f ? share : e * share;
        const float p = (((0.28174657f * q + 0.27961418f) * q + 0.40024853f) * q + 0.66666317f) * q + 2.0f;
        return t * p + (a > 0.0f ? a : 0.0f);
    }
    const float r = sqrtf(a * a + 4.0f);
    slope = 0.5f * (1.0f + a / r);
    return 0.5f * (a + r);
}
HOG_FN float majoriser(float a, float slope) {
    return fabsf(a) < 1e-2f ? 0.25f : (slope - 0.5f) / a;  // nearer, the slope has too few digits
}

/// f(y) from layer l on, which reads the units z of the layer before; slopes and pre-activations of the
/// hidden units go to `s` and `a`.
template <class N, int l = 0>
HOG_FN void forward_from(const Real* W, const Real* q, const Real* y, const Real* z, Real* s, Real* a,
                         Real* value) {
    constexpr int D = N::D(), width = N::w(l), before = N::before(l), at = N::q(l), unit = N::unit(l);
    constexpr bool last = l + 1 == N::L();
    const Real *Wy = W + N::p(l), *Wz = Wy + width * D;
    Real gated[D + before], next[width];
    HOG_EACH(j, D) gated[j] = q[at + j] * y[j];
    HOG_EACH(j, before) gated[D + j] = q[at + D + width + j] * z[j];
    HOG_EACH(i, width) {
        Real x = q[at + D + i], other = 0;  // two sums, which do not wait for each other
        HOG_EACH(j, D) x += Wy[i * D + j] * gated[j];
        HOG_EACH(j, before) other += Wz[i * before + j] * gated[D + j];
        if (before) x += other;
        if constexpr (last) {
            value[i] = x;
        } else {
            a[unit + i] = x;
            next[i] = activate(N::act(), x, s[unit + i]);
        }
    }
    if constexpr (!last) forward_from<N, l + 1>(W, q, y, next, s, a, value);
}

/// Adds to `out` [D] what the weights `top` on the pre-activations of layer l send back to y.
/// `visit(unit, felt)` gets the sensitivity of every hidden unit below, before its slope.
template <class N, int l, class Visit>
HOG_FN void pull_from(const Real* W, const Real* q, const Real* s, const Real* top, const Visit& visit,
                      Real* out) {
    constexpr int D = N::D(), width = N::w(l), before = N::before(l), at = N::q(l);
    const Real *Wy = W + N::p(l), *Wz = Wy + width * D;
    HOG_EACH(j, D) {
        Real sum = 0;
        HOG_EACH(i, width) sum += Wy[i * D + j] * top[i];
        out[j] += q[at + j] * sum;
    }
    if constexpr (l > 0) {
        constexpr int unit = N::unit(l - 1);
        Real below[before];
        HOG_EACH(m, before) {
            Real sum = 0;
            HOG_EACH(i, width) sum += Wz[i * before + m] * top[i];
            sum *= q[at + D + width + m];
            visit(unit + m, sum);
            below[m] = sum * s[unit + m];
        }
        pull_from<N, l - 1>(W, q, s, below, visit, out);
    }
}

/// The gradient J' p.
template <class N, class Visit>
HOG_FN void gradient_by(const Real* W, const Real* q, const Real* s, const Real* p, const Visit& visit,
                        Real* out) {
    HOG_EACH(j, N::D()) out[j] = 0;
    pull_from<N, N::L() - 1>(W, q, s, p, visit, out);
}
template <class N>
HOG_FN void gradient_by(const Real* W, const Real* q, const Real* s, const Real* p, Real* out) {
    gradient_by<N>(W, q, s, p, [](int, Real) {}, out);
}

/// The Jacobians of layer l and of those behind it: `every` [hidden, D], and J [out, D] of f.
template <class N, int l = 0>
HOG_FN void jacobians_from(const Real* W, const Real* q, const Real* s, Real* every, Real* J) {
    constexpr int D = N::D(), width = N::w(l), before = N::before(l), at = N::q(l), unit = N::unit(l);
    constexpr bool last = l + 1 == N::L();
    const Real *Wy = W + N::p(l), *Wz = Wy + width * D;
    Real* mine = last ? J : every + unit * D;
    Real up[before + 1];
    HOG_EACH(m, before) up[m] = q[at + D + width + m] * s[unit - before + m];
    HOG_EACH(i, width) HOG_EACH(j, D) {
        Real sum = Wy[i * D + j] * q[at + j];
        HOG_EACH(m, before) sum += Wz[i * before + m] * up[m] * every[(unit - before + m) * D + j];
        mine[i * D + j] = sum;
    }
    if constexpr (!last) jacobians_from<N, l + 1>(W, q, s, every, J);
}

/// J [out, D], the gradient J' p, and the lower triangle of the curvature H [D, D] of p' f, for
/// curvatures of the activations that majorise.
template <class N>
HOG_FN void expand_majorised(const Real* W, const Real* q, const Real* s, const Real* a, const Real* p,
                             Real* J, Real* gradient, Real* H) {
    constexpr int D = N::D();
    Real every[N::hidden() * D + 1], bent[N::hidden() + 1];
    jacobians_from<N>(W, q, s, every, J);
    gradient_by<N>(W, q, s, p, [&](int m, Real felt) { bent[m] = felt * majoriser(a[m], s[m]); }, gradient);
    HOG_EACH(i, D * D) H[i] = 0;
    HOG_EACH(m, N::hidden()) HOG_EACH(i, D) {
        const Real share = bent[m] * every[m * D + i];
        HOG_EACH(j, i + 1) H[i * D + j] += share * every[m * D + j];
    }
}

}  // namespace hog

// Numbers that are computed side by side: eight rows (edges or nodes) on a CPU, one row a thread on
// a GPU. Everything that reads networks is written once, in terms of `V`.
#pragma once

// HOG_EMULATED: a GPU's threads are emulated on a CPU, for tests.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(HOG_EMULATED)
#define HOG_GPU 1
#define HOG_FN __device__ __forceinline__
#define HOG_INLINE HOG_FN
#define HOG_METHOD __device__ __forceinline__
/// The dynamic shared memory of a block.
#ifdef HOG_EMULATED
#define HOG_SHARED(name) double* const name = emulated_shared
#else
#define HOG_SHARED(name) extern __shared__ double name[]
#endif
#else
#define HOG_GPU 0
#define HOG_FN static inline
#define HOG_INLINE static inline __attribute__((always_inline))
#define HOG_METHOD inline
// A method that asks memory for what comes later. GCC takes a function that does nothing else for one
// without effects, and drops its calls unless they are inlined. Answers go to the second cache, whose
// misses do not hold up the reads of the first one.
#define HOG_ASKS inline __attribute__((always_inline))
#define HOG_ASK_FOR(at) __builtin_prefetch(at, 0, 2)
#include <cmath>
#include <cstring>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif
#include "packs.h"
#endif

namespace hog {

#if HOG_GPU

constexpr int LANES = 1;
typedef double V;
typedef bool Mask;
HOG_FN V wide(double x) { return x; }
HOG_FN double& lane(V& x, int) { return x; }
HOG_FN double get(V x, int) { return x; }
HOG_FN double sum_lanes(V x) { return x; }
HOG_FN V absolute(V x) { return fabs(x); }
HOG_FN V root(V x) { return sqrt(x); }
HOG_FN V minus_absolute(V x) { return -fabs(x); }
/// The larger one of a number and x; NaN if x is NaN.
HOG_FN V not_below(double least, V x) { return x < least ? least : x; }
/// 2^n for `shifted` = n + 1.5 * 2^52, whose lowest bits hold the integer n.
HOG_FN V two_to(V shifted) {
    return __longlong_as_double((__double_as_longlong(shifted) << 52) + 0x3ff0000000000000LL);
}
HOG_FN bool any(Mask m) { return m; }
HOG_FN V pick(Mask m, V yes, V no) { return m ? yes : no; }

#else

constexpr int LANES = 8;
typedef Vector<double, 64>::type V;
typedef Vector<long long, 64>::type Mask;
HOG_FN V wide(double x) { return Vector<double, 64>::all(x); }
HOG_FN double& lane(V& x, int l) { return reinterpret_cast<double*>(&x)[l]; }
HOG_FN double get(const V& x, int l) { return x[l]; }
HOG_FN double sum_lanes(const V& x) {
    return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7]));
}
/// An 8 x 8 matrix of rows, transposed.
HOG_INLINE void transpose(V* a) { turn<LANES>(a); }
HOG_FN V absolute(V x) { return (V)((Mask)x & 0x7fffffffffffffffLL); }
HOG_FN V root(V x) {
    for (int l = 0; l < LANES; ++l) lane(x, l) = std::sqrt(get(x, l));
    return x;
}
HOG_FN V minus_absolute(V x) { return (V)((Mask)x | (-0x7fffffffffffffffLL - 1)); }
/// The larger one of a number and x; NaN if x is NaN.
HOG_FN V not_below(double least, V x) {
#if defined(__AVX512F__)
    return (V)_mm512_max_pd((__m512d)wide(least), (__m512d)x);
#else
    return pick(x < least, wide(least), x);
#endif
}
/// 2^n for `shifted` = n + 1.5 * 2^52, whose lowest bits hold the integer n.
HOG_FN V two_to(V shifted) { return (V)(((Mask)shifted << 52) + 0x3ff0000000000000LL); }
HOG_FN bool any(const Mask& m) {
    long long found = 0;
    for (int l = 0; l < LANES; ++l) found |= m[l];
    return found != 0;
}

#endif

#if HOG_GPU && !defined(HOG_EMULATED)
/// 1 / x for normal x, without the branches of a division: the compiler can interleave units.
HOG_FN V reciprocal(V x) {
    double r;
    asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(r) : "d"(x));
    r = fma(r, fma(-x, r, 1.0), r);
    return fma(r, fma(-x, r, 1.0), r);
}
/// 1 / sqrt(x) for normal x, likewise; not a number for others.
HOG_FN double inverse_root(double x) {
    double y;
    asm("rsqrt.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
    double e = fma(-x * y, y, 1.0);
    y = fma(y * e, fma(e, 0.375, 0.5), y);
    e = fma(-x * y, y, 1.0);
    return fma(0.5 * y, e, y);
}
#else
HOG_FN V reciprocal(V x) { return 1.0 / x; }
#if HOG_GPU
HOG_FN double inverse_root(double x) { return 1.0 / sqrt(x); }
#endif
#endif

HOG_FN V larger(V a, V b) { return pick(a > b, a, b); }
HOG_FN V smaller(V a, V b) { return pick(a < b, a, b); }

/// c0 + c1 x + c2 x^2 + ...
HOG_INLINE V polynomial(V, double c) { return wide(c); }
template <class... C>
HOG_INLINE V polynomial(V x, double c, C... rest) {
    return polynomial(x, rest...) * x + c;
}

/// exp(x) for x <= 0, to about two units in the last place; zero below -700. NaN stays NaN. The
/// coefficients make the largest error on |r| <= log(2) / 2 as small as it gets (3e-16).
HOG_INLINE V exp_negative(V x) {
    x = not_below(-700.0, x);
    const V shifted = x * 1.4426950408889634 + 6755399441055744.0, n = shifted - 6755399441055744.0;
    // One constant for log(2) is enough: where n is large, exp(x) is small, and so is its error.
    const V r = x - n * 0.6931471805599453;
    const V p = polynomial(r, 1.0, 1.0, 0.49999999999998324, 0.16666666666611524, 0.04166666666813736,
                           0.008333333370885883, 0.001388888851604575, 0.00019841185212200141,
                           2.4801931840556427e-05, 2.7635001933754406e-06, 2.747677794283124e-07);
    return p * two_to(shifted);
}

/// 2 atanh(t) / t for 0 <= t <= 1/3; log1p(e) is 2 atanh(t) with t = e / (2 + e) and 0 <= e <= 1.
/// The largest error is 5e-17.
HOG_INLINE V twice_atanh_over(V t) {
    const V q = t * t;
    return polynomial(q, 2.0, 0.6666666666667789, 0.39999999995994145, 0.28571429063465137,
                      0.22222192643201225, 0.18182821005305064, 0.15364188249412764,
                      0.13587277978903314, 0.09898163403826027, 0.17749122702530654);
}

/// log(1 + exp(a)) and its derivative, from one exponential and one division.
HOG_INLINE V softplus(V a, V& slope) {
    const V e = exp_negative(minus_absolute(a));
    const V one = 1.0 + e, two = 2.0 + e;
    const V inverse = reciprocal(one * two);
    const V share = inverse * two;  // 1 / (1 + e)
    const V t = e * (inverse * one);
    slope = pick(a >= 0.0, share, e * share);
    return t * twice_atanh_over(t) + not_below(0.0, a);
}

/// The activations of PICNNs by their codes, in the order of ACTIVATIONS in hogwild/engines/cpu.py. `hog_sizes`
/// refuses other codes, and tests compare every one with hogwild_node/activations.py. Of any other code all
/// numbers are NaN.
enum Activation { SOFTPLUS, SQUAREPLUS, ACTIVATIONS };

/// The activation g and its slope.
HOG_FN V activate(int act, V a, V& slope) {
    switch (act) {
        case SOFTPLUS: return softplus(a, slope);
        case SQUAREPLUS: {
            const V r = root(a * a + 4.0);
            slope = 0.5 * (1.0 + a / r);
            return 0.5 * (a + r);
        }
        default: return slope = wide(0.0 / 0.0);  // not a number
    }
}

/// g'' from a and g'(a).
HOG_FN V curvature(int act, V a, V slope) {
    switch (act) {
        case SOFTPLUS: return slope * (1.0 - slope);
        case SQUAREPLUS: {
            const V square = a * a + 4.0;
            return 2.0 / (square * root(square));
        }
        default: return wide(0.0 / 0.0);  // not a number
    }
}

/// The curvature of a parabola that touches g at a and lies above g everywhere, for any of these g: each is
/// a / 2 + phi(|a|), where phi'(r) / r does not increase.
HOG_FN V majoriser(int act, V a, V slope) {
    const Mask near = absolute(a) < 1e-4;
    return pick(near, curvature(act, wide(0.0), wide(0.5)), (slope - 0.5) / pick(near, wide(1.0), a));
}

/// The curvature of the parabola that touches g at a and lies above g up to the distance `reach`
/// (`Activation.growth` in hogwild_node); a reach of NaN counts as zero.
HOG_FN V growth(int act, V a, V slope, V reach) {
    const V truth = curvature(act, a, slope), most = majoriser(act, a, slope), twice = 2.0 * absolute(a);
    const V distance = pick(reach <= twice, reach, pick(reach == reach, twice, wide(0.0)));
    const Mask far = distance > 1e-3;
    V r = pick(far, distance, wide(1.0)), ignored;
    r = pick(a >= 0.0, r, -r);
    const V chord =
        2.0 * (activate(act, a - r, ignored) - activate(act, a, ignored) + r * slope) / (r * r);
    return smaller(pick(far, larger(chord, truth), truth), most);
}

}  // namespace hog

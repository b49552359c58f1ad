// Numbers that are computed side by side: eight rows (edges or nodes) on a CPU, one row a thread on
// a GPU. Everything that reads networks is written once, in terms of `V`.
#pragma once

// HOG_EMULATED: a GPU's threads are emulated on a CPU, for tests.
#if defined(__CUDACC__) || defined(__CUDACC_RTC__) || defined(HOG_EMULATED)
#define HOG_GPU 1
#define HOG_FN __device__ __forceinline__
#define HOG_METHOD __device__ __forceinline__
#else
#define HOG_GPU 0
#define HOG_FN static inline
#define HOG_METHOD inline
#include <cmath>
#include <cstring>
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
HOG_FN V power_of_two(V n) {
    return __longlong_as_double(__double_as_longlong(n + (1023.0 + 6755399441055744.0)) << 52);
}
HOG_FN V nearest(V x) { return (x + 6755399441055744.0) - 6755399441055744.0; }
HOG_FN bool any(Mask m) { return m; }

#else

constexpr int LANES = 8;
typedef double V __attribute__((vector_size(64), aligned(64)));
typedef long long Mask __attribute__((vector_size(64), aligned(64)));
HOG_FN V wide(double x) { return V{x, x, x, x, x, x, x, x}; }
HOG_FN double& lane(V& x, int l) { return reinterpret_cast<double*>(&x)[l]; }
HOG_FN double get(V x, int l) { return x[l]; }
HOG_FN double sum_lanes(V x) {
    return ((x[0] + x[4]) + (x[1] + x[5])) + ((x[2] + x[6]) + (x[3] + x[7]));
}
HOG_FN V absolute(V x) { return (V)((Mask)x & 0x7fffffffffffffffLL); }
HOG_FN V root(V x) {
    for (int l = 0; l < LANES; ++l) x[l] = std::sqrt(x[l]);
    return x;
}
HOG_FN V power_of_two(V n) {
    // The bits of n + 1023 + 2^52 * 1.5 hold the integer n + 1023 in their lowest places.
    const V shifted = n + (1023.0 + 6755399441055744.0);
    return (V)((Mask)shifted << 52);
}
HOG_FN V nearest(V x) {
    const V big = wide(6755399441055744.0);  // 2^52 * 1.5: adding it rounds to whole numbers
    return (x + big) - big;
}
HOG_FN bool any(Mask m) {
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

HOG_FN V larger(V a, V b) { return a > b ? a : b; }
HOG_FN V smaller(V a, V b) { return a < b ? a : b; }

/// exp(x) for x <= 0, to about one unit in the last place; zero below -700. NaN stays NaN.
HOG_FN V exp_negative(V x) {
    x = x < -700.0 ? wide(-700.0) : x;
    const V n = nearest(x * 1.4426950408889634);
    V r = x - n * 6.93147180369123816490e-01;
    r = r - n * 1.90821492927058770002e-10;
    V p = wide(1.6059043836821613e-10);
    p = p * r + 2.08767569878681e-09;
    p = p * r + 2.505210838544172e-08;
    p = p * r + 2.755731922398589e-07;
    p = p * r + 2.7557319223985893e-06;
    p = p * r + 2.48015873015873e-05;
    p = p * r + 0.0001984126984126984;
    p = p * r + 0.001388888888888889;
    p = p * r + 0.008333333333333333;
    p = p * r + 0.041666666666666664;
    p = p * r + 0.16666666666666666;
    p = p * r + 0.5;
    p = p * r + 1.0;
    p = p * r + 1.0;
    return p * power_of_two(n);
}

/// 2 atanh(t) for 0 <= t <= 1/3, which is log1p(e) with t = e / (2 + e) and 0 <= e <= 1.
HOG_FN V twice_atanh(V t) {
    const V q = t * t;
    V p = wide(1.0 / 31);
    p = p * q + 1.0 / 29;
    p = p * q + 1.0 / 27;
    p = p * q + 1.0 / 25;
    p = p * q + 1.0 / 23;
    p = p * q + 1.0 / 21;
    p = p * q + 1.0 / 19;
    p = p * q + 1.0 / 17;
    p = p * q + 1.0 / 15;
    p = p * q + 1.0 / 13;
    p = p * q + 1.0 / 11;
    p = p * q + 1.0 / 9;
    p = p * q + 1.0 / 7;
    p = p * q + 1.0 / 5;
    p = p * q + 1.0 / 3;
    p = p * q + 1.0;
    return 2.0 * t * p;
}

/// log(1 + exp(a)) and its derivative, from one exponential and one division.
HOG_FN V softplus(V a, V& slope) {
    const V e = exp_negative(-absolute(a));
    const V one = 1.0 + e, two = 2.0 + e;
    const V inverse = reciprocal(one * two);
    const V share = inverse * two;  // 1 / (1 + e)
    slope = a >= 0.0 ? share : e * share;
    return (a > 0.0 ? a : wide(0.0)) + twice_atanh(e * (inverse * one));
}

enum Activation { SOFTPLUS = 0, SQUAREPLUS = 1 };

/// The activation g and its slope.
HOG_FN V activate(int act, V a, V& slope) {
    if (act == SOFTPLUS) return softplus(a, slope);
    const V r = root(a * a + 4.0);
    slope = 0.5 * (1.0 + a / r);
    return 0.5 * (a + r);
}

/// g'' from a and g'(a).
HOG_FN V curvature(int act, V a, V slope) {
    if (act == SOFTPLUS) return slope * (1.0 - slope);
    const V square = a * a + 4.0;
    return 2.0 / (square * root(square));
}

/// The curvature of a parabola that touches g at a and lies above g everywhere.
HOG_FN V majoriser(V a, V slope) {
    const Mask near = absolute(a) < 1e-4;
    return near ? wide(0.25) : (slope - 0.5) / (near ? wide(1.0) : a);
}

/// The curvature of the parabola that touches g at a and lies above g up to the distance `reach`;
/// the same formula as `Activation.growth` in hogwild_node.
HOG_FN V growth(int act, V a, V slope, double reach) {
    const V truth = curvature(act, a, slope), size = absolute(a);
    const V most = size < 1e-4 ? wide(0.25) : (slope - 0.5) / (size < 1e-4 ? wide(1.0) : a);
    const V distance = smaller(wide(reach), 2.0 * size);
    const V far = distance > 1e-3 ? distance : wide(1.0);
    const V r = a >= 0.0 ? far : -far;
    V ignored;
    const V chord =
        2.0 * (activate(act, a - r, ignored) - activate(act, a, ignored) + r * slope) / (r * r);
    return smaller(distance > 1e-3 ? larger(chord, truth) : truth, most);
}

}  // namespace hog

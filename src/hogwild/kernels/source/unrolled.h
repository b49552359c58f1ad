// Networks whose sizes are known when this is compiled, one row a lane: loops are unrolled, and a layer's
// numbers stay in registers. The arithmetic is that of picnn.h, which serves networks of any size.
#pragma once
#include "rows.h"

namespace hog {

#if defined(__GNUC__) && !defined(__clang__)
#define HOG_FULLY _Pragma("GCC unroll 16")
#else
#define HOG_FULLY _Pragma("unroll")
#endif
#define HOG_ALL(i, n) HOG_FULLY for (int i = 0; i < (n); ++i)

/// A network of constant sizes, forward and backward. Weights are numbers, or one number for each lane.
template <int D, int W, int O>
struct Unrolled {
    typedef FixedNet<D, W, O> N;

    /// Pre-activations x of layer l; z are the activations below it.
    template <int l, class T>
    HOG_INLINE void rise(const T* weights, const V* q, const V* y, const V* z, V* x) {
        constexpr int width = N::w(l), at = N::q(l);
        const T *Wy = weights + N::p(l), *Wz = Wy + width * D;
        HOG_ALL(i, width) x[i] = q[at + D + i];
        HOG_ALL(j, D) {
            const V in = q[at + j] * y[j];
            HOG_ALL(i, width) x[i] += Wy[i * D + j] * in;
        }
        if (l)
            HOG_ALL(m, W) {
                const V in = q[at + D + width + m] * z[m];
                HOG_ALL(i, width) x[i] += Wz[i * W + m] * in;
            }
    }

    /// f(y) [O], and the slopes s [2 W] of the hidden units; for B rows side by side, because the
    /// activations of one row are too few to keep a processor busy. Row b of q, y, s and value lies at
    /// b times the given distance. The pre-activations a [2 W] lie like the slopes, where they are wanted.
    template <int B, class T>
    HOG_INLINE void forward(const T* weights, const V* q, int q_row, const V* y, V* s, V* value,
                            V* a = nullptr) {
        V x[B * W], z[B * W];
        HOG_ALL(b, B) rise<0>(weights, q + b * q_row, y + b * D, z, x + b * W);
        if (a) HOG_ALL(i, B * W) a[i / W * 2 * W + i % W] = x[i];
        HOG_ALL(i, B * W) z[i] = softplus(x[i], s[i / W * 2 * W + i % W]);
        HOG_ALL(b, B) rise<1>(weights, q + b * q_row, y + b * D, z + b * W, x + b * W);
        if (a) HOG_ALL(i, B * W) a[i / W * 2 * W + W + i % W] = x[i];
        HOG_ALL(i, B * W) z[i] = softplus(x[i], s[i / W * 2 * W + W + i % W]);
        HOG_ALL(b, B) rise<2>(weights, q + b * q_row, y + b * D, z + b * W, value + b * O);
    }

    /// What the pre-activations c of layer l send back to y, and to the layer below (times its slopes).
    template <int l, class T>
    HOG_INLINE void sink(const T* weights, const V* q, const V* s, const V* c, V* g, V* below) {
        constexpr int width = N::w(l), at = N::q(l);
        const T *Wy = weights + N::p(l), *Wz = Wy + width * D;
        HOG_ALL(j, D) {
            V sum = Wy[j] * c[0];
            HOG_ALL(i, width) if (i) sum += Wy[i * D + j] * c[i];
            g[j] = l == 2 ? q[at + j] * sum : g[j] + q[at + j] * sum;
        }
        if (l)
            HOG_ALL(m, W) {
                V sum = Wz[m] * c[0];
                HOG_ALL(i, width) if (i) sum += Wz[i * W + m] * c[i];
                below[m] = q[at + D + width + m] * s[(l - 1) * W + m] * sum;
            }
    }

    /// J' p [D].
    template <class T>
    HOG_INLINE void backward(const T* weights, const V* q, const V* s, const V* p, V* g) {
        V c[W], below[W];
        sink<2>(weights, q, s, p, g, c);
        sink<1>(weights, q, s, c, g, below);
        sink<0>(weights, q, s, below, g, c);
    }

    /// The Jacobian J [O, D], the gradient J' p [D] and the curvature H [D, D] of p' f, whose hidden units
    /// have the curvatures `bend`.
    HOG_INLINE void expand(const double* weights, const V* q, const V* s, const V* bend, const V* p, V* J,
                           V* g, V* H) {
        V first[W * D], second[W * D];  // Jacobians of the hidden units
        HOG_ALL(j, D) {
            const V gate = q[N::q(0) + j];
            HOG_ALL(m, W) first[m * D + j] = weights[N::p(0) + m * D + j] * gate;
        }
        slant<1, W>(weights, q, s, first, second);
        slant<2, O>(weights, q, s + W, second, J);
        HOG_ALL(j, D) {
            V sum = J[j] * p[0];
            HOG_ALL(i, O) if (i) sum += J[i * D + j] * p[i];
            g[j] = sum;
        }
        V felt[W], below[W];
        feel<2>(weights, q, p, felt);
        HOG_ALL(m, W) below[m] = felt[m] * s[W + m], felt[m] *= bend[W + m];
        HOG_ALL(i, D * D) H[i] = wide(0.0);
        bow(second, felt, H);
        feel<1>(weights, q, below, felt);
        HOG_ALL(m, W) felt[m] *= bend[m];
        bow(first, felt, H);
        HOG_ALL(i, D) HOG_ALL(j, i) H[j * D + i] = H[i * D + j];
    }

  private:
    /// Jacobians of layer l from those of the units below it, whose slopes are s.
    template <int l, int width>
    HOG_INLINE void slant(const double* weights, const V* q, const V* s, const V* lower, V* to) {
        constexpr int at = N::q(l);
        const double *Wy = weights + N::p(l), *Wz = Wy + width * D;
        V up[W];
        HOG_ALL(m, W) up[m] = q[at + D + width + m] * s[m];
        HOG_ALL(j, D) {
            V sum[width];
            HOG_ALL(i, width) sum[i] = Wy[i * D + j] * q[at + j];
            HOG_ALL(m, W) {
                const V in = up[m] * lower[m * D + j];
                HOG_ALL(i, width) sum[i] += Wz[i * W + m] * in;
            }
            HOG_ALL(i, width) to[i * D + j] = sum[i];
        }
    }
    /// Sensitivities of the units below layer l, before their slopes.
    template <int l>
    HOG_INLINE void feel(const double* weights, const V* q, const V* above, V* felt) {
        constexpr int width = N::w(l), at = N::q(l);
        const double* Wz = weights + N::p(l) + width * D;
        HOG_ALL(m, W) {
            V sum = Wz[m] * above[0];
            HOG_ALL(i, width) if (i) sum += Wz[i * W + m] * above[i];
            felt[m] = q[at + D + width + m] * sum;
        }
    }
    /// H += sum over units of J_m' bent_m J_m, the lower triangle.
    HOG_INLINE void bow(const V* jacobians, const V* bent, V* H) {
        HOG_ALL(m, W) HOG_ALL(i, D) {
            const V share = bent[m] * jacobians[m * D + i];
            HOG_ALL(j, i + 1) H[i * D + j] += share * jacobians[m * D + j];
        }
    }
};

/// `forward` and `expand_whole` of rows.h for networks of constant sizes.
template <int D, int W, int O>
HOG_FN void forward(const FixedNet<D, W, O>&, const double* weights, const V* q, const V* y, V* s, V* a,
                    V* value, V*) {
    Unrolled<D, W, O>::template forward<1>(weights, q, 0, y, s, value, a);
}
template <int D, int W, int O>
HOG_FN void expand_whole(const FixedNet<D, W, O>&, const double* weights, const V* q, const V* s,
                         const V* bend, const V* p, V* J, V* gradient, V* H, V*) {
    V j[O * D], g[D], h[D * D];
    Unrolled<D, W, O>::expand(weights, q, s, bend, p, j, g, h);
    HOG_ALL(i, O * D) J[i] = j[i];
    HOG_ALL(i, D) gradient[i] = g[i];
    HOG_ALL(i, D * D) H[i] = h[i];
}

}  // namespace hog

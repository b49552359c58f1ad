// Soft energies on a GPU (hogwild_node/soft.py): all steps of a solve, or of its adjoint, in one cooperative
// launch. Nothing is read back.
//
// A row Y B holds W h, V h and U h of a node, as in soft.h. A block owns tiles of nodes. In a step it computes
// both sides of all edges of its nodes from the rows of their neighbours, multiplies the sums back, moves the
// embeddings, and writes their new rows: one barrier a step. Nothing is added by two threads. A second kernel
// computes the gradients of what the energy is made of.
#include "grid_gpu.h"

namespace hog {

typedef HOG_REAL Real;
constexpr int TILE = HOG_TILE, ROWS = 4;  // nodes of a tile, and nodes whose products a thread computes together
constexpr int STRIDE = TILE + 4;  // of a channel in shared memory: threads that write channels meet other banks

/// A problem on all graphs and replicas, and what steps on it read and write.
struct Soft {
    const int *in, *in_edge, *sender, *out, *out_edge, *receiver;  // edges into nodes, and out of them
    const Real *here, *there, *weight;  // [R or 1, H, E]
    const Real *forth, *back;           // [R, k, m] B and [R, m, k]; m = 2 w + o
    const Real *low, *high;             // [R, w]
    const Real *inner_low, *inner_high; // [R, o]
    const Real *along, *inside;         // [R, E, w], [R, N, o]: biases, or curvatures at a solution
    const Real* anchor;                 // [R, N, k], or null: products with the Hessian
    Real *y, *x, *before;               // [R, N, k]
    Real* sent;                         // [2, R, N, m] rows of this step and of the next one
    unsigned* arrived;                  // zero
    long long replicas, nodes, edges, k, w, o, heads, stride, steps, held;
    double beta, least, most, width;    // the eigenvalues' bounds; the width of a ramp
};

/// The slope of the ramp r in psi(z) = low z^2 / 2 + (high - low) r(z), and that of psi.
HOG_FN Real ramp(Real z, Real width) {
    const Real x = z + (Real)0.5 * width, beyond = x - width;
    const Real u = x < 0 ? (Real)0 : x < width ? x : width;
    return (Real)0.5 / width * u * u + (beyond > 0 ? beyond : (Real)0);
}
HOG_FN Real slope(Real z, Real low, Real high, Real width) { return low * z + (high - low) * ramp(z, width); }
HOG_FN Real curvature(Real z, Real low, Real high, Real width) {
    const Real x = z / width + (Real)0.5;
    return low + (high - low) * (x < 0 ? (Real)0 : x < 1 ? x : (Real)1);
}

/// Channels that a thread reads together.
template <int L>
struct alignas(L * sizeof(Real)) Several {
    Real of[L];
};
template <int L>
HOG_FN Several<L> several(const Real* at) {
    return *(const Several<L>*)at;
}

/// visit(edge, scale, weight, along, z) for L channels from c on of the coupling on the edges into node i, or out of
/// it. The scale is that of the node, and z its arguments from one or two sets of rows, without biases.
template <bool INTO, int SETS, int L, class Visit>
HOG_FN void each_edge(const Soft& p, const Real* const (&sent)[SETS], long long r, long long i, int c,
                      const Visit& visit) {
    constexpr int AHEAD = L > 1 ? 2 : 4;  // edges that a thread reads at once
    const int *first = INTO ? p.in : p.out, *edge = INTO ? p.in_edge : p.out_edge;
    const int *other = INTO ? p.sender : p.receiver, last = first[i + 1];
    const long long m = 2 * p.w + p.o, set = r * p.stride + c / (p.w / p.heads) * p.edges;
    const long long rows = r * p.nodes * m + c, near = INTO ? 0 : p.w, far = INTO ? p.w : 0;
    const Real *own_scale = INTO ? p.here : p.there, *other_scale = INTO ? p.there : p.here;
    Several<L> own[SETS], heard[SETS][AHEAD], along[AHEAD];
    Real mine[AHEAD], theirs[AHEAD], weight[AHEAD];
#pragma unroll
    for (int s = 0; s < SETS; ++s) own[s] = several<L>(sent[s] + rows + i * m + near);
    for (int q = first[i]; q < last; q += AHEAD) {
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {  // all reads before the first is used
            const int at = q + u < last ? q + u : last - 1, e = edge[at];
#pragma unroll
            for (int s = 0; s < SETS; ++s) heard[s][u] = several<L>(sent[s] + rows + other[at] * m + far);
            along[u] = several<L>(p.along + (r * p.edges + e) * p.w + c);
            mine[u] = own_scale[set + e], theirs[u] = other_scale[set + e], weight[u] = p.weight[set + e];
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            Several<L> z[SETS];
#pragma unroll
            for (int s = 0; s < SETS; ++s)
#pragma unroll
                for (int l = 0; l < L; ++l) z[s].of[l] = mine[u] * own[s].of[l] + theirs[u] * heard[s][u].of[l];
            if (q + u < last) visit(edge[q + u], mine[u], weight[u], along[u], z);
        }
    }
}

/// The sums over the edges into node i, or out of it, of what its channels of the coupling get from them.
template <bool INTO, int L>
HOG_FN Several<L> gathered(const Soft& p, const Real* sent, long long r, long long i, int c) {
    const Several<L> low = several<L>(p.low + r * p.w + c), high = several<L>(p.high + r * p.w + c);
    const Real width = (Real)p.width;
    const Real* const sets[1] = {sent};
    Several<L> sum = {};
    const auto add = [&](int, Real scale, Real weight, const Several<L>& along, const Several<L>* z) {
#pragma unroll
        for (int l = 0; l < L; ++l) {
            const Real at = z[0].of[l], by = along.of[l];
            sum.of[l] += scale * (p.anchor ? weight * slope(at + by, low.of[l], high.of[l], width) : by * at);
        }
    };
    each_edge<INTO, 1, L>(p, sets, r, i, c, add);
    return sum;
}

/// Where the gradients of <l, gradient at h> go, as SoftCotangents in soft.h; `straightest` and
/// `steepest` [R, N, w + o] of every node.
struct Cotangents {
    Real *bias, *bent, *straight, *straightest, *steepest;
};

/// What node i contributes in channel c by the edges into it, or out of it.
template <bool INTO>
HOG_FN void differentiate(const Soft& p, const Real* lifted, const Cotangents& to, long long r, long long i, int c) {
    const Real low = p.low[r * p.w + c], high = p.high[r * p.w + c], width = (Real)p.width;
    const long long m = 2 * p.w + p.o, node = r * p.nodes + i;
    const Real* const sets[2] = {p.sent, lifted};
    Real bent = 0, straight = 0, flat = 0, steep = 0;
    const auto add = [&](int e, Real scale, Real weight, const Several<1>& along, const Several<1>* args) {
        const Real z = args[0].of[0] + along.of[0], d = weight * args[1].of[0], up = ramp(z, width);
        const Real bend = curvature(z, low, high, width) * d;
        bent += scale * bend;
        straight += scale * weight * slope(z, low, high, width);
        flat += d * (z - up);
        steep += d * up;
        if (INTO) to.bias[(r * p.edges + e) * p.w + c] = bend;
    };
    each_edge<INTO, 2, 1>(p, sets, r, i, c, add);
    to.bent[node * m + c + (INTO ? 0 : p.w)] = bent;
    to.straight[node * m + c + (INTO ? 0 : p.w)] = straight;
    if (INTO) {
        to.straightest[node * (p.w + p.o) + c] = flat;
        to.steepest[node * (p.w + p.o) + c] = steep;
    }
}

/// B or its transpose: entry (row, column) is at row * down + column * across.
struct Matrix {
    const Real* of;
    int down, across;
};

/// out(row, column, number) for the product of a tile, [length, STRIDE] in shared memory, with a matrix.
template <class Out>
HOG_FN void product(const Real* tile, Matrix matrix, int length, int columns, const Out& out) {
    for (int t = threadIdx.x; t < TILE / ROWS * columns; t += blockDim.x) {
        const int column = t % columns, row = t / columns * ROWS;
        const Real* const from = matrix.of + column * matrix.across;
        Real sum[ROWS] = {};
#pragma unroll 8
        for (int l = 0; l < length; ++l) {
            const Real factor = from[l * matrix.down];
            const Several<ROWS> some = several<ROWS>(tile + l * STRIDE + row);
#pragma unroll
            for (int i = 0; i < ROWS; ++i) sum[i] += some.of[i] * factor;
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i) out(row + i, column, sum[i]);
    }
}

/// HELD: B is in shared memory, in rows of m + 1 numbers, so that threads read columns from different banks, too.
template <bool HELD, int L>
HOG_FN void take_steps(const Soft& p, Real* shared) {
    const int k = (int)p.k, w = (int)p.w, o = (int)p.o, m = 2 * w + o;
    Real *const embeddings = shared, *const sums = embeddings + STRIDE * k, *const held = sums + STRIDE * m;
    long long replica = -1;  // whose matrix is held
    unsigned passed = 0;
    const Grid grid{nullptr, nullptr, p.arrived, nullptr, &passed};
    const long long each = (p.nodes + TILE - 1) / TILE, tiles = p.replicas * each;
    const double rho = 1.0 - sqrt(p.least / p.most), middle = 0.5 * (p.most + p.least), half = p.most - middle;
    const Real rate = (Real)((1.0 + rho) / p.most), keep = (Real)(rho * rho / (2.0 - rho));
    const Real ahead = (Real)(rho * rho / ((1.0 + rho) * (2.0 - rho))), beta = (Real)p.beta;
    double ratio = half / middle;
    for (long long t = 0; t <= p.steps; ++t) {
        const double following = 1.0 / (2.0 * middle / half - ratio);
        const Real old = (Real)(following * ratio), fresh = (Real)(2.0 * following / half);
        if (t) ratio = following, grid.sync();
        Real* const next = p.sent + t % 2 * p.replicas * p.nodes * m;
        const Real* const sent = p.sent + (t + 1) % 2 * p.replicas * p.nodes * m;
        for (long long tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            const long long r = tile / each, first = tile % each * TILE;
            const int n = (int)(p.nodes - first < TILE ? p.nodes - first : TILE);
            const long long at = (r * p.nodes + first) * k;
            if (HELD && r != replica) {
                for (int a = threadIdx.x; a < k * m; a += blockDim.x)
                    held[a / m * (m + 1) + a % m] = p.forth[r * k * m + a];
                replica = r;
            }
            const Matrix forth = HELD ? Matrix{held, m + 1, 1} : Matrix{p.forth + r * k * m, m, 1};
            const Matrix back = HELD ? Matrix{held, 1, m + 1} : Matrix{p.back + r * m * k, k, 1};
            for (int a = threadIdx.x; a < TILE * (m / L); a += blockDim.x) {
                const int row = a / (m / L), c = a % (m / L) * L;
                const long long i = first + row;
                Several<L> sum = {};
                if (t && row < n) {
                    if (c < w) {
                        sum = gathered<true, L>(p, sent, r, i, c);
                    } else if (c < 2 * w) {
                        sum = gathered<false, L>(p, sent, r, i, c - w);
                    } else {
#pragma unroll
                        for (int l = 0; l < L; ++l) {
                            const Real z = sent[(r * p.nodes + i) * m + c + l];
                            const Real inside = p.inside[(r * p.nodes + i) * o + c + l - 2 * w];
                            const long long ramp = r * o + c + l - 2 * w;
                            sum.of[l] = p.anchor ? slope(z + inside, p.inner_low[ramp], p.inner_high[ramp], (Real)p.width)
                                                 : inside * z;
                        }
                    }
                }
#pragma unroll
                for (int l = 0; l < L; ++l) sums[(c + l) * STRIDE + row] = sum.of[l];
            }
            __syncthreads();
            product(sums, back, t ? m : 0, k, [&](int row, int c, Real pull) {
                const long long here = at + row * k + c;
                Real y = row < n ? p.y[here] : (Real)0;
                if (t && row < n) {
                    const Real g = pull + beta * (p.anchor ? y - p.anchor[here] : y);
                    if (!p.anchor) {
                        const Real left = p.before[here] - g;
                        p.x[here] += y;
                        p.before[here] = left;
                        y = old * y + fresh * left;
                    } else {
                        const Real x = p.x[here], moved = x + keep * (x - p.before[here]) - rate * g;
                        p.before[here] = x;
                        p.x[here] = moved;
                        y = moved + ahead * (moved - x);
                    }
                    p.y[here] = y;
                }
                embeddings[c * STRIDE + row] = y;
            });
            __syncthreads();
            product(embeddings, forth, k, m, [&](int row, int c, Real found) {
                if (row < n) next[(r * p.nodes + first + row) * m + c] = found;
            });
            __syncthreads();
        }
    }
}

}  // namespace hog

using namespace hog;

/// With an anchor: accelerated steps (solvers/momentum.py) from y = x = before.
/// Without: steps of Chebyshev's method on H x = b from x = 0 and before = b, which becomes the residual, and
/// y = b / middle.
extern "C" __global__ void __launch_bounds__(HOG_THREADS, HOG_RESIDENT)
hog_soft(const __grid_constant__ Soft p) {
    HOG_SHARED(shared);
    const bool whole = p.w / p.heads % 4 == 0 && p.o % 4 == 0;
    if (p.held && whole) take_steps<true, 4>(p, (Real*)shared);
    else if (whole) take_steps<false, 4>(p, (Real*)shared);
    else take_steps<false, 1>(p, (Real*)shared);
}

/// The gradients, where scales and weights of edges are constants. `sent` and `lifted` [R, N, m] are the rows of h
/// and l, and `along` and `inside` are biases.
extern "C" __global__ void __launch_bounds__(HOG_THREADS, HOG_RESIDENT)
hog_soft_cotangents(const __grid_constant__ Soft p, const Real* lifted, Cotangents to) {
    const long long m = 2 * p.w + p.o, all = p.replicas * p.nodes * m;
    for (long long a = blockIdx.x * (long long)blockDim.x + threadIdx.x; a < all; a += gridDim.x * (long long)blockDim.x) {
        const long long node = a / m, r = node / p.nodes, i = node % p.nodes;
        const int c = (int)(a % m), own = c - 2 * (int)p.w;
        if (c < p.w) {
            differentiate<true>(p, lifted, to, r, i, c);
        } else if (own < 0) {
            differentiate<false>(p, lifted, to, r, i, c - (int)p.w);
        } else {
            const Real low = p.inner_low[r * p.o + own], high = p.inner_high[r * p.o + own], width = (Real)p.width;
            const Real z = p.sent[a] + p.inside[node * p.o + own], up = ramp(z, width);
            to.bent[a] = curvature(z, low, high, width) * lifted[a];
            to.straight[a] = slope(z, low, high, width);
            to.straightest[node * (p.w + p.o) + p.w + own] = lifted[a] * (z - up);
            to.steepest[node * (p.w + p.o) + p.w + own] = lifted[a] * up;
        }
    }
}

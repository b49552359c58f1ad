// The linear solver of a Task (energy.h) on a GPU: the fronts of plan.h, factorised by a block of
// threads. Fronts of one level are independent; a warp takes a narrow front, all threads a wide one.
//
// A front is [width + 1, stride]: the last row is the right-hand side, which is eliminated with the
// rest. Every block of a front gathers the terms of its sum, and a parent reads its children in their
// order: nothing depends on the order in which threads run.
#pragma once
#include "energy.h"
#include "grid_gpu.h"
#include "terms.h"

namespace hog {

/// A graph and its fronts, as plan.h lays them out for a GPU (`flatten`).
struct DevicePlan {
    GraphView view;
    int fronts, levels, numbers, blocks;
    const int *pivot_ptr, *pivot, *bound_ptr, *bound, *into, *child_ptr, *child;
    const int *place, *right;                   // of every front; of every node's right-hand side
    const int *level_ptr, *level_wide, *level_front;  // wide fronts come last in their level
    const int *block_place, *block_stride, *block_ptr;  // a negative stride: on the diagonal
    const int *kind, *left, *other;                     // Terms in plan.h

    HOG_METHOD static DevicePlan at(const int* data) {
        DevicePlan p;
        const int n = data[0], e = data[1], fronts = data[2], levels = data[3], bounds = data[4],
                  children = data[5], terms = data[8];
        p.fronts = fronts, p.levels = levels, p.numbers = data[6], p.blocks = data[7];
        const int* next = data + 9;
        auto take = [&](int count) {
            const int* out = next;
            next += count;
            return out;
        };
        p.view.n = n, p.view.e = e;
        p.view.ptr = take(n + 1), p.view.src = take(e), p.view.dst = take(e);
        p.view.out_ptr = take(n + 1), p.view.out_edge = take(e);
        p.view.own = take(n), p.view.slot = take(e);
        p.pivot_ptr = take(fronts + 1), p.pivot = take(n);
        p.bound_ptr = take(fronts + 1), p.bound = take(bounds), p.into = take(bounds);
        p.child_ptr = take(fronts + 1), p.child = take(children);
        p.place = take(fronts), p.right = take(n);
        p.level_ptr = take(levels + 1), p.level_wide = take(levels), p.level_front = take(fronts);
        p.block_place = take(p.blocks), p.block_stride = take(p.blocks);
        p.block_ptr = take(p.blocks + 1);
        p.kind = take(terms), p.left = take(terms), p.other = take(terms);
        return p;
    }
};

struct BlockFronts {
    static constexpr bool matrix_free = false;
    static constexpr int NARROW = 32;  // a warp holds the rows of a front with fewer unknowns
    DevicePlan p;
    double* memory;
    int* broken;  // in memory that the block shares

    template <class Task>
    HOG_LARGE bool solve(const Task& t, const double* from, double sign, double* x) const {
        constexpr int K = Task::s().k();
        const Block& team = t.team;
        for (int i = team.rank(); i < p.numbers; i += team.size()) memory[i] = 0.0;
        if (team.rank() == 0) *broken = 0;
        team.sync();
        add_stars(t);
        HOG_PACKS(i, t.v.n)
        HOG_EACH(c, K) memory[p.right[i] + c] = sign * from[i * K + c];
        team.sync();
        const int warp = team.rank() / 32, warps = team.size() / 32, lane = team.rank() % 32;
        for (int l = 0; l < p.levels; ++l) {
            for (int q = p.level_ptr[l] + warp; q < p.level_wide[l]; q += warps)
                eliminate<32>(t, p.level_front[q], lane, t.team.room + 130 + 32 * warp);
            for (int q = p.level_wide[l]; q < p.level_ptr[l + 1]; ++q)
                eliminate<0>(t, p.level_front[q], team.rank(), nullptr);
            team.sync();
        }
        for (int l = p.levels - 1; l >= 0; --l) {
            for (int q = p.level_ptr[l] + warp; q < p.level_wide[l]; q += warps)
                substitute<32, K>(t.team, p.level_front[q], lane, x);
            for (int q = p.level_wide[l]; q < p.level_ptr[l + 1]; ++q)
                substitute<0, K>(t.team, p.level_front[q], team.rank(), x);
            team.sync();
        }
        return !*broken;
    }

  private:
    /// Wait for the threads that share a front: a warp (G = 32), or the block (G = 0).
    template <int G>
    HOG_METHOD static void wait(const Block& team) {
        if (G) __syncwarp();
        else __syncthreads();
    }
    template <int G>
    HOG_METHOD static int count(const Block& team) {
        return G ? G : team.size();
    }

    template <int G, class Task>
    HOG_METHOD void eliminate(const Task& t, int f, int rank, double* room) const {
        (void)room;
        constexpr int K = Task::s().k();
        const Block& team = t.team;
        const int size = count<G>(team);
        const int P = (p.pivot_ptr[f + 1] - p.pivot_ptr[f]) * K;
        const int W = P + (p.bound_ptr[f + 1] - p.bound_ptr[f]) * K, stride = W | 1;
        double* F = memory + p.place[f];
        for (int q = p.child_ptr[f]; q < p.child_ptr[f + 1]; ++q) {
            const int c = p.child[q];
            const int cP = (p.pivot_ptr[c + 1] - p.pivot_ptr[c]) * K;
            const int m = (p.bound_ptr[c + 1] - p.bound_ptr[c]) * K, cs = (cP + m) | 1;
            const double* from = memory + p.place[c];
            const int* into = p.into + p.bound_ptr[c];
            // Rows of the child's boundary and its right-hand side. Eight threads share a row.
            for (int i = rank / 8; i <= m; i += size / 8) {
                double* to = F + (i == m ? W : into[i / K] * K + i % K) * stride;
                const double* row = from + (cP + i) * cs + cP;
                for (int j = rank % 8; j < m && j <= i; j += 8)
                    to[into[j / K] * K + j % K] += row[j];
            }
            wait<G>(team);
        }
        if (G && W < NARROW) {
            eliminate_rows(F, stride, P, W, rank, room);
            return;
        }
        for (int j = 0; j < P; ++j) {
            const double x = F[j * stride + j], inverse = inverse_root(x);
            if (!(x > 0) && rank == 0) *broken = 1;
            for (int i = j + 1 + rank; i <= W; i += size) F[i * stride + j] *= inverse;
            wait<G>(team);
            if (rank == 0) F[j * stride + j] = inverse;
            update<G>(F, stride, j, W, rank, size);
            wait<G>(team);
        }
    }

    /// The same for a narrow front: a lane of the warp is a row, in registers. `room` [32] passes a
    /// column on.
    HOG_METHOD void eliminate_rows(double* F, int stride, int P, int W, int rank,
                                   double* room) const {
        const bool on = rank <= W;
        double* mine = F + rank * stride;
        double row[NARROW];
        HOG_EACH(l, NARROW) row[l] = on && l < W ? mine[l] : 0.0;
        HOG_UNROLL for (int j = 0; j < NARROW; ++j) {
            if (j >= P) break;
            const double x = __shfl_sync(~0u, row[j], j), inverse = inverse_root(x);
            if (!(x > 0) && rank == 0) *broken = 1;
            const double y = row[j] * inverse;
            room[rank] = y;
            __syncwarp();
            row[j] = rank == j ? inverse : y;
            HOG_UNROLL for (int l = j + 1; l < NARROW; ++l) row[l] -= y * room[l];
            __syncwarp();
        }
        HOG_EACH(l, NARROW) if (on && l < W && l <= rank) mine[l] = row[l];
        __syncwarp();
    }

    /// F[i, l] -= F[i, j] F[l, j] for j < l <= i, and for the right-hand side.
    template <int G>
    HOG_METHOD static void update(double* F, int stride, int j, int W, int rank, int size) {
        const int columns = G ? 8 : 16, rows = size / columns, r = rank / columns, c = rank % columns;
        for (int i0 = j + 1 + r; i0 <= W; i0 += 4 * rows) {
            double y[4];
            HOG_EACH(u, 4) {
                const int i = i0 + u * rows;
                y[u] = i <= W ? F[i * stride + j] : 0.0;
            }
            const int last = i0 + 3 * rows < W - 1 ? i0 + 3 * rows : W - 1;
            for (int l = j + 1 + c; l <= last; l += columns) {
                const double x = F[l * stride + j];
                HOG_EACH(u, 4) {
                    const int i = i0 + u * rows;
                    if (i <= W && l <= i) F[i * stride + l] -= y[u] * x;
                }
            }
        }
    }

    template <int G, int K>
    HOG_METHOD void substitute(const Block& team, int f, int rank, double* x) const {
        const int size = count<G>(team);
        const int* pivot = p.pivot + p.pivot_ptr[f];
        const int* bound = p.bound + p.bound_ptr[f];
        const int P = (p.pivot_ptr[f + 1] - p.pivot_ptr[f]) * K;
        const int W = P + (p.bound_ptr[f + 1] - p.bound_ptr[f]) * K, stride = W | 1;
        double *F = memory + p.place[f], *y = F + W * stride;
        if (G && W < NARROW) {  // a lane is an unknown
            const bool own = rank < P;
            const int node = own ? pivot[rank / K] : rank < W ? bound[(rank - P) / K] : 0;
            const int at = node * K + (own ? rank % K : (rank - P) % K);
            double value = own ? y[rank] : rank < W ? x[at] : 0.0;
            const double inverse = own ? F[rank * stride + rank] : 1.0;
            for (int i0 = W - 1; i0 >= 0; i0 -= 4) {  // four at a time: their reads do not wait
                double below[4];
                HOG_EACH(u, 4) below[u] = own && i0 - u > rank ? F[(i0 - u) * stride + rank] : 0.0;
                HOG_EACH(u, 4)
                value -= below[u] * __shfl_sync(~0u, value * inverse, i0 - u < 0 ? 0 : i0 - u);
            }
            if (own) x[at] = value * inverse;
            return;
        }
        for (int j = rank; j < P; j += size) {
            double sum = y[j];
            for (int i = P; i < W; ++i)
                sum -= F[i * stride + j] * x[bound[(i - P) / K] * K + (i - P) % K];
            y[j] = sum;
        }
        wait<G>(team);
        for (int i = P - 1; i >= 0; --i) {
            const double s = y[i] * F[i * stride + i];
            for (int j = rank; j < i; j += size) y[j] -= F[i * stride + j] * s;
            if (rank == 0) x[pivot[i / K] * K + i % K] = s;
            wait<G>(team);
        }
    }

    /// The sums of all stars; a thread takes a block [k, k].
    template <class Task>
    HOG_METHOD void add_stars(const Task& t) const {
        constexpr int K = Task::s().k(), M = Task::s().merged();
        const Block& team = t.team;
        HOG_PACKS(at, p.blocks) {
            double sum[K * K];
            HOG_EACH(c, K * K) sum[c] = 0.0;
            for (int q = p.block_ptr[at]; q < p.block_ptr[at + 1]; ++q) {
                const int kind = p.kind[q], u = p.left[q], w = p.other[q];
                double x[K * K];
                if ((kind & 3) == SENDERS) {
                    HOG_EACH(a, K) HOG_EACH(b, K) {
                        double z = 0;
                        HOG_EACH(c, M) z += t.Jj.at(u, c * K + a) * t.UJ.at(w, c * K + b);
                        x[a * K + b] = z;
                    }
                } else {
                    const Rows& from = (kind & 3) == OWN ? t.B : (kind & 3) == COUPLING ? t.X : t.Hjj;
                    HOG_EACH(c, K * K) x[c] = from.at(u, c);
                }
                HOG_EACH(a, K) HOG_EACH(b, K)
                sum[a * K + b] += (kind & TRANSPOSED)       ? x[b * K + a]
                                  : (kind & WITH_TRANSPOSE) ? x[a * K + b] + x[b * K + a]
                                                            : x[a * K + b];
            }
            const int signed_stride = p.block_stride[at];
            const bool diagonal = signed_stride < 0;
            const int stride = diagonal ? -signed_stride : signed_stride;
            double* F = memory + p.block_place[at];
            HOG_EACH(a, K) HOG_EACH(b, K) {
                if (!diagonal || b <= a) F[a * stride + b] = sum[a * K + b];
            }
        }
    }
};

}  // namespace hog

// Conjugate gradients with the blocks of a Hessian, where several threads compute one large graph: all
// threads of a GPU (krylov_gpu.h), or the threads of a CPU (chunks.h).
//
// Task::assemble leaves the block B_i of every node i, and for every edge q from j to i the coupling X_q of
// i and j, the block Hjj_q of the sender, J_q = dm_i/dh_j and UJ_q = U_i J_q, where U_i is the curvature of
// node i's update in its message. Two senders q, r of one receiver i are coupled by J_q' U_i J_r. So
//     (H p)_i = own_i p_i + sum over q into i of X_q p_j + sum over q out of i, to a, of X_q' p_a + J_q' w_a,
//     w_i = U_i sum over q into i of J_q p_j,    own_i = B_i + sum over q out of i of Hjj_q - J_q' UJ_q.
// One thread computes a node; nothing depends on the order in which threads run.
#pragma once
#include "shapes.h"

namespace hog {

HOG_FN bool is_finite(double x) { return fabs(x) < 1.7976931348623157e308; }

/// 16 bytes, which are read and written at once.
template <class T>
struct alignas(16) Chunk {
    T x[16 / sizeof(T)];
};

/// So many numbers fill whole chunks.
template <class T>
HOG_METHOD constexpr int chunked(int count) {
    constexpr int each = 16 / sizeof(T);
    return (count + each - 1) / each * each;
}

/// COUNT numbers, whole chunks, from `from`.
template <int COUNT, class T>
HOG_METHOD void load(const T* from, T* to) {
    constexpr int each = 16 / sizeof(T);
    HOG_EACH(c, COUNT / each) {
        const Chunk<T> some = ((const Chunk<T>*)from)[c];
        HOG_EACH(l, each) to[c * each + l] = some.x[l];
    }
}

/// The inverse of the symmetric positive definite matrix a, in its place; the identity where it is not.
template <int K>
HOG_METHOD void invert(double (&a)[K * K]) {
    bool sound = true;
    HOG_EACH(c, K) {
        const double pivot = a[c * K + c];
        sound = sound && pivot > 0 && is_finite(pivot);
        const double share = 1 / pivot;
        a[c * K + c] = 1;
        HOG_EACH(j, K) a[c * K + j] *= share;
        HOG_EACH(i, K) {
            if (i == c) continue;
            const double factor = a[i * K + c];
            a[i * K + c] = 0;
            HOG_EACH(j, K) a[i * K + j] -= factor * a[c * K + j];
        }
    }
    HOG_EACH(i, K * K) if (!sound) a[i] = i % (K + 1) ? 0.0 : 1.0;
}

/// The matrix and the vectors of conjugate gradients in one precision, for K unknowns a node and messages of
/// M numbers. The block of a node preconditions; couplings of parallel edges and of self-loops are left out
/// of it. `Nodes` are the nodes that this thread computes, and how threads wait for each other.
template <class T, int K_, int M_, class Nodes>
struct System {
    static constexpr int K = K_, M = M_;
    static constexpr int EDGE = chunked<T>(M * K + K * K);  // J, X
    static constexpr int NODE = chunked<T>(K * K + M * M);  // own, U
    static constexpr int INVERSE = chunked<T>(K * K);
    static constexpr int STATE = chunked<T>(K + M);         // p, w
    static constexpr int VECTOR = 3 * K;                    // x, r, q

    const GraphView v;
    const Nodes& nodes;
    T *edge, *node, *inverse, *state, *x, *r, *q;

    /// Numbers of memory for the rows of nodes and edges, and their ends.
    HOG_METHOD static constexpr size_t numbers(size_t n, size_t e) {
        return e * EDGE + n * (NODE + INVERSE + STATE + VECTOR) + 16 / sizeof(T);
    }

    HOG_METHOD System(const GraphView& view, const Nodes& those, T*& memory) : v(view), nodes(those) {
        auto take = [&](size_t rows, int each) {
            T* const out = memory;
            memory += rows * each;
            return out;
        };
        const size_t n = v.n;
        edge = take(v.e, EDGE), node = take(n, NODE), inverse = take(n, INVERSE);
        state = take(n, STATE), x = take(n, K), r = take(n, K), q = take(n, K);
        memory = (T*)(((size_t)memory + 15) / 16 * 16);
    }

    /// q = H p. Returns p' q; others may read q after the next barrier.
    HOG_LARGE double product() const {
        const GraphView v = this->v;
        T *const state = this->state, *const q = this->q;
        const T *const edge = this->edge, *const node = this->node;
        auto hear = [=](int i) {
            T p[STATE], mine[NODE], z[M], out[K];
            load<STATE>(state + (size_t)i * STATE, p);
            load<NODE>(node + (size_t)i * NODE, mine);
            HOG_EACH(m, M) z[m] = 0;
            HOG_EACH(a, K) {
                out[a] = 0;
                HOG_EACH(c, K) out[a] += mine[a * K + c] * p[c];
            }
            for (int e = v.ptr[i]; e < v.ptr[i + 1]; ++e) {
                T far[STATE], row[EDGE];
#if HOG_GPU
                load<STATE>(state + (size_t)v.src[e] * STATE, far);  // one read; w is not used
#else
                // Without w, which another thread may be writing.
                HOG_EACH(c, K) far[c] = state[(size_t)v.src[e] * STATE + c];
#endif
                load<EDGE>(edge + (size_t)e * EDGE, row);
                HOG_EACH(m, M) HOG_EACH(c, K) z[m] += row[m * K + c] * far[c];
                HOG_EACH(a, K) HOG_EACH(c, K) out[a] += row[M * K + a * K + c] * far[c];
            }
            HOG_EACH(m, M) {
                T w = 0;
                HOG_EACH(l, M) w += mine[K * K + m * M + l] * z[l];
                state[(size_t)i * STATE + K + m] = w;
            }
            HOG_EACH(a, K) q[(size_t)i * K + a] = out[a];
        };
        auto answer = [=](int i, double& curved) {
            T p[STATE], out[K];
            load<STATE>(state + (size_t)i * STATE, p);
            HOG_EACH(a, K) out[a] = q[(size_t)i * K + a];
            for (int o = v.out_ptr[i]; o < v.out_ptr[i + 1]; ++o) {
                const int e = v.out_edge[o];
                T far[STATE], row[EDGE];
                load<STATE>(state + (size_t)v.dst[e] * STATE, far);
                load<EDGE>(edge + (size_t)e * EDGE, row);
                HOG_EACH(a, K) {
                    HOG_EACH(m, M) out[a] += row[m * K + a] * far[K + m];
                    HOG_EACH(c, K) out[a] += row[M * K + c * K + a] * far[c];
                }
            }
            HOG_EACH(a, K) {
                q[(size_t)i * K + a] = out[a];
                curved += (double)p[a] * (double)out[a];
            }
        };
        return nodes.both_ways(hear, answer);
    }

    /// x += H^-1 r, until r goes down to `limit` in its largest entry, `worst`, or `most` turns have
    /// passed. The number of turns; -1 where numbers are not finite.
    HOG_LARGE int run(double limit, int most, double& worst) const {
        double rz = 0;
        nodes.sum_and_max(
            [&](int i, double& sum, double& largest) {
                step(i, false, 0, sum, largest);
                descend(i, 0);
            },
            rz, worst);
        for (int turn = 0;; ++turn) {
            if (!is_finite(rz) || !is_finite(worst)) return -1;
            if (worst <= limit || turn == most) return turn;
            const T length = (T)(rz / product());
            double next = 0;
            nodes.sum_and_max(
                [&](int i, double& sum, double& largest) { step(i, true, length, sum, largest); }, next,
                worst);
            const T keep = (T)(next / rz);
            nodes.each([&](int i) { descend(i, keep); });
            rz = next;
            nodes.sync();
        }
    }

    /// The block of node i and its inverse, from the double precision of `own` and `whole`.
    HOG_METHOD void put_node(int i, const double (&own)[K * K], const double (&turned)[K * K]) const {
        T *to = node + (size_t)i * NODE, *down = inverse + (size_t)i * INVERSE;
        HOG_EACH(a, K) HOG_EACH(c, K) {
            to[a * K + c] = (T)own[a * K + c];
            down[a * K + c] = (T)turned[a >= c ? a * K + c : c * K + a];
        }
    }

  private:
    /// The preconditioner times the residual at node i.
    HOG_METHOD void scale(int i, const T (&left)[K], T (&out)[K]) const {
        T block[INVERSE];
        load<INVERSE>(inverse + (size_t)i * INVERSE, block);
        HOG_EACH(a, K) {
            out[a] = 0;
            HOG_EACH(c, K) out[a] += block[a * K + c] * left[c];
        }
    }
    /// x and r of node i after a step along p, where one is made; r' M r, and the largest entry of r.
    HOG_METHOD void step(int i, bool moves, T length, double& rz, double& worst) const {
        T left[K], z[K];
        HOG_EACH(c, K) left[c] = r[(size_t)i * K + c];
        if (moves)
            HOG_EACH(c, K) {
                x[(size_t)i * K + c] += length * state[(size_t)i * STATE + c];
                left[c] -= length * q[(size_t)i * K + c];
                r[(size_t)i * K + c] = left[c];
            }
        scale(i, left, z);
        HOG_EACH(c, K) {
            rz += (double)left[c] * (double)z[c];
            const double size = fabs((double)left[c]);
            if (size > worst || size != size) worst = size;
        }
    }
    /// The next direction at node i: p = M r + keep p.
    HOG_METHOD void descend(int i, T keep) const {
        T left[K], z[K];
        HOG_EACH(c, K) left[c] = r[(size_t)i * K + c];
        scale(i, left, z);
        HOG_EACH(c, K) {
            T& p = state[(size_t)i * STATE + c];
            p = keep == 0 ? z[c] : z[c] + keep * p;
        }
    }
};

#ifndef HOG_TURNS
#define HOG_TURNS 500  // of conjugate gradients in single precision; a test allows fewer
#endif

/// Solves with single precision, and refines the solution in double precision (as krylov.h without blocks).
struct Refined {
    double rtol, atol;  // relative to the right-hand side, in the largest entry; rtol 0: adapt

    static constexpr double QUICK = 1e-5;  // what single precision is asked for
    static constexpr int MOST = HOG_TURNS, MOST_FINE = 2000;  // turns in single and in double precision

    /// x = sign H^-1 from, both [n, k]; false where that does not converge or is not finite. Within
    /// Newton's method (rtol = 0) the tolerance follows the residual, which keeps the convergence fast.
    /// `fast` is filled, and `fill` fills `fine`; both may be wider than k.
    template <class Fine, class Fast, class Fill>
    HOG_LARGE bool solve(const Fine& fine, const Fast& fast, int k, const double* from, double sign, double* x,
                         const Fill& fill) const {
        constexpr int K = Fine::K;
        double worst = 0, none = 0;
        fine.nodes.sum_and_max(
            [&](int i, double&, double& largest) {
                HOG_EACH(c, K) {
                    const double entry = c < k ? from[(size_t)i * k + c] : 0.0, size = fabs(entry);
                    fine.x[(size_t)i * K + c] = 0;
                    fine.r[(size_t)i * K + c] = sign * entry;
                    if (size > largest || size != size) largest = size;
                }
            },
            none, worst);
        if (!is_finite(worst)) return false;
        const double share = rtol > 0 ? rtol : fmin(fmax(worst, QUICK), 1e-2);
        const bool sound = refine(fine, fast, worst, fmax(share * worst, atol), fill);
        fine.nodes.each([&](int i) {
            HOG_EACH(c, K) if (c < k) x[(size_t)i * k + c] = fine.x[(size_t)i * K + c];
        });
        fine.nodes.sync();
        return sound;
    }

  private:
    /// fine.x += H^-1 fine.r, where the largest entry of fine.r is `worst`.
    template <class Fine, class Fast, class Fill>
    HOG_METHOD bool refine(const Fine& fine, const Fast& fast, double worst, double limit,
                           const Fill& fill) const {
        constexpr int K = Fine::K;
        bool filled = false;
        double none = 0;
        while (worst > limit) {
            const double before = worst, down = 1 / worst;
            const double goal = fmax((rtol > 0 ? 0.5 : 1.0) * limit / worst, QUICK);
            fine.nodes.each([&](int i) {
                HOG_EACH(c, K) {
                    fast.x[(size_t)i * K + c] = 0;
                    fast.r[(size_t)i * K + c] = (float)(down * fine.r[(size_t)i * K + c]);
                }
            });
            double left;
            const int turns = fast.run(goal, MOST, left);
            if (turns < 0 || left > goal) break;
            fine.nodes.each([&](int i) {
                HOG_EACH(c, K) {
                    const double found = before * (double)fast.x[(size_t)i * K + c];
                    fine.state[(size_t)i * Fine::STATE + c] = found;
                    fine.x[(size_t)i * K + c] += found;
                }
            });
            if (rtol == 0) return true;  // Newton's method measures the residual itself
            if (!filled) fill();
            else fine.nodes.sync();
            filled = true;
            fine.product();
            fine.nodes.sum_and_max(
                [&](int i, double&, double& largest) {
                    HOG_EACH(c, K) {
                        const size_t at = (size_t)i * K + c;
                        const double rest = fine.r[at] -= fine.q[at];
                        if (fabs(rest) > largest || rest != rest) largest = fabs(rest);
                    }
                },
                none, worst);
            if (!(worst < 0.1 * before)) break;
        }
        if (worst <= limit) return true;
        // Single precision does not suffice. Within Newton's method any direction of descent helps.
        if (!filled) fill();
        const int turns = fine.run(limit, MOST_FINE, worst);
        return turns >= 0 && (worst <= limit || rtol == 0);
    }
};

}  // namespace hog

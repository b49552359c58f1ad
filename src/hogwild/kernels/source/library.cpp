// The C interface of the compiled kernels: plans, solves and adjoints of batches of graphs.
//
// Every function checks sizes before it computes, returns zero, and writes a reason into `why`
// otherwise. Python holds a plan as an opaque pointer (hogwild/kernels).
#include <cstdio>
#include <initializer_list>
#include <new>
#include <stdexcept>

#include "attention.h"
#include "chunks.h"
#include "dense.h"
#include "soft.h"
#include "factor.h"

#ifndef HOG_DIGEST
#define HOG_DIGEST ""
#endif
#define HOG_API __attribute__((visibility("default")))

using namespace hog;

namespace {

constexpr int64_t MOST_THREADS = 1024;

void explain(char* why, int64_t size, const char* text) {
    if (why && size > 0) std::snprintf(why, size, "%s", text);
}

/// The sizes of a network. `numbers`: layers, convex inputs, widths.
bool describe(Net& net, const int64_t*& numbers, const unsigned char*& rising, int act, int relu) {
    net = Net{};
    const int64_t layers = *numbers++, inputs = *numbers++;
    if (layers < 1 || layers > MOST_LAYERS || inputs < 1 || inputs > 256) return false;
    net.layers = (int)layers, net.inputs = (int)inputs, net.act_ = act, net.relu_ = relu;
    for (int l = 0; l < net.layers; ++l) {
        const int64_t width = *numbers++;
        if (width < 1 || width > 4096) return false;
        net.w_[l] = (int)width;
    }
    net.tabulate();
    for (int j = 0; j < net.inputs; ++j)
        if (*rising++) net.mono[j >> 6] |= 1ULL << (j & 63);
    return true;
}

/// Throw where these arguments cannot be solved.
void check(const Posed& posed, std::initializer_list<const void*> needed) {
    auto expect = [](bool sound, const char* wrong) {
        if (!sound) throw std::invalid_argument(wrong);
    };
    expect(posed.plan && posed.sizes, "there is no plan, or there are no sizes");
    expect(posed.method >= Method::PRODUCTS && posed.method <= Method::BLOCKS, "the method is unknown");
    expect(posed.replicas >= 0 && posed.replicas <= (1 << 24), "replicas is out of range");
    const Plan& plan = *posed.plan;
    for (const auto& one : plan.of)
        expect(posed.method != Method::FACTORS || !one->n || one->fronts, "a graph is too dense to be factorised");
    if (!plan.nodes || !posed.replicas) return;
    expect(posed.parameters && posed.nodes, "parameters or nodes is null");
    expect(!plan.edges || posed.sizes->sent() || posed.edges, "edges is null");
    for (const void* each : needed) expect(each, "an array of results or embeddings is null");
}

/// Run `work`, and explain a failure: 1, or 2 where an array holds a number that is out of range.
template <class Work>
int guarded(char* why, int64_t size, const Work& work) {
    try {
        work();
        return 0;
    } catch (const std::out_of_range& error) {
        explain(why, size, error.what());
        return 2;
    } catch (const std::exception& error) {
        explain(why, size, error.what());
        return 1;
    }
}

/// Run `work(attention, first)` for the parameter sets of every replica (hog_attend); `first` is the number
/// of the first one.
template <class T, class Work>
void each_attention(const int64_t* shape, double slope, const int64_t* src, const int64_t* dst,
                    const double* x, const double* heard, const double* attr, const void* theta_x,
                    const void* theta_a, const void* theta_e, const Work& work) {
    const int64_t sets = shape[1], q = shape[4], p = shape[5], r = shape[6], *strides = shape + 7;
    for (int64_t e = 0; e < shape[3]; ++e)
        if (src[e] < 0 || src[e] >= shape[2] || dst[e] < 0 || dst[e] >= shape[2])
            throw std::out_of_range("an edge names a node that does not exist");
    for (int64_t b = 0; b < shape[0]; b += sets) {
        const auto table = [&](const double* at, const int64_t* stride) {
            return Table<const double>{at ? at + b / sets * stride[0] : nullptr, stride[1], stride[2]};
        };
        work(Attention<T>{sets, shape[2], shape[3], q, p, r, src, dst, slope, table(x, strides),
                          table(heard, strides + 3), table(attr, strides + 6),
                          (const T*)theta_x + b * q * p, (const T*)theta_a + b * (theta_e ? 3 : 2) * q,
                          theta_e ? (const T*)theta_e + b * q * r : nullptr},
             b);
    }
}

}  // namespace

extern "C" {

/// The hash of the sources that this library was compiled from (kernels/build.py).
HOG_API const char* hog_digest() { return HOG_DIGEST; }

/// The highest instruction set of LEVELS (kernels/build.py) that this processor has, from 0.
HOG_API int64_t hog_level() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd"))
        return 2;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2"))
        return 1;
#endif
    return 0;
}

/// The plan of a batch; nullptr where the arrays are wrong.
HOG_API void* hog_plan(int64_t nodes, int64_t graphs, const int64_t* batch, int64_t edges,
                       const int64_t* src, const int64_t* dst, int64_t leaf, int64_t hops, double most_work,
                       char* why, int64_t why_size) {
    Plan* plan = nullptr;
    guarded(why, why_size, [&] {
        plan = make_plan(nodes, graphs, batch, edges, src, dst, (int)leaf, (int)hops, most_work);
    });
    return plan;
}

HOG_API void hog_plan_free(void* plan) { delete (Plan*)plan; }

/// Ask during the calls of this thread whether they must end (listening.h); nullptr: no more. Whether the
/// answer to the questions before was yes.
HOG_API int64_t hog_listen(int (*ask)()) { return Listening::here().to(ask); }

/// Numbers in the largest graph's fronts, and multiplications of all factorisations, for k = 1.
HOG_API void hog_plan_cost(const void* plan, double* most_numbers, double* work) {
    *most_numbers = *work = 0;
    for (const auto& one : ((const Plan*)plan)->of) {
        *most_numbers = std::max(*most_numbers, one->ones);
        *work += one->work;
    }
}

/// The plan for a GPU. `start` [G] and `numbers` [G] tell where a graph's plan begins and how many
/// numbers its fronts hold, `first` [G] and `edge_first` [G] where its nodes and edges begin, `edge`
/// [E] the caller's number of every edge, `order` [G] large graphs first. Where `out` is null only
/// the lengths are computed. Returns the length of `out`.
HOG_API int64_t hog_flatten(const void* plan, int64_t k, int64_t wide, int32_t* out, int64_t* start,
                            int64_t* numbers, int64_t* first, int64_t* edge_first, int64_t* edge,
                            int32_t* order) {
    const Plan& p = *(const Plan*)plan;
    int64_t length = 0;
    for (int64_t g = 0; g < p.graphs; ++g) {
        start[g] = length, first[g] = p.first[g], edge_first[g] = p.edge_first[g];
        numbers[g] = 0;
        for (int f = 0; f < p.of[g]->fronts; ++f) {
            const int64_t width = p.of[g]->width(f) * k;
            numbers[g] += (width + 1) * (width | 1);
        }
        length += flatten(*p.of[g], (int)k, (int32_t)wide, out ? out + length : nullptr);
    }
    if (out) {
        std::copy(p.edge.begin(), p.edge.end(), edge);
        const std::vector<int64_t> found = largest_first(p);
        std::copy(found.begin(), found.end(), order);
    }
    return length;
}

/// The sizes of a model: k, channels, heads, concat, ends, sent, activation, relu gates, then
/// layers, inputs and widths of the message, self message and update networks. `rising` has one byte
/// for every convex input of the three networks.
HOG_API void* hog_sizes(const int64_t* numbers, double beta, const unsigned char* rising) {
    for (int i = 0; i < 8; ++i)
        if (numbers[i] < 0 || numbers[i] > (1 << 20)) return nullptr;
    if (numbers[2] < 1 || numbers[4] < 1 || numbers[4] > 2 || numbers[5] > 1 ||
        numbers[6] >= ACTIVATIONS)
        return nullptr;
    std::unique_ptr<Sizes> s(new (std::nothrow) Sizes);
    if (!s) return nullptr;
    s->k_ = (int)numbers[0], s->channels_ = (int)numbers[1], s->heads_ = (int)numbers[2];
    s->concat_ = (int)numbers[3], s->ends_ = (int)numbers[4], s->sent_ = (int)numbers[5];
    s->beta_ = beta;
    const int act = (int)numbers[6], relu = (int)numbers[7];
    const int64_t* rest = numbers + 8;
    for (Net* net : {&s->message_, &s->loop_, &s->update_})
        if (!describe(*net, rest, rising, act, relu)) return nullptr;
    const bool fits = s->message().D() == s->ends() * s->k() && s->loop().D() == s->k() &&
                      s->update().D() == s->merged() + s->k() &&
                      s->message().out() == s->channels() && s->loop().out() == s->merged() &&
                      s->update().out() == 1;
    const double most = (double)s->heads() * s->message().parameters() + s->loop().parameters() +
                        s->update().parameters();
    return fits && most < INT32_MAX ? s.release() : nullptr;
}

/// An activation at a [count] and as far as reach [count] from there: its value, slope, curvature, majoriser
/// and growth, [5, count].
HOG_API int hog_activation(int64_t act, int64_t count, const double* a, const double* reach, double* out,
                           char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        if (act < 0 || act >= ACTIVATIONS) throw std::invalid_argument("the activation is unknown");
        for (int64_t i = 0; i < count; ++i) {
            const V x = wide(a[i]);
            V slope;
            const V value = activate((int)act, x, slope);
            const V found[] = {value, slope, curvature((int)act, x, slope), majoriser((int)act, x, slope),
                               growth((int)act, x, slope, wide(reach[i]))};
            for (int f = 0; f < 5; ++f) out[f * count + i] = get(found[f], 0);
        }
    });
}

HOG_API void hog_sizes_free(void* sizes) { delete (Sizes*)sizes; }

/// Parameters of a replica; rows of o_0 on nodes; rows of o_0 on edges; numbers that a task on a GPU
/// keeps for a node and for an edge.
HOG_API void hog_shapes(const void* sizes, int64_t* out) {
    const Sizes& s = *(const Sizes*)sizes;
    out[0] = s.parameters(), out[1] = s.node_rows(), out[2] = s.edge_rows();
    out[3] = s.node_fields() + 5 * s.k(), out[4] = s.edge_fields();
}

/// Solve every graph and replica. h [R, k, N] is the result; h0 may be nullptr (zero). Nodes that are held
/// stay at h0.
HOG_API int hog_solve(const Posed* posed, const double* h0, double atol, double rtol, int64_t max_iter,
                      int64_t max_backtracks, int64_t patience, int64_t threads, double* h, int64_t* status,
                      int64_t* iterations, double* residual, char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        check(*posed, {h, status, iterations, residual});
        if (max_iter < 0 || max_iter > INT32_MAX) throw std::invalid_argument("max_iter is out of range");
        const Options options{atol, rtol, (int)max_iter, (int)max_backtracks, (int)patience};
        const auto solve = posed->method == Method::BLOCKS ? solve_chunks : solve_batch;
        solve(*posed, options, h0, std::min(threads, MOST_THREADS), h, status, iterations, residual);
    });
}

/// The gradient [R, k, N] of the energies at h, and the size of its terms [R, G].
HOG_API int hog_gradient(const Posed* posed, const double* h, int64_t threads, double* gradient, double* scale,
                         char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        check(*posed, {h, gradient, scale});
        const auto differentiate = posed->method == Method::BLOCKS ? gradient_chunks : gradient_batch;
        differentiate(*posed, h, std::min(threads, MOST_THREADS), gradient, scale);
    });
}

/// The adjoint: from gradient = dL/dh [R, k, N] at the solution h to the gradients of everything the
/// problem is made of, and a status [R, G].
HOG_API int hog_adjoint(const Posed* posed, const double* h, const double* gradient, double rtol, int64_t threads,
                        double* parameters_out, double* nodes_out, double* edges_out, double* weight_out,
                        double* loop_weight_out, int64_t* status, char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        check(*posed, {h, gradient, parameters_out, nodes_out, status});
        const Cotangents out{nodes_out, edges_out, weight_out, loop_weight_out};
        const auto differentiate = posed->method == Method::BLOCKS ? adjoint_chunks : adjoint_batch;
        differentiate(*posed, h, gradient, rtol, std::min(threads, MOST_THREADS), parameters_out, out, status);
    });
}

/// The factors of matrices with the blocks `diagonal` [R, k, k, N] and `off` [R, k, k, E]; they read the
/// plan. nullptr and a reason where there is no memory.
HOG_API void* hog_factor(const void* plan, int64_t k, int64_t replicas, const double* diagonal,
                         const double* off, int64_t threads, char* why, int64_t why_size) {
    Factor* factor = nullptr;
    guarded(why, why_size, [&] { factor = new Factor(*(const Plan*)plan, k, replicas, diagonal, off, threads); });
    return factor;
}

HOG_API void hog_factor_free(void* factor) { delete (Factor*)factor; }

/// x = A^-1 b for right-hand sides [R, columns, k, N]; NaN where a matrix is not positive definite.
HOG_API int hog_factor_solve(const void* factor, int64_t columns, const double* b, int64_t threads,
                             double* x, char* why, int64_t why_size) {
    return guarded(why, why_size, [&] { ((const Factor*)factor)->solve(columns, b, threads, x); });
}

/// Entries of `count` arrays side by side, by their numbers `index`, into the arrays `outs`; the entry
/// behind the last array is zero. `from_single`, `to_single`: which of both have single precision.
HOG_API int hog_gather(int64_t count, const void* const* arrays, const int64_t* sizes,
                       int64_t from_single, const int64_t* index, int64_t into, void* const* outs,
                       const int64_t* lengths, int64_t to_single, char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        const auto gather = [&](auto from, auto to) {
            gather_entries<decltype(from), decltype(to)>(count, arrays, sizes, index, into, outs, lengths);
        };
        if (from_single && to_single) gather(float(), float());
        else if (from_single) gather(float(), double());
        else if (to_single) gather(double(), float());
        else gather(double(), double());
    });
}

/// out [R, T, rows] = weight [R, T, p] x + shift [R, T] (nullptr: zero), with x [R, p, rows] of these
/// strides (replica, column, row).
HOG_API int hog_project(int64_t replicas, int64_t T, int64_t p, int64_t rows, const double* weight,
                        const double* shift, const double* x, int64_t x_replica, int64_t x_column,
                        int64_t x_row, double* out, char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        for (int64_t r = 0; r < replicas; ++r)
            project(T, p, rows, weight + r * T * p, shift ? shift + r * T : nullptr,
                    {x + r * x_replica, x_column, x_row}, out + r * T * rows);
    });
}

/// The gradients of weight and shift (nullptr: not wanted) of hog_project, from those of its result.
HOG_API int hog_project_back(int64_t replicas, int64_t T, int64_t p, int64_t rows,
                             const double* found, const double* x, int64_t x_replica,
                             int64_t x_column, int64_t x_row, double* weight, double* shift,
                             char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        for (int64_t r = 0; r < replicas; ++r)
            project_back(T, p, rows, found + r * T * rows, {x + r * x_replica, x_column, x_row},
                         weight + r * T * p, shift ? shift + r * T : nullptr);
    });
}

/// Weights of attention [B, E] and their logits [B, E] (attention.h). `shape`: parameter sets B, sets that
/// share the features of a replica, nodes, edges, q, p, r, strides (replica, column, row) of x, of the
/// senders' features and of the edges' features. `heard`, `attr`, `theta_e` may be nullptr.
HOG_API int hog_attend(const int64_t* shape, double slope, const int64_t* src, const int64_t* dst,
                       const double* x, const double* heard, const double* attr, int64_t single,
                       const void* theta_x, const void* theta_a, const void* theta_e, double* z,
                       double* weights, char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        const auto run = [&](auto as) {
            typedef decltype(as) T;
            each_attention<T>(shape, slope, src, dst, x, heard, attr, theta_x, theta_a, theta_e,
                              [&](const Attention<T>& one, int64_t b) {
                                  one.forward(z + b * one.edges, weights + b * one.edges);
                              });
        };
        single ? run(float()) : run(double());
    });
}

/// The gradients of the parameters of hog_attend, from those of the weights.
HOG_API int hog_attend_back(const int64_t* shape, double slope, const int64_t* src, const int64_t* dst,
                            const double* x, const double* heard, const double* attr, int64_t single,
                            const void* theta_x, const void* theta_a, const void* theta_e,
                            const double* z, const double* weights, const double* gradient,
                            void* to_x, void* to_a, void* to_e, char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        const auto run = [&](auto as) {
            typedef decltype(as) T;
            each_attention<T>(shape, slope, src, dst, x, heard, attr, theta_x, theta_a, theta_e,
                              [&](const Attention<T>& one, int64_t b) {
                                  const int64_t e = b * one.edges, a = (theta_e ? 3 : 2) * one.q;
                                  one.backward(z + e, weights + e, gradient + e,
                                               (T*)to_x + b * one.q * one.p, (T*)to_a + b * a,
                                               (T*)to_e + (theta_e ? b * one.q * one.r : 0));
                              });
        };
        single ? run(float()) : run(double());
    });
}

/// A soft energy (soft.h). `shape`: replicas, graphs, nodes, edges, k, w, o, heads, stride of the edges'
/// scales. `fields`: anchor, bias, here, there, weight, forth, back, low, rise, offset, low and rise of the
/// nodes' own terms. Without `b` its solution from `at`, with tolerances `atol` and `rtol`; otherwise the
/// solution of H x = b with the Hessian at `at`. `most` [R] steps are taken at most. Where `cotangents` is
/// not nullptr, these eight arrays get the gradients of <b, gradient at `at`>.
HOG_API int hog_soft(const int64_t* shape, int64_t single, const int64_t* batch, const int64_t* src,
                     const int64_t* dst, const void* const* fields, const double* lipschitz, double beta,
                     double width, const void* at, const void* b, double atol, double rtol,
                     const int64_t* most, int64_t threads, void* out, int64_t* steps, double* residual,
                     double* limit, void* const* cotangents, char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        const auto run = [&](auto as) {
            typedef decltype(as) T;
            const auto field = [&](int i) { return (const T*)fields[i]; };
            const SoftPosed<T> p{shape[0], shape[1], shape[2], shape[3], shape[4],  shape[5],  shape[6],
                                 shape[7], shape[8], batch,    src,      dst,       field(0),  field(1),
                                 field(2), field(3), field(4), field(5), field(6),  field(7),  field(8),
                                 field(9), field(10), field(11), lipschitz, beta,   width};
            constexpr int64_t lanes = 64 / sizeof(T);
            if (p.k % lanes || p.o % lanes || p.heads < 1 || p.w % (p.heads * lanes))
                throw std::invalid_argument("a row is no multiple of a vector");
            const auto to = [&](int i) { return cotangents ? (T*)cotangents[i] : nullptr; };
            const SoftCotangents<T> all{to(0), to(1), to(2), to(3), to(4), to(5), to(6), to(7)};
            soft_batch(p, std::min(threads, MOST_THREADS), [&](auto&& task, int64_t i, int rank) {
                if (cotangents) return task.cotangents((const T*)at, (const T*)b, all);
                double found = 0, allowed = 0;
                const int64_t turns = most[i / p.graphs];
                const int64_t taken =
                    b ? task.dual((const T*)at, (const T*)b, rtol, turns, (T*)out, found, allowed)
                      : task.solve((const T*)at, atol, rtol, turns, (T*)out, found, allowed);
                if (rank == 0) steps[i] = taken, residual[i] = found, limit[i] = allowed;
            });
        };
        single ? run(float()) : run(double());
    });
}

}  // extern "C"

#include "simulator.h"

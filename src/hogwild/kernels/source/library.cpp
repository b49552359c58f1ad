// The C interface of the compiled kernels: plans, solves and adjoints of batches of graphs.
//
// Every function checks sizes before it computes, returns zero, and writes a reason into `why`
// otherwise. Python holds a plan as an opaque pointer (hogwild/kernels).
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <thread>

#include "energy.h"

#ifndef HOG_DIGEST
#define HOG_DIGEST ""
#endif
#define HOG_API __attribute__((visibility("default")))

using namespace hog;

namespace {

void explain(char* why, int64_t size, const char* text) {
    if (why && size > 0) std::snprintf(why, size, "%s", text);
}

/// Where the parts of a network lie. `numbers`: layers, convex inputs, widths.
bool describe(Net& net, const int64_t*& numbers, const unsigned char*& rising, int act, int relu) {
    net = Net{};
    const int64_t layers = *numbers++, inputs = *numbers++;
    if (layers < 1 || layers > MOST_LAYERS || inputs < 1 || inputs > 256) return false;
    net.L = (int)layers, net.D = (int)inputs, net.act = act, net.relu = relu;
    for (int l = 0; l < net.L; ++l) {
        const int64_t width = *numbers++;
        if (width < 1 || width > 4096) return false;
        net.w[l] = (int)width;
        net.widest = std::max(net.widest, net.w[l]);
    }
    for (int l = 0; l < net.L; ++l) {
        net.q[l + 1] = net.q[l] + net.D + net.w[l] + net.before(l);
        net.p[l + 1] = net.p[l] + net.w[l] * (net.D + net.before(l));
        net.f[l + 1] = net.f[l] + (l ? net.rows(l) * (net.before(l) + 1) : 0);
        if (l + 1 < net.L) net.hidden += net.w[l];
    }
    net.rows0 = net.rows(0);
    for (int j = 0; j < net.D; ++j)
        if (*rising++) net.mono[j >> 6] |= 1ULL << (j & 63);
    return true;
}

/// Run `work(task, thread)` for every task, on several threads; tasks are taken in order. A thread
/// is worth starting for some tenths of a millisecond of work.
template <class Work>
void each_task(int64_t tasks, int64_t threads, const Work& work) {
    std::atomic<int64_t> next{0};
    std::exception_ptr failed;
    std::atomic<bool> broken{false};
    auto run = [&](int64_t thread) {
        try {
            for (int64_t t; (t = next.fetch_add(1)) < tasks && !broken;) work(t, thread);
        } catch (...) {
            if (!broken.exchange(true)) failed = std::current_exception();
        }
    };
    std::vector<std::thread> others;
    for (int64_t t = 1; t < std::min(threads, tasks); ++t) others.emplace_back(run, t);
    run(0);
    for (auto& other : others) other.join();
    if (failed) std::rethrow_exception(failed);
}

/// Graphs by decreasing work, so that no thread begins the largest one last.
std::vector<int64_t> largest_first(const Plan& plan) {
    std::vector<int64_t> order(plan.graphs);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return plan.of[a]->n + plan.of[a]->e > plan.of[b]->n + plan.of[b]->e;
    });
    return order;
}

/// Parameters as the networks use them, [R, parameters].
std::vector<double> effective_parameters(const Posed& posed, std::vector<double>* slopes) {
    const Sizes& s = *posed.sizes;
    const int count = s.parameters();
    std::vector<double> out(posed.replicas * count);
    if (slopes) slopes->resize(out.size());
    for (int64_t r = 0; r < posed.replicas; ++r) {
        int64_t at = r * count;
        auto one = [&](const Net& net) {
            effective(net, posed.parameters + at, out.data() + at,
                      slopes ? slopes->data() + at : nullptr);
            at += net.parameters();
        };
        for (int hd = 0; hd < s.heads; ++hd) one(s.message);
        one(s.loop);
        one(s.update);
    }
    return out;
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
                     const int64_t* src, const int64_t* dst, int64_t leaf, double most_work,
                     char* why, int64_t why_size) {
    try {
        std::string reason;
        Plan* plan =
            make_plan(nodes, graphs, batch, edges, src, dst, (int)leaf, most_work, reason);
        if (!plan) explain(why, why_size, reason.c_str());
        return plan;
    } catch (const std::exception& error) {
        explain(why, why_size, error.what());
        return nullptr;
    }
}

HOG_API void hog_plan_free(void* plan) { delete (Plan*)plan; }

/// Numbers in the largest graph's fronts, and multiplications of all factorisations, for k = 1.
HOG_API void hog_plan_cost(const void* plan, double* most_numbers, double* work) {
    *most_numbers = *work = 0;
    for (const auto& one : ((const Plan*)plan)->of) {
        *most_numbers = std::max(*most_numbers, one->ones);
        *work += one->work;
    }
}

/// The sizes of a model: k, channels, heads, concat, ends, sent, activation, relu gates, then
/// layers, inputs and widths of the message, self message and update networks. `rising` has one byte
/// for every convex input of the three networks.
HOG_API void* hog_sizes(const int64_t* numbers, double beta, const unsigned char* rising) {
    auto s = std::make_unique<Sizes>();
    s->k = (int)numbers[0], s->channels = (int)numbers[1], s->heads = (int)numbers[2];
    s->concat = (int)numbers[3], s->ends = (int)numbers[4], s->sent = (int)numbers[5];
    s->beta = beta;
    const int act = (int)numbers[6], relu = (int)numbers[7];
    const int64_t* rest = numbers + 8;
    for (Net* net : {&s->message, &s->loop, &s->update})
        if (!describe(*net, rest, rising, act, relu)) return nullptr;
    const bool fits = s->message.D == s->ends * s->k && s->loop.D == s->k &&
                      s->update.D == s->merged() + s->k && s->message.w[s->message.L - 1] == s->channels &&
                      s->loop.w[s->loop.L - 1] == s->merged() && s->update.w[s->update.L - 1] == 1;
    return fits ? s.release() : nullptr;
}

HOG_API void hog_sizes_free(void* sizes) { delete (Sizes*)sizes; }

/// parameters of a replica; rows of o_0 on nodes; rows of o_0 on edges.
HOG_API void hog_shapes(const void* sizes, int64_t* out) {
    const Sizes& s = *(const Sizes*)sizes;
    out[0] = s.parameters(), out[1] = s.node_rows(), out[2] = s.edge_rows();
}

/// Solve every graph and replica. h [R, k, N] is the result; h0 may be nullptr (zero).
HOG_API int hog_solve(const void* plan, const void* sizes, int64_t replicas, const double* parameters,
                    const double* nodes, const double* edges, const double* weight,
                    int64_t weight_replica, int64_t weight_head, const double* loop_weight,
                    const double* h0, double atol, double rtol, int64_t max_iter,
                    int64_t max_backtracks, int64_t patience, int64_t threads, double* h,
                    int64_t* status, int64_t* iterations, double* residual, char* why,
                    int64_t why_size) {
    try {
        const Plan& p = *(const Plan*)plan;
        const Posed posed{&p, (const Sizes*)sizes, replicas, parameters, nodes, edges, weight,
                          weight_replica, weight_head, loop_weight};
        const Options options{atol, rtol, max_iter, max_backtracks, patience};
        const std::vector<double> used = effective_parameters(posed, nullptr);
        const std::vector<int64_t> order = largest_first(p);
        const int64_t count = posed.sizes->parameters();
        std::vector<Arena> own(std::max<int64_t>(threads, 1));
        each_task(p.graphs * replicas, threads, [&](int64_t t, int64_t thread) {
            const int64_t g = order[t / replicas], r = t % replicas, at = r * p.graphs + g;
            Task task(posed, used.data() + r * count, g, r, own[thread]);
            task.fill_contexts();
            task.start(h0);
            status[at] = task.newton(options, iterations[at]);
            residual[at] = task.residual;
            task.write(task.h, h);
        });
        return 0;
    } catch (const std::exception& error) {
        explain(why, why_size, error.what());
        return 1;
    }
}

/// The adjoint: from gradient = dL/dh [R, k, N] at the solution h to the gradients of everything the
/// problem is made of, and a status [R, G].
HOG_API int hog_adjoint(const void* plan, const void* sizes, int64_t replicas,
                      const double* parameters, const double* nodes, const double* edges,
                      const double* weight, int64_t weight_replica, int64_t weight_head,
                      const double* loop_weight, const double* h, const double* gradient,
                      int64_t threads, double* parameters_out, double* nodes_out, double* edges_out,
                      double* weight_out, double* loop_weight_out, int64_t* status, char* why,
                      int64_t why_size) {
    try {
        const Plan& p = *(const Plan*)plan;
        const Posed posed{&p, (const Sizes*)sizes, replicas, parameters, nodes, edges, weight,
                          weight_replica, weight_head, loop_weight};
        const Cotangents out{parameters_out, nodes_out, edges_out, weight_out, loop_weight_out};
        std::vector<double> slopes;
        const std::vector<double> used = effective_parameters(posed, &slopes);
        const int64_t count = posed.sizes->parameters();
        // A task is a run of graphs of one replica. Its length does not depend on the number of
        // threads, so that sums over graphs do not, either.
        const int64_t length = 16, runs = (p.graphs + length - 1) / length;
        std::vector<double> sums(replicas * runs * count, 0.0);
        std::vector<Arena> own(std::max<int64_t>(threads, 1));
        each_task(runs * replicas, threads, [&](int64_t t, int64_t thread) {
            const int64_t run = t / replicas, r = t % replicas;
            std::vector<double> room((count + 1) * LANES + LANES, 0.0);
            V* sum = (V*)(((size_t)room.data() + sizeof(V) - 1) / sizeof(V) * sizeof(V));
            for (int64_t g = run * length; g < std::min(p.graphs, (run + 1) * length); ++g) {
                Task task(posed, used.data() + r * count, g, r, own[thread]);
                task.fill_contexts();
                task.start(h);
                task.evaluate(task.h);
                task.differentiate(task.h, 0.0);
                task.load(gradient);
                const bool fine = task.factorise() && task.solve_linear();
                status[r * p.graphs + g] = fine ? CONVERGED : NOT_FINITE;
                task.reverse(out, sum);
            }
            for (int64_t i = 0; i < count; ++i)
                sums[(r * runs + run) * count + i] = sum_lanes(sum[i]);
        });
        for (int64_t r = 0; r < replicas; ++r)
            for (int64_t i = 0; i < count; ++i) {
                double total = 0;
                for (int64_t run = 0; run < runs; ++run) total += sums[(r * runs + run) * count + i];
                parameters_out[r * count + i] = total * slopes[r * count + i];
            }
        return 0;
    } catch (const std::exception& error) {
        explain(why, why_size, error.what());
        return 1;
    }
}

}  // extern "C"

#include "simulator.h"

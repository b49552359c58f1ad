// Batches of graphs on a CPU: the sizes of a model at run time, tasks, threads.
#pragma once
#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

#include "arena.h"
#include "crew.h"
#include "energy.h"
#include "fronts.h"
#include "krylov.h"
#include "pool.h"

namespace hog {

/// The sizes of a model that are known when it runs.
struct Sizes : Model<Sizes> {
    int k_, channels_, heads_, concat_, ends_, sent_;
    double beta_;
    Net message_, loop_, update_;

    int k() const { return k_; }
    int channels() const { return channels_; }
    int heads() const { return heads_; }
    bool concat() const { return concat_; }
    int ends() const { return ends_; }
    bool sent() const { return sent_; }
    double beta() const { return beta_; }
    const Net& message() const { return message_; }
    const Net& loop() const { return loop_; }
    const Net& update() const { return update_; }
};

typedef Task<Sizes, Fronts, Alone> DirectTask;
typedef Task<Sizes, Krylov, Crew> KrylovTask;

/// Adds gradients of parameters up, eight rows side by side.
struct Adder {
    V* to;
    void add(int i, V x) const { to[i] += x; }
    Adder from(int i) const { return Adder{to + i}; }
};

/// How linear systems are solved: by products with the Hessian, by factorisations, or by products with its
/// blocks, one large graph at a time (chunks.h).
enum class Method : int64_t { PRODUCTS = 0, FACTORS = 1, BLOCKS = 2 };

/// What a batch of graphs and replicas poses. Arrays are row-major with the last dimension fastest.
/// hogwild/engines/cpu.py has the same structure.
struct Posed {
    const Plan* plan;
    const Sizes* sizes;
    int64_t replicas;
    const double* parameters;   // [R, parameters]
    const double* nodes;        // o_0 on nodes, [R, node rows, N]
    const double* edges;        // o_0 on edges, [R, edge rows, E], or nullptr
    const double* weight;       // [R or 1, H or 1, E], or nullptr: all one
    int64_t weight_replica, weight_head;  // strides of the weight, zero where it is shared
    const double* loop_weight;  // [N], or nullptr
    Method method;
    const unsigned char* held;  // [N] whether a node stays where it is, or nullptr

    /// The part of one graph and replica; `used` are the parameters as the networks use them.
    Place place(int64_t graph, int64_t replica, const double* used) const {
        const int64_t N = plan->nodes, E = plan->edges;
        Place out{};
        out.n0 = plan->first[graph], out.e0 = plan->edge_first[graph];
        out.N = N, out.E = E;
        out.edge = (const long long*)plan->edge.data() + out.e0;
        out.parameters = used + replica * sizes->parameters();
        out.nodes = nodes + replica * sizes->node_rows() * N;
        out.edges = edges ? edges + replica * sizes->edge_rows() * E : nullptr;
        out.weight = weight ? weight + replica * weight_replica : nullptr;
        out.weight_head = weight_head;
        out.loop_weight = loop_weight;
        out.held = held;
        return out;
    }
};

/// Where the gradients of one replica go.
inline Cotangents replica_of(const Posed& posed, const Cotangents& all, int64_t r) {
    const Sizes& s = *posed.sizes;
    const int64_t N = posed.plan->nodes, E = posed.plan->edges;
    return Cotangents{all.nodes + r * s.node_rows() * N,
                      all.edges ? all.edges + r * s.edge_rows() * E : nullptr,
                      all.weight ? all.weight + r * s.heads() * E : nullptr,
                      all.loop_weight ? all.loop_weight + r * N : nullptr};
}

inline GraphView view(const GraphPlan& g) {
    return GraphView{g.n, g.e, g.ptr.data(), g.src.data(), g.dst.data(), g.out_ptr.data(),
                     g.out_edge.data(), g.own.data(), g.slot.data()};
}

/// The task of one graph and replica, in the memory of this thread; linear systems are factorised.
inline DirectTask make_task(const Posed& posed, int64_t graph, int64_t replica, const double* used,
                            Arena& arena) {
    const Sizes& s = *posed.sizes;
    const GraphPlan& g = *posed.plan->of[graph];
    const size_t end = DirectTask::vectors(s, g.n, g.e), own = end + GAP,
                 fronts = whole(front_numbers(g, s.k())),
                 panel = whole(panel_numbers(g, s.k())),
                 senders = whole(sender_numbers(g, s.k(), s.merged()));
    const size_t all = own + fronts + panel + senders;
    V* memory = poisoned(arena.room(all), all, end);
    const Fronts linear{&g, s.k(), (double*)(memory + own), (double*)(memory + own + fronts),
                        (double*)(memory + own + fronts + panel)};
    return DirectTask(s, view(g), posed.place(graph, replica, used), linear, Alone{}, memory);
}

/// Run `work(task, thread)` for one graph and replica on `threads` threads; with factorisations on one. `how`
/// has the tolerances of conjugate gradients. The threads of a crew share the memory, but for their scratch.
template <class Work>
void with_task(const Posed& posed, int64_t graph, int64_t replica, const double* used, const Krylov& how,
               int64_t threads, Arena& arena, const Work& work) {
    if (posed.method == Method::FACTORS) {
        DirectTask task = make_task(posed, graph, replica, used, arena);
        return work(task, 0);
    }
    const Sizes& s = *posed.sizes;
    const GraphPlan& g = *posed.plan->of[graph];
    const size_t end = KrylovTask::vectors(s, g.n, g.e), pad = KrylovTask::scratch(s) + GAP;
    const size_t own = end + GAP + krylov_packs<KrylovTask>(s, g.n, g.e), all = own + (threads - 1) * pad;
    V* memory = poisoned(arena.room(all), all, threads > 1 ? all - GAP : end);
    Common common((int)threads);
    crew(common, (int)threads, [&](int rank) {
        Krylov linear = how;
        linear.memory = memory + end + GAP;
        KrylovTask task(s, view(g), posed.place(graph, replica, used), linear, Crew{&common, rank}, memory);
        if (rank) task.use_scratch(memory + own + (rank - 1) * pad);
        work(task, rank);
    });
}

/// How many products with the Hessian of a graph one linear system may take: as many as cost about
/// three times its factorisation, and no fewer than `least`. Infinitely many where the fronts would be
/// too large.
inline double affordable_products(const Posed& posed, int64_t graph, double least) {
    constexpr double LARGEST = (double)(1 << 25);  // numbers in the fronts of a graph
    const Sizes& s = *posed.sizes;
    const GraphPlan& g = *posed.plan->of[graph];
    const double k = s.k();
    if (!g.fronts || g.ones * k * k > LARGEST) return INFINITY;
    const double product = (double)g.e * s.heads() * s.message().weights() +
                           (double)g.n * (s.loop().weights() + s.update().weights());
    return std::max(least, g.work * k * k * k / std::max(product, 1.0));
}

/// Threads that compute one graph together: all where graphs are large, and there are fewer tasks than threads.
/// Graphs that are factorised are computed by one thread.
inline int64_t crew_size(const Posed& posed, int64_t threads) {
    const bool few = posed.plan->graphs * posed.replicas < 2 * threads;
    const bool large = posed.plan->edges > 20000 * posed.plan->graphs;
    return posed.method == Method::PRODUCTS && few && large ? threads : 1;
}

/// Softplus where a parameter must be nonnegative; `slope` gets the derivative, if it is not null.
inline void effective(const Net& net, const double* raw, double* out, double* slope) {
    for (int i = 0; i < net.parameters(); ++i) {
        out[i] = raw[i];
        if (slope) slope[i] = 1.0;
    }
    auto bend = [&](int i) {
        V s;
        const V x = softplus(wide(raw[i]), s);
        out[i] = get(x, 0);
        if (slope) slope[i] = get(s, 0);
    };
    for (int l = 0; l < net.L(); ++l) {
        const int width = net.w(l);
        for (int i = 0; i < width; ++i)
            for (int j = 0; j < net.D(); ++j)
                if (net.rises(j)) bend(net.p(l) + i * net.D() + j);
        for (int i = 0; i < width * net.before(l); ++i) bend(net.p(l) + width * net.D() + i);
    }
}

/// Parameters as the networks use them, and their slopes, [R, parameters] both.
inline std::vector<double> effective_parameters(const Posed& posed, std::vector<double>* slopes) {
    const Sizes& s = *posed.sizes;
    const size_t all = posed.replicas * s.parameters();
    std::vector<double> out(all);
    if (slopes) slopes->resize(all);
    size_t at = 0;
    auto one = [&](const Net& net) {
        effective(net, posed.parameters + at, out.data() + at, slopes ? slopes->data() + at : nullptr);
        at += net.parameters();
    };
    while (at < all) {
        for (int hd = 0; hd < s.heads(); ++hd) one(s.message());
        one(s.loop());
        one(s.update());
    }
    return out;
}

/// Run `work(task, thread)` for every task, on several threads; tasks are taken in order.
template <class Work>
void each_task(int64_t tasks, int64_t threads, const Work& work) {
    std::atomic<int64_t> next{0};
    std::exception_ptr failed;
    std::atomic<bool> broken{false};
    auto run = [&](int64_t thread) {
        try {
            for (int64_t t; !broken && (t = next.fetch_add(1)) < tasks;) work(t, thread);
        } catch (...) {
            if (!broken.exchange(true)) failed = std::current_exception();
        }
    };
    const int64_t helpers = std::min(threads, tasks) - 1;
    if (helpers > 0)
        Pool::shared().run(helpers, run);
    else
        run(0);
    if (failed) std::rethrow_exception(failed);
}

/// Graphs by decreasing work, so that no thread begins the largest one last.
inline std::vector<int64_t> largest_first(const Plan& plan) {
    std::vector<int64_t> order(plan.graphs);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return plan.of[a]->n + plan.of[a]->e > plan.of[b]->n + plan.of[b]->e;
    });
    return order;
}

/// Solve every graph and replica from h0 [R, k, N] (nullptr: zero); h [R, k, N] is the result.
inline void solve_batch(const Posed& posed, const Options& options, const double* h0,
                        int64_t threads, double* h, int64_t* status, int64_t* iterations,
                        double* residual) {
    const Plan& p = *posed.plan;
    const std::vector<double> used = effective_parameters(posed, nullptr);
    const std::vector<int64_t> order = largest_first(p);
    const int64_t one = (int64_t)posed.sizes->k() * p.nodes, team = crew_size(posed, threads);
    Arenas arenas(threads);
    std::fill(iterations, iterations + p.graphs * posed.replicas, 0);
    Posed factorised = posed;
    factorised.method = Method::FACTORS;
    each_task(p.graphs * posed.replicas, team > 1 ? 1 : threads, [&](int64_t t, int64_t thread) {
        const int64_t g = order[t / posed.replicas], r = t % posed.replicas, at = r * p.graphs + g;
        const Krylov how{nullptr, 0.0, 0.1 * options.atol, 2000, affordable_products(posed, g, 100)};
        auto solve = [&](const Posed& by, const double* from, const Options& limits) {
            with_task(by, g, r, used.data(), how, team, arenas[thread], [&](auto& task, int rank) {
                long long count;
                const int ended = solve_one(task, limits, from ? from + r * one : nullptr, h + r * one, count);
                if (rank == 0) status[at] = ended, iterations[at] += count, residual[at] = task.residual;
            });
        };
        solve(posed, h0, options);
        if (status[at] != GAVE_UP) return;
        Options rest = options;  // an ill-conditioned energy: go on with factorisations
        rest.max_iter -= (int)iterations[at];
        solve(factorised, h, rest);
    });
}

/// The gradient [R, k, N] of the energy at h [R, k, N], and the size of its terms [R, G].
inline void gradient_batch(const Posed& posed, const double* h, int64_t threads, double* gradient,
                           double* scale) {
    const Plan& p = *posed.plan;
    const std::vector<double> used = effective_parameters(posed, nullptr);
    Posed plain = posed;
    plain.method = Method::PRODUCTS;  // no blocks of the Hessian
    const int64_t one = (int64_t)posed.sizes->k() * p.nodes, team = crew_size(plain, threads);
    Arenas arenas(threads);
    each_task(p.graphs * posed.replicas, team > 1 ? 1 : threads, [&](int64_t t, int64_t thread) {
        const int64_t g = t / posed.replicas, r = t % posed.replicas;
        with_task(plain, g, r, used.data(), Krylov{}, team, arenas[thread], [&](auto& task, int rank) {
            differentiate_one(task, h + r * one, gradient + r * one);
            if (rank == 0) scale[r * p.graphs + g] = task.scale;
        });
    });
}

/// The adjoint: from gradient = dL/dh [R, k, N] at the solution h to the gradients of everything the
/// problem is made of (`out` with all replicas, and `parameters`), and a status [R, G].
inline void adjoint_batch(const Posed& posed, const double* h, const double* gradient,
                          double rtol, int64_t threads, double* parameters, const Cotangents& out,
                          int64_t* status) {
    const Plan& p = *posed.plan;
    const Sizes& s = *posed.sizes;
    std::vector<double> slopes;
    const std::vector<double> used = effective_parameters(posed, &slopes);
    const int64_t count = s.parameters(), one = (int64_t)s.k() * p.nodes, team = crew_size(posed, threads);
    // A task is a set of graphs of one replica. Their number does not depend on the number of threads,
    // so that sums over graphs do not, either. Graphs of all sizes are dealt out to all sets.
    const int64_t runs = std::min<int64_t>(p.graphs, 64);
    const std::vector<int64_t> order = largest_first(p);
    std::vector<double> sums(posed.replicas * runs * count, 0.0);
    Arenas arenas(threads), adders(threads);
    Posed factorised = posed;
    factorised.method = Method::FACTORS;
    each_task(runs * posed.replicas, team > 1 ? 1 : threads, [&](int64_t t, int64_t thread) {
        const int64_t run = t / posed.replicas, r = t % posed.replicas;
        V* sum = adders[thread].room(team * count);  // of every thread of a crew
        std::fill(sum, sum + team * count, wide(0.0));
        for (int64_t at = run; at < p.graphs; at += runs) {
            const int64_t g = order[at];
            int64_t& ended = status[r * p.graphs + g];
            const Krylov how{nullptr, rtol, 0.0, 2000, affordable_products(posed, g, 400)};
            auto differentiate = [&](const Posed& by) {
                with_task(by, g, r, used.data(), how, team, arenas[thread], [&](auto& task, int rank) {
                    const bool sound = solve_dual(task, h + r * one, gradient + r * one);
                    const bool spent = !sound && task.exhausted();
                    if (rank == 0) ended = sound ? CONVERGED : spent ? GAVE_UP : NOT_FINITE;
                    if (!spent) task.reverse(replica_of(posed, out, r), Adder{sum + rank * count});
                });
            };
            differentiate(posed);
            if (ended == GAVE_UP) differentiate(factorised);
        }
        for (int64_t i = 0; i < team * count; ++i)
            sums[(r * runs + run) * count + i % count] += sum_lanes(sum[i]);
    });
    for (int64_t r = 0; r < posed.replicas; ++r)
        for (int64_t i = 0; i < count; ++i) {
            double total = 0;
            for (int64_t run = 0; run < runs; ++run) total += sums[(r * runs + run) * count + i];
            parameters[r * count + i] = total * slopes[r * count + i];
        }
}

}  // namespace hog

// Solves and adjoints of batches of graphs on a GPU: a block of threads for every graph and replica,
// the whole solve in one launch, nothing read back in between.
//
// hogwild/kernels/cuda.py compiles this file for one model: it defines HOG_SIZES, the types
// MessageNet, LoopNet and UpdateNet, and the numbers of the model.
#include "fronts_gpu.h"
#include "sizes_gpu.h"

namespace hog {

#define HOG_ROOM (130 + HOG_THREADS)  // numbers of shared memory for sums, a flag and columns

typedef Task<StaticSizes, BlockFronts, Block> BlockTask;

/// What a batch poses, in the memory of the GPU; the arrays are those of Posed in batch.h.
struct Batch {
    const int* plans;         // all plans, one after the other
    const long long* start;   // [G] where the plan of a graph begins
    const long long* first;   // [G] first node
    const long long* edge_first;  // [G] first edge
    const long long* edge;    // [E] the caller's number of every sorted edge
    const long long* room;    // [G] where a graph's memory begins in `memory`
    const int* order;         // [G] large graphs first
    double* memory;           // of one replica after the other
    long long room_replica;
    long long nodes, edges, graphs, replicas;
    const double *parameters, *o_nodes, *o_edges, *weight, *loop_weight;
    long long weight_replica, weight_head;
    long long shared;         // whether the fronts lie in shared memory (1), or all memory (2)
};

/// Softplus where a parameter must be nonnegative, and its slope.
template <class N>
HOG_FN double bent(N net, int i, double raw, double& slope) {
    slope = 1.0;
    bool bend = false;
    for (int l = 0; l < net.L(); ++l) {
        const int at = i - net.p(l), wy = net.w(l) * net.D(), wz = net.w(l) * net.before(l);
        if (at < 0 || at >= wy + wz) continue;
        bend = at >= wy || net.rises(at % net.D());
    }
    if (!bend) return raw;
    V s;
    const double out = softplus(raw, s);
    slope = s;
    return out;
}

HOG_FN double used(int i, double raw, double& slope) {
    constexpr StaticSizes s{};
    const int messages = s.heads() * s.message().parameters();
    if (i < messages) return bent(s.message(), i % s.message().parameters(), raw, slope);
    i -= messages;
    if (i < s.loop().parameters()) return bent(s.loop(), i, raw, slope);
    return bent(s.update(), i - s.loop().parameters(), raw, slope);
}

/// The task of this block; `shared` is its dynamic shared memory.
HOG_FN BlockTask make(const Batch& b, int graph, int replica, double* shared, int* flip) {
    constexpr StaticSizes s{};
    const DevicePlan plan = DevicePlan::at(b.plans + b.start[graph]);
    double* room = shared;  // what Block describes
    int* broken = (int*)(shared + 128);
    double* parameters = shared + HOG_ROOM;
    const double* raw = b.parameters + (long long)replica * s.parameters();
    for (int i = threadIdx.x; i < s.parameters(); i += blockDim.x) {
        double slope;
        parameters[i] = used(i, raw[i], slope);
    }
    double* own = b.memory + replica * b.room_replica + b.room[graph];
    double* near = parameters + s.parameters();
    double* fronts = b.shared ? near : own;
    if (b.shared == 2) own = near + plan.numbers;
    else if (!b.shared) own += plan.numbers;
    Place place;
    place.n0 = b.first[graph], place.e0 = b.edge_first[graph], place.N = b.nodes, place.E = b.edges;
    place.edge = b.edge + place.e0;
    place.parameters = parameters;
    place.nodes = b.o_nodes + (long long)replica * s.node_rows() * b.nodes;
    place.edges = b.o_edges ? b.o_edges + (long long)replica * s.edge_rows() * b.edges : nullptr;
    place.weight = b.weight ? b.weight + replica * b.weight_replica : nullptr;
    place.weight_head = b.weight_head;
    place.loop_weight = b.loop_weight;
    __syncthreads();
    return BlockTask(s, plan.view, place, BlockFronts{plan, fronts, broken}, Block{room, flip}, own);
}

/// Adds gradients of parameters up: every warp by itself, in memory of its own.
struct WarpSum {
    double* to;
    HOG_METHOD void add(int i, double x) const {
        for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
        if (threadIdx.x % 32 == 0) to[i] += x;
    }
    HOG_METHOD WarpSum from(int i) const { return WarpSum{to + i}; }
};

}  // namespace hog

using namespace hog;

extern "C" __global__ void __launch_bounds__(HOG_THREADS, HOG_RESIDENT)
hog_solve(const __grid_constant__ Batch b, const double* h0, Options o, double* h,
          long long* status, long long* iterations, double* residual) {
    HOG_SHARED(shared);
    const int graph = b.order[blockIdx.x / b.replicas], replica = blockIdx.x % b.replicas;
    int flip = 0;
    BlockTask task = make(b, graph, replica, shared, &flip);
    const long long one = HOG_K * b.nodes, at = (long long)replica * b.graphs + graph;
    task.fill_contexts();
    task.read(h0 ? h0 + replica * one : nullptr, task.h);
    long long count;
    const int ended = task.newton(o, count);
    task.write(task.h, h + replica * one);
    if (threadIdx.x == 0) {
        status[at] = ended;
        iterations[at] = count;
        residual[at] = task.residual;
    }
}

/// `sums` [R, G, warps, parameters] is filled with the gradients of the parameters as they are used.
extern "C" __global__ void __launch_bounds__(HOG_THREADS, HOG_RESIDENT)
hog_adjoint(const __grid_constant__ Batch b, const double* h, const double* gradient, double* nodes,
            double* edges, double* weight, double* loop_weight, double* sums, long long* status) {
    HOG_SHARED(shared);
    constexpr StaticSizes s{};
    const int graph = b.order[blockIdx.x / b.replicas], replica = blockIdx.x % b.replicas;
    int flip = 0;
    BlockTask task = make(b, graph, replica, shared, &flip);
    const long long one = HOG_K * b.nodes, at = (long long)replica * b.graphs + graph;
    double* mine = sums + (at * (HOG_THREADS / 32) + threadIdx.x / 32) * s.parameters();
    for (int i = threadIdx.x % 32; i < s.parameters(); i += 32) mine[i] = 0.0;
    task.fill_contexts();
    task.read(h + replica * one, task.h);
    task.evaluate(task.h);
    task.differentiate(task.h, 0.0);
    task.read(gradient + replica * one, task.trial);
    const bool sound = task.solve_linear(task.trial, 1.0, task.d);
    if (threadIdx.x == 0) status[at] = sound ? CONVERGED : NOT_FINITE;
    const Cotangents out{nodes + (long long)replica * s.node_rows() * b.nodes,
                         edges ? edges + (long long)replica * s.edge_rows() * b.edges : nullptr,
                         weight ? weight + (long long)replica * HOG_HEADS * b.edges : nullptr,
                         loop_weight ? loop_weight + replica * b.nodes : nullptr};
    task.reverse(out, WarpSum{mine});
}

/// Gradients of the parameters themselves, [R, parameters], from `sums`; a block for every replica.
extern "C" __global__ void hog_parameters(const __grid_constant__ Batch b, const double* sums,
                                          double* out) {
    constexpr StaticSizes s{};
    const long long replica = blockIdx.x, runs = b.graphs * (HOG_THREADS / 32);
    const int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= s.parameters()) return;
    double total = 0, slope;
    const double* from = sums + replica * runs * s.parameters() + i;
    for (long long r = 0; r < runs; ++r) total += from[r * s.parameters()];
    used(i, b.parameters[replica * s.parameters() + i], slope);
    out[replica * s.parameters() + i] = total * slope;
}

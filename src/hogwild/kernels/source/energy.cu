// Solves and adjoints of batches of graphs on a GPU: a block of threads for every graph and replica,
// the whole solve in one launch, nothing read back in between.
//
// hogwild/engines/gpu.py compiles this file for one model: it defines HOG_SIZES, the types
// MessageNet, LoopNet and UpdateNet, and the numbers of the model.
#include "fronts_gpu.h"
#include "posed_gpu.h"

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

/// The task of this block; `shared` is its dynamic shared memory.
HOG_FN BlockTask make(const Batch& b, int graph, int replica, double* shared, int* flip) {
    constexpr StaticSizes s{};
    const DevicePlan plan = DevicePlan::at(b.plans + b.start[graph]);
    double* room = shared;  // what Block describes
    int* broken = (int*)(shared + 128);
    double* parameters = shared + HOG_ROOM;
    const Place place = placed(b, graph, replica, parameters);
    double* own = b.memory + replica * b.room_replica + b.room[graph];
    double* near = parameters + s.parameters();
    double* fronts = b.shared ? near : own;
    if (b.shared == 2) own = near + plan.numbers;
    else if (!b.shared) own += plan.numbers;
    return BlockTask(s, plan.view, place, BlockFronts{plan, fronts, broken}, Block{room, flip}, own);
}

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
    long long count;
    const int ended = solve_one(task, o, h0 ? h0 + replica * one : nullptr, h + replica * one, count);
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
    const bool sound = solve_dual(task, h + replica * one, gradient + replica * one);
    if (threadIdx.x == 0) status[at] = sound ? CONVERGED : NOT_FINITE;
    const Cotangents out = replica_of(Cotangents{nodes, edges, weight, loop_weight}, b, replica);
    task.reverse(out, WarpSum{mine});
}

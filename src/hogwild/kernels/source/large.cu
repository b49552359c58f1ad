// Solves and adjoints of large graphs on a GPU: all threads compute one graph and replica after the other,
// each in one cooperative launch, and nothing is read back in between.
//
// hogwild/engines/gpu_large.py compiles this file for one model: it defines the types MessageNet, LoopNet and
// UpdateNet, and the numbers of the model.
#include "energy.h"
#include "krylov_gpu.h"
#include "posed_gpu.h"

namespace hog {

#define HOG_ROOM 128  // numbers of shared memory for sums

typedef Task<StaticSizes, GridKrylov, Grid> GridTask;

/// What a batch poses, in the memory of the GPU; the arrays are those of Posed in batch.h.
struct Large {
    const int *ptr, *src, *dst, *out_ptr, *out_edge;  // GraphView of every graph, one after the other
    const long long* first;       // [G + 1] first node
    const long long* edge_first;  // [G + 1] first edge
    const long long* edge;        // [E] the caller's number of every sorted edge
    double* memory;               // of one graph at a time: a Task's, and two Systems' behind it
    double* found;                // for Grid
    unsigned* arrived;            // for Grid, zero
    long long nodes, edges, graphs, replicas;
    const double *parameters, *o_nodes, *o_edges, *weight, *loop_weight;
    long long weight_replica, weight_head;
};

/// The task of all threads; `shared` is the dynamic shared memory of this block.
HOG_FN GridTask make(const Large& b, int graph, int replica, double* shared, double rtol, double atol,
                     int* flip, unsigned* passed) {
    constexpr StaticSizes s{};
    const Place place = placed(b, graph, replica, shared + HOG_ROOM);
    GraphView view;
    view.n = (int)(b.first[graph + 1] - place.n0), view.e = (int)(b.edge_first[graph + 1] - place.e0);
    view.ptr = b.ptr + place.n0 + graph, view.out_ptr = b.out_ptr + place.n0 + graph;
    view.src = b.src + place.e0, view.dst = b.dst + place.e0, view.out_edge = b.out_edge + place.e0;
    view.own = view.slot = nullptr;
    const size_t own = GridTask::vectors(s, view.n, view.e);
    return GridTask(s, view, place, GridKrylov{b.memory + (own + 1) / 2 * 2, rtol, atol},
                    Grid{shared, b.found, b.arrived, flip, passed}, b.memory);
}

}  // namespace hog

using namespace hog;

/// Solve every graph and replica from h0 [R, k, N] (nullptr: zero); h [R, k, N] is the result.
extern "C" __global__ void __launch_bounds__(HOG_THREADS, HOG_RESIDENT)
hog_solve_large(const __grid_constant__ Large b, const double* h0, Options o, double* h,
                long long* status, long long* iterations, double* residual) {
    HOG_SHARED(shared);
    const long long one = HOG_K * b.nodes;
    int flip = 0;
    unsigned passed = 0;
    for (int t = 0; t < b.graphs * b.replicas; ++t) {
        const int replica = (int)(t / b.graphs), graph = (int)(t % b.graphs);
        GridTask task = make(b, graph, replica, shared, 0.0, 0.1 * o.atol, &flip, &passed);
        long long count;
        const int ended = solve_one(task, o, h0 ? h0 + replica * one : nullptr, h + replica * one, count);
        if (task.team.rank() == 0) {
            status[t] = ended;
            iterations[t] = count;
            residual[t] = task.residual;
        }
        task.team.sync();  // the next graph uses the same memory
    }
}

/// The adjoint, as hog_adjoint in energy.cu; `sums` [warps of all blocks, parameters] is scratch memory,
/// and `parameters` [R, parameters] gets the gradients of the parameters themselves.
extern "C" __global__ void __launch_bounds__(HOG_THREADS, HOG_RESIDENT)
hog_adjoint_large(const __grid_constant__ Large b, const double* h, const double* gradient, double rtol,
                  double* parameters, double* nodes, double* edges, double* weight, double* loop_weight,
                  double* sums, long long* status) {
    HOG_SHARED(shared);
    constexpr StaticSizes s{};
    constexpr int P = s.parameters();
    const long long one = HOG_K * b.nodes;
    int flip = 0;
    unsigned passed = 0;
    for (int t = 0; t < b.graphs * b.replicas; ++t) {
        const int replica = (int)(t / b.graphs), graph = (int)(t % b.graphs);
        GridTask task = make(b, graph, replica, shared, rtol, 0.0, &flip, &passed);
        const int rank = task.team.rank(), lane = rank % 32, warps = task.team.size() / 32;
        double* mine = sums + (long long)(rank / 32) * P;
        if (graph == 0)
            for (int i = lane; i < P; i += 32) mine[i] = 0.0;
        const bool sound = solve_dual(task, h + replica * one, gradient + replica * one);
        if (rank == 0) status[t] = sound ? CONVERGED : NOT_FINITE;
        const Cotangents all{nodes, edges, weight, loop_weight};
        task.reverse(replica_of(all, b, replica), WarpSum{mine});
        task.team.sync();
        if (graph + 1 < b.graphs) continue;
        for (int i = rank / 32; i < P; i += warps) {  // a warp adds up one parameter
            double total = 0, slope;
            for (int w = lane; w < warps; w += 32) total += sums[(long long)w * P + i];
            for (int x = 16; x; x /= 2) total += __shfl_xor_sync(~0u, total, x);
            used(i, b.parameters[(long long)replica * P + i], slope);
            if (lane == 0) parameters[(long long)replica * P + i] = total * slope;
        }
        task.team.sync();
    }
}

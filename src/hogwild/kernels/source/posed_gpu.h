// One graph and replica of what a batch poses on a GPU. `B` is Batch in energy.cu or Large in large.cu.
#pragma once
#include "parameters_gpu.h"

namespace hog {

/// The arrays that pose one graph and replica. All threads of the block must call it: they copy the
/// parameters, as the networks use them, to `parameters` in shared memory.
template <class B>
HOG_FN Place placed(const B& b, int graph, int replica, double* parameters) {
    constexpr StaticSizes s{};
    const double* raw = b.parameters + (long long)replica * s.parameters();
    for (int i = threadIdx.x; i < s.parameters(); i += blockDim.x) {
        double slope;
        parameters[i] = used(i, raw[i], slope);
    }
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
    return place;
}

/// One replica of the gradients.
template <class B>
HOG_FN Cotangents replica_of(const Cotangents& all, const B& b, int replica) {
    constexpr StaticSizes s{};
    return Cotangents{
        all.nodes + (long long)replica * s.node_rows() * b.nodes,
        all.edges ? all.edges + (long long)replica * s.edge_rows() * b.edges : nullptr,
        all.weight ? all.weight + (long long)replica * HOG_HEADS * b.edges : nullptr,
        all.loop_weight ? all.loop_weight + replica * b.nodes : nullptr,
    };
}

}  // namespace hog

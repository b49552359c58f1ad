// What poses one graph and replica on a GPU: the sizes of the one model that the code is compiled for, and its
// parameters, from those that are stored to those that the networks use, and back again.
#pragma once
#include "shapes.h"

namespace hog {

struct StaticSizes : Model<StaticSizes> {
    HOG_METHOD constexpr int k() const { return HOG_K; }
    HOG_METHOD constexpr int channels() const { return HOG_CHANNELS; }
    HOG_METHOD constexpr int heads() const { return HOG_HEADS; }
    HOG_METHOD constexpr bool concat() const { return HOG_CONCAT; }
    HOG_METHOD constexpr int ends() const { return HOG_ENDS; }
    HOG_METHOD constexpr bool sent() const { return HOG_SENT; }
    HOG_METHOD constexpr double beta() const { return HOG_BETA; }
    HOG_METHOD constexpr MessageNet message() const { return MessageNet{}; }
    HOG_METHOD constexpr LoopNet loop() const { return LoopNet{}; }
    HOG_METHOD constexpr UpdateNet update() const { return UpdateNet{}; }
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

/// Adds gradients of parameters up: every warp by itself, in memory of its own.
struct WarpSum {
    double* to;
    HOG_METHOD void add(int i, double x) const {
        for (int o = 16; o; o /= 2) x += __shfl_xor_sync(~0u, x, o);
        if (threadIdx.x % 32 == 0) to[i] += x;
    }
    HOG_METHOD WarpSum from(int i) const { return WarpSum{to + i}; }
};

/// The arrays that pose one graph and replica; `B` is Batch in energy.cu or Large in large.cu. All threads of the block must call it: they copy the
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

/// Gradients of the parameters themselves, [R, parameters], from the sums [R, runs, parameters] of
/// gradients of the parameters as they are used; a block for every replica and 128 parameters.
extern "C" __global__ void hog_parameters(const double* parameters, const double* sums, long long runs,
                                          double* out) {
    using namespace hog;
    constexpr StaticSizes s{};
    const long long replica = blockIdx.x;
    const int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= s.parameters()) return;
    double total = 0, slope;
    const double* from = sums + replica * runs * s.parameters() + i;
    for (long long r = 0; r < runs; ++r) total += from[r * s.parameters()];
    used(i, parameters[replica * s.parameters() + i], slope);
    out[replica * s.parameters() + i] = total * slope;
}

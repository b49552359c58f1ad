// Parameters on a GPU: from those that are stored to those that the networks use, and back again.
#pragma once
#include "sizes_gpu.h"

namespace hog {

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

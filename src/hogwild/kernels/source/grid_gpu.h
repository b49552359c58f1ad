// Threads of a GPU as one team (T of Task in energy.h): those of a block, which compute one graph, or those
// of all blocks, which compute one large graph. Then the blocks must run at the same time: a cooperative
// launch.
#pragma once
#include "vectors.h"

namespace hog {

/// The threads of a block.
struct Block {
    double* room;  // shared memory for 128 numbers, two a warp, twice over; fronts_gpu.h has more behind it
    int* flip;     // in registers of every thread: which half of the room comes next

    HOG_METHOD int rank() const { return threadIdx.x; }
    HOG_METHOD int size() const { return blockDim.x; }
    HOG_METHOD void sync() const { __syncthreads(); }
    HOG_METHOD int inside(int b, int n) const { return b < n ? b : n - 1; }
    HOG_METHOD void sum(double& a, double& b) const { combine<false, false>(a, b); }
    HOG_METHOD void max(double& a, double& b) const { combine<true, true>(a, b); }

    /// The sum, or the larger one; NaN wins.
    template <bool LARGEST>
    HOG_METHOD static double join(double a, double b) {
        if (!LARGEST) return a + b;
        return b > a || b != b ? b : a;
    }

    /// Every thread of the block gets the same two numbers.
    template <bool FIRST, bool SECOND>
    HOG_METHOD void combine(double& a, double& b) const {
        for (int o = 16; o; o /= 2) {
            const double x = __shfl_xor_sync(~0u, a, o), y = __shfl_xor_sync(~0u, b, o);
            a = join<FIRST>(a, x), b = join<SECOND>(b, y);
        }
        *flip ^= 64;
        double* here = room + (*flip & 64);
        if (threadIdx.x % 32 == 0) {
            here[2 * (threadIdx.x / 32)] = a;
            here[2 * (threadIdx.x / 32) + 1] = b;
        }
        __syncthreads();
        a = here[0], b = here[1];
        for (int w = 1; w < (int)blockDim.x / 32; ++w)
            a = join<FIRST>(a, here[2 * w]), b = join<SECOND>(b, here[2 * w + 1]);
    }
};

/// The threads of all blocks.
struct Grid {
    double* room;       // of this block: shared memory for 128 numbers, two a warp, twice over
    double* found;      // of all blocks: two numbers for every block, twice over
    unsigned* arrived;  // of all blocks: zero when the kernel begins
    int* flip;          // in registers of every thread: which halves of both rooms come next
    unsigned* passed;   // in registers of every thread: barriers so far

    HOG_METHOD int rank() const { return blockIdx.x * blockDim.x + threadIdx.x; }
    HOG_METHOD int size() const { return gridDim.x * blockDim.x; }
    HOG_METHOD int inside(int b, int n) const { return b < n ? b : n - 1; }
    HOG_METHOD void sum(double& a, double& b) const { combine<false, false>(a, b); }
    HOG_METHOD void max(double& a, double& b) const { combine<true, true>(a, b); }
    HOG_METHOD void sum_and_max(double& a, double& b) const { combine<false, true>(a, b); }

    /// Wait for all threads, and see what they wrote.
    HOG_METHOD void sync() const {
#ifdef HOG_EMULATED
        emulated_grid_sync();
#else
        __syncthreads();
        if (threadIdx.x == 0) {
            const unsigned goal = ++*passed * gridDim.x;  // modulo 2^32, like the count itself
            __threadfence();
            atomicAdd(arrived, 1u);
            while ((int)(*(volatile unsigned*)arrived - goal) < 0) {
            }
            __threadfence();
        }
        __syncthreads();
#endif
    }

  private:
    HOG_METHOD Block block() const { return {room, flip}; }

    /// Every thread of all blocks gets the same two numbers: all add them up in the same order.
    template <bool FIRST, bool SECOND>
    HOG_METHOD void combine(double& a, double& b) const {
        block().combine<FIRST, SECOND>(a, b);
        *flip ^= 1;
        double* here = found + (*flip & 1) * 2 * gridDim.x;
        if (threadIdx.x == 0) here[2 * blockIdx.x] = a, here[2 * blockIdx.x + 1] = b;
        sync();
        a = b = 0.0;  // of sums, and the least of sizes
        for (int o = threadIdx.x; o < (int)gridDim.x; o += blockDim.x)
            a = Block::join<FIRST>(a, here[2 * o]), b = Block::join<SECOND>(b, here[2 * o + 1]);
        block().combine<FIRST, SECOND>(a, b);
    }
};

}  // namespace hog

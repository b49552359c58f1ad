// Blocks of a GPU's threads on a CPU: every thread is a fiber, which runs until it has to wait for its
// warp, its block or all blocks. With it the kernels of energy.cu and large.cu run unchanged, a few
// thousand times slower.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ inline
#define __grid_constant__
#define __constant__
#define __launch_bounds__(threads, blocks)
using std::fabs;
using std::fma;
using std::rint;
using std::sqrt;

struct Index {
    int x, y;
};

enum Waits { NOTHING, WARP, BLOCK, GRID, DONE };

struct Fiber {
    ucontext_t here;
    std::vector<char> stack = std::vector<char>(1 << 18);
    Waits waits = NOTHING;
};

static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int current;
static std::vector<double> exchanged;
static std::function<void()> entry;
static int in_block, first_block, room_of_block;  // threads; number; numbers of shared memory
static double* all_rooms;

struct Rank {
    operator int() const { return current % in_block; }
};
struct BlockRank {
    operator int() const { return first_block + current / in_block; }
};
static struct {
    Rank x;
} threadIdx;
static struct {
    BlockRank x;
    int y;
} blockIdx;
static Index blockDim, gridDim;
static struct {
    operator double*() const { return all_rooms + (size_t)(current / in_block) * room_of_block; }
} emulated_shared;

static void pause(Waits why) {
    const int mine = current;
    fibers[mine].waits = why;
    swapcontext(&fibers[mine].here, &scheduler);
}
inline void __syncthreads() { pause(BLOCK); }
inline void __syncwarp() { pause(WARP); }
inline void emulated_grid_sync() { pause(GRID); }
inline double emulated_read(double x, int from) {
    exchanged[current] = x;
    __syncwarp();
    const double out = exchanged[current / 32 * 32 + from];
    __syncwarp();
    return out;
}
inline double __shfl_sync(unsigned, double x, int from) { return emulated_read(x, from & 31); }
inline double __shfl_xor_sync(unsigned, double x, int mask) {
    return emulated_read(x, (current % 32) ^ mask);
}
inline int __shfl_sync(unsigned, int x, int from) { return (int)emulated_read(x, from & 31); }
inline int __shfl_up_sync(unsigned, int x, int by) {
    const int lane = current % 32;
    return (int)emulated_read(x, lane < by ? lane : lane - by);
}
inline unsigned __ballot_sync(unsigned, bool yes) {
    exchanged[current] = yes;
    __syncwarp();
    unsigned out = 0;
    for (int l = 0; l < 32; ++l) out |= (unsigned)(exchanged[current / 32 * 32 + l] != 0) << l;
    __syncwarp();
    return out;
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __syncthreads_count(bool yes) {
    exchanged[current] = yes;
    __syncthreads();
    int out = 0;
    for (int t = 0; t < blockDim.x; ++t) out += exchanged[t] != 0;
    __syncthreads();
    return out;
}
template <class T>
inline T atomicAdd(T* at, T x) {
    const T old = *at;
    *at += x;
    return old;
}
template <class T>
inline T atomicMax(T* at, T x) {
    const T old = *at;
    if (old < x) *at = x;
    return old;
}
inline long long __double_as_longlong(double x) {
    long long out;
    std::memcpy(&out, &x, sizeof out);
    return out;
}
inline double __longlong_as_double(long long x) {
    double out;
    std::memcpy(&out, &x, sizeof out);
    return out;
}

static void begin() {
    entry();
    fibers[current].waits = DONE;
    swapcontext(&fibers[current].here, &scheduler);
}

/// Run `blocks` blocks of `threads` threads at the same time, from the block (x, y) on; `shared` has `room`
/// numbers for each of them.
static void emulate_grid(int x, int y, int blocks, int threads, double* shared, int room,
                         std::function<void()> kernel) {
    first_block = x, blockIdx.y = y, in_block = threads, room_of_block = room, all_rooms = shared;
    blockDim = Index{threads, 1}, gridDim = Index{blocks, 1}, entry = std::move(kernel);
    const int all = blocks * threads;
    exchanged.assign(all, 0.0);
    fibers = std::vector<Fiber>(all);
    for (Fiber& f : fibers) {
        getcontext(&f.here);
        f.here.uc_stack.ss_sp = f.stack.data(), f.here.uc_stack.ss_size = f.stack.size();
        f.here.uc_link = nullptr;
        makecontext(&f.here, begin, 0);
    }
    for (;;) {
        bool moved = false;
        for (current = 0; current < all; ++current)
            if (fibers[current].waits == NOTHING) {
                moved = true;
                swapcontext(&scheduler, &fibers[current].here);
            }
        auto release = [&](int from, int to, Waits why) {
            for (int t = from; t < to; ++t)
                if (fibers[t].waits != why) return;
            for (int t = from; t < to; ++t) fibers[t].waits = NOTHING;
            moved = true;
        };
        for (int t = 0; t < all; t += 32) release(t, t + 32, WARP);
        for (int t = 0; t < all; t += threads) release(t, t + threads, BLOCK);
        release(0, all, GRID);
        if (moved) continue;
        for (const Fiber& f : fibers)
            if (f.waits != DONE) std::abort();  // threads wait for each other
        return;
    }
}

/// Run one block of `threads` threads.
static void emulate(int x, int y, int threads, double* shared, std::function<void()> kernel) {
    emulate_grid(x, y, 1, threads, shared, 0, std::move(kernel));
}

// The threads of a CPU that compute one graph (T of Task in energy.h): one, or a few that wait for each other.
#pragma once
#include <atomic>
#include <cstdint>
#include <exception>
#include <thread>
#include <vector>

namespace hog {

/// One thread computes a graph.
struct Alone {
    int rank() const { return 0; }
    int size() const { return 1; }
    int first(int) const { return 0; }
    int last(int n) const { return n; }
    void sync() const {}
    void sum(double&, double&) const {}
    void max(double&, double&) const {}
    int inside(int b, int) const { return b; }
};

/// What the threads of a crew share.
struct Common {
    explicit Common(int threads) : size(threads), numbers(4 * threads) {}
    int size;  // final before the first thread works
    std::atomic<int> waiting{0}, round{0};
    std::vector<double> numbers;  // two for every thread, twice over

    void wait() {
        const int now = round.load(std::memory_order_acquire);
        if (waiting.fetch_add(1, std::memory_order_acq_rel) + 1 == size) {
            waiting.store(0, std::memory_order_relaxed);
            round.store(now + 1, std::memory_order_release);
            return;
        }
        for (int spun = 0; round.load(std::memory_order_acquire) == now; ++spun)
            if (spun > 2000) std::this_thread::yield();
    }
};

/// A few threads, or one, compute one graph, each a contiguous part of its rows.
struct Crew {
    Common* common;
    int rank_;
    mutable int turn = 0;

    int rank() const { return rank_; }
    int size() const { return common->size; }
    int first(int n) const { return (int)((int64_t)n * rank_ / common->size); }
    int last(int n) const { return (int)((int64_t)n * (rank_ + 1) / common->size); }
    void sync() const {
        if (common->size > 1) common->wait();
    }
    int inside(int b, int) const { return b; }
    void sum(double& a, double& b) const { combine(a, b, false); }
    void max(double& a, double& b) const { combine(a, b, true); }

  private:
    /// Every thread gets the same result: all add the numbers up in the same order.
    void combine(double& a, double& b, bool largest) const {
        if (common->size == 1) return;
        double* here = common->numbers.data() + 2 * common->size * (turn ^= 1);
        here[2 * rank_] = a, here[2 * rank_ + 1] = b;
        sync();
        a = here[0], b = here[1];
        for (int t = 1; t < common->size; ++t) {
            const double x = here[2 * t], y = here[2 * t + 1];
            if (largest) {
                if (x > a || x != x) a = x;  // NaN stays
                if (y > b || y != y) b = y;
            } else {
                a += x, b += y;
            }
        }
    }
};

/// Run `work(thread)` on threads that wait for each other in `common`.
template <class Work>
void crew(Common& common, int threads, const Work& work) {
    std::atomic<bool> go{false};
    auto run = [&](int rank) {
        while (!go.load(std::memory_order_acquire)) std::this_thread::yield();
        work(rank);
    };
    std::vector<std::thread> others;
    try {
        for (int t = 1; t < threads; ++t) others.emplace_back(run, t);
    } catch (const std::exception&) {
        // The system starts no more threads: the crew is smaller.
    }
    common.size = (int)others.size() + 1;
    go.store(true, std::memory_order_release);
    run(0);
    for (auto& other : others) other.join();
}

}  // namespace hog

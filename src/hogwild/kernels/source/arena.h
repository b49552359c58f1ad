// Memory of threads on a CPU: it grows, is used again, and is partly kept between calls.
#pragma once
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>
#ifdef HOG_POISON
#include <sanitizer/asan_interface.h>
#endif

#include "vectors.h"

namespace hog {

/// Memory of one thread, in vectors; it grows and is used again.
class Arena {
  public:
    /// Room for so many vectors; what was there before is lost.
    V* room(size_t vectors) {
#ifdef HOG_POISON
        const bool fits = size_ == vectors;  // sanitizers see the end
#else
        const bool fits = size_ >= vectors;
#endif
        if (!fits) {
            size_ = 0;
            room_.reset();
            room_.reset(new double[(vectors + 1) * LANES]);  // not set: pages are touched when needed
            size_ = vectors;
        }
        const size_t address = (size_t)room_.get();
        return (V*)((address + sizeof(V) - 1) / sizeof(V) * sizeof(V));
    }
    size_t size() const { return size_; }

  private:
    std::unique_ptr<double[]> room_;
    size_t size_ = 0;
};

/// The arenas of a call, one a thread. Small ones are kept for later calls, because memory that the
/// system has to hand out anew is expensive: up to MOST of them, of 8 MB at most, for the life of the
/// process (128 MB; in practice one a thread, as large as the largest graph that it has solved).
class Arenas {
  public:
    explicit Arenas(int64_t threads) : used_(std::max<int64_t>(threads, 1)) {
        const std::lock_guard<std::mutex> lock(mutex());
        for (Arena& each : used_) {
            if (kept().empty()) break;
            each = std::move(kept().back());
            kept().pop_back();
        }
    }
    ~Arenas() {
        const std::lock_guard<std::mutex> lock(mutex());
        for (Arena& each : used_)
            if (each.size() && each.size() <= LARGEST && kept().size() < MOST)
                kept().push_back(std::move(each));
    }
    Arena& operator[](int64_t thread) { return used_[thread]; }

  private:
    static constexpr size_t LARGEST = (size_t)1 << 17, MOST = 16;  // LARGEST in vectors: 8 MB
    std::vector<Arena> used_;
    /// Nobody forks while it is locked: a child would wait for a thread that it does not have.
    static std::mutex& mutex() {
        static std::mutex one;
        static const int watched = pthread_atfork([] { mutex().lock(); }, unlock, unlock);
        (void)watched;
        return one;
    }
    static void unlock() { mutex().unlock(); }
    static std::vector<Arena>& kept() {
        static std::vector<Arena>* all = new std::vector<Arena>(reserved());  // outlives all threads
        return *all;
    }
    static std::vector<Arena> reserved() {
        std::vector<Arena> out;
        out.reserve(MOST);  // so that keeping an arena never throws
        return out;
    }
};

/// For the address sanitizer: memory that is read before it is written gives NaN, and nobody may
/// touch the GAP vectors from `end` on, which lie behind a task's scratch memory.
#ifdef HOG_POISON
constexpr size_t GAP = 4;
inline V* poisoned(V* memory, size_t vectors, size_t end) {
    __asan_unpoison_memory_region(memory, vectors * sizeof(V));
    std::memset(memory, 0xff, vectors * sizeof(V));
    __asan_poison_memory_region(memory + end, GAP * sizeof(V));
    return memory;
}
#else
constexpr size_t GAP = 0;
inline V* poisoned(V* memory, size_t, size_t) { return memory; }
#endif

/// Whole vectors for so many numbers.
inline size_t whole(size_t numbers) { return (numbers + LANES - 1) / LANES; }

}  // namespace hog

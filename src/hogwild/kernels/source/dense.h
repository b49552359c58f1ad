// The small dense arithmetic around a solve: entries of many arrays in another order, and affine maps. For
// batches of small graphs each of them takes less time than a call of torch.
#pragma once
#include <cstdint>
#include <numeric>
#include <vector>

#include "arena.h"

namespace hog {

/// Write the entries number index[0], index[1], … of all arrays side by side into the arrays `outs`, one
/// behind the other. Behind the last array lies a zero.
template <class From, class To>
void gather_entries(int64_t count, const void* const* arrays, const int64_t* sizes, const int64_t* index,
                    int64_t into, void* const* outs, const int64_t* lengths) {
    int64_t all = 0;
    for (int64_t a = 0; a < count; ++a) all += sizes[a];
    std::vector<double> flat(all + 1, 0.0);
    double* to = flat.data();
    for (int64_t a = 0; a < count; ++a) to = std::copy_n((const From*)arrays[a], sizes[a], to);
    for (int64_t o = 0; o < into; index += lengths[o++])
        for (int64_t i = 0; i < lengths[o]; ++i) ((To*)outs[o])[i] = (To)flat[index[i]];
}

/// A matrix of features or embeddings anywhere in memory: entry c of row n lies at `at[c * column + n *
/// row]`.
template <class T>
struct Table {
    T* at;
    int64_t column, row;

    /// `width` entries of the rows from n on, eight rows side by side; rows behind `rows` are zero.
    void read(int64_t n, int64_t rows, int width, V* out) const {
        for (int c = 0; c < width; ++c) {
            const T* from = at + c * column + n * row;
            V x = wide(0.0);
            for (int l = 0; l < LANES && n + l < rows; ++l) x[l] = (double)from[l * row];
            out[c] = x;
        }
    }
};

/// Vectors that are zero.
class Zeros {
  public:
    explicit Zeros(size_t vectors) : at_(room_.room(vectors)) { std::fill_n(at_, vectors, wide(0.0)); }
    operator V*() const { return at_; }

  private:
    Arena room_;
    V* at_;
};

/// Packs of eight rows that an affine map reads at a time.
constexpr int PACKS = 4;

/// out [T, rows] = weight [T, p] x + shift [T] (nullptr: zero).
inline void project(int64_t T, int64_t p, int64_t rows, const double* weight, const double* shift,
                    const Table<const double>& x, double* out) {
    const Zeros read(p * PACKS);
    for (int64_t n = 0; n < rows; n += PACKS * LANES) {
        for (int b = 0; b < PACKS; ++b) x.read(n + b * LANES, rows, (int)p, read + b * p);
        for (int64_t t = 0; t < T; ++t) {
            V sum[PACKS];
            for (int b = 0; b < PACKS; ++b) sum[b] = wide(shift ? shift[t] : 0.0);
            for (int64_t c = 0; c < p; ++c)
                for (int b = 0; b < PACKS; ++b) sum[b] += weight[t * p + c] * read[b * p + c];
            std::copy_n((const double*)sum, std::min<int64_t>(rows - n, PACKS * LANES),
                        out + t * rows + n);
        }
    }
}

/// Gradients of weight [T, p] and shift [T] of `project`, from those of its result [T, rows].
inline void project_back(int64_t T, int64_t p, int64_t rows, const double* found,
                         const Table<const double>& x, double* weight, double* shift) {
    const Zeros read(p * PACKS), sums(T * (p + 1));
    for (int64_t n = 0; n < rows; n += PACKS * LANES) {
        const int64_t here = std::min<int64_t>(rows - n, PACKS * LANES);
        for (int b = 0; b < PACKS; ++b) x.read(n + b * LANES, rows, (int)p, read + b * p);
        for (int64_t t = 0; t < T; ++t) {
            V g[PACKS] = {};
            std::copy_n(found + t * rows + n, here, (double*)g);
            V* sum = sums + t * (p + 1);
            for (int64_t c = 0; c < p; ++c) {
                V more = g[0] * read[c];
                for (int b = 1; b < PACKS; ++b) more += g[b] * read[b * p + c];
                sum[c] += more;
            }
            for (int b = 0; b < PACKS; ++b) sum[p] += g[b];
        }
    }
    for (int64_t t = 0; t < T; ++t) {
        for (int64_t c = 0; c < p; ++c) weight[t * p + c] = sum_lanes(sums[t * (p + 1) + c]);
        if (shift) shift[t] = sum_lanes(sums[t * (p + 1) + p]);
    }
}

}  // namespace hog

// Rows of numbers in memory become packs (vectors.h), and packs become rows, on a CPU. Eight rows and
// eight numbers at a time are transposed in registers; what is left over goes number by number.
#pragma once
#include "vectors.h"

#if !HOG_GPU
namespace hog {

/// Eight numbers anywhere in memory.
inline V eight(const double* from) { return Vector<double, 64>::load(from); }
inline void put_eight(const V& x, double* to) { Vector<double, 64>::store(x, to); }

/// y[c * step] gets number c of eight rows: `load(l, c)` gives the eight numbers of row l from c on, and
/// `one(l, c)` a single number.
template <class Load, class One>
HOG_INLINE void packs_of(int columns, V* y, int step, const Load& load, const One& one) {
    int c = 0;
    for (; c + LANES <= columns; c += LANES) {
        V a[LANES];
        for (int l = 0; l < LANES; ++l) a[l] = load(l, c);
        transpose(a);
        for (int i = 0; i < LANES; ++i) y[(c + i) * step] = a[i];
    }
    for (; c < columns; ++c)
        for (int l = 0; l < LANES; ++l) lane(y[c * step], l) = one(l, c);
}
HOG_INLINE void packs_of(const double* const* rows, int columns, V* y, int step) {
    packs_of(
        columns, y, step, [&](int l, int c) { return eight(rows[l] + c); },
        [&](int l, int c) { return rows[l][c]; });
}

/// The reverse: the first `count` rows of numbers x[c * step].
HOG_INLINE void rows_of(const V* x, int columns, int step, double* const* rows, int count) {
    int c = 0;
    for (; c + LANES <= columns; c += LANES) {
        V a[LANES];
        for (int i = 0; i < LANES; ++i) a[i] = x[(c + i) * step];
        transpose(a);
        for (int l = 0; l < LANES; ++l)
            if (l < count) put_eight(a[l], rows[l] + c);
    }
    for (; c < columns; ++c)
        for (int l = 0; l < LANES && l < count; ++l) rows[l][c] = get(x[c * step], l);
}

/// to[0 .. count) += from[0 .. count).
HOG_INLINE void add_to(double* to, const double* from, int count) {
    for (int c = 0; c < count; ++c) to[c] += from[c];
}

}  // namespace hog
#endif

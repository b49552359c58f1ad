// Small systems of linear equations, one a lane.
#pragma once
#include "picnn.h"

namespace hog {

/// Gaussian elimination with row exchanges, lane by lane: B [n, m] becomes the solution of A X = B.
template <int NS>
HOG_FN void eliminate(int nd, V* A, V* B, int m) {
    const int n = NS ? NS : nd;
    HOG_EACH(c, n) {
        V best = absolute(A[c * n + c]), row = wide(c);
        for (int i = c + 1; i < n; ++i) {
            const V there = absolute(A[i * n + c]);
            const Mask more = there > best;
            best = pick(more, there, best);
            row = pick(more, wide(i), row);
        }
        for (int i = c + 1; i < n; ++i) {
            const Mask swap = row == wide(i);
            if (!any(swap)) continue;
            for (int j = c; j < n; ++j) {
                const V a = A[c * n + j], b = A[i * n + j];
                A[c * n + j] = pick(swap, b, a);
                A[i * n + j] = pick(swap, a, b);
            }
            HOG_EACH(j, m) {
                const V a = B[c * m + j], b = B[i * m + j];
                B[c * m + j] = pick(swap, b, a);
                B[i * m + j] = pick(swap, a, b);
            }
        }
        const V inverse = 1.0 / A[c * n + c];
        for (int i = c + 1; i < n; ++i) {
            const V share = A[i * n + c] * inverse;
            for (int j = c + 1; j < n; ++j) A[i * n + j] -= share * A[c * n + j];
            HOG_EACH(j, m) B[i * m + j] -= share * B[c * m + j];
        }
        A[c * n + c] = inverse;
    }
    for (int c = n - 1; c >= 0; --c)
        HOG_EACH(j, m) {
            V x = B[c * m + j];
            for (int i = c + 1; i < n; ++i) x -= A[c * n + i] * B[i * m + j];
            B[c * m + j] = x * A[c * n + c];
        }
}

HOG_FN void eliminate(int n, V* A, V* B, int m) {
    switch (n) {
        case 1: return eliminate<1>(n, A, B, m);
        case 2: return eliminate<2>(n, A, B, m);
        case 3: return eliminate<3>(n, A, B, m);
        case 4: return eliminate<4>(n, A, B, m);
        default: return eliminate<0>(n, A, B, m);
    }
}

}  // namespace hog

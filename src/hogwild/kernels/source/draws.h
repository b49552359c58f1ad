// Random numbers that are a function of their purpose (hogwild/asynchrony/seeding.py).
#pragma once
#include "vectors.h"

namespace hog {

HOG_FN unsigned long long mix(unsigned long long z) {
    z += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

/// A whole number in 0 ... high.
HOG_FN long long draw(long long key, long long time, long long high) {
    const unsigned long long bits = mix((unsigned long long)key ^ (unsigned long long)time) >> 11;
    const double x = (double)(long long)bits * 1.1102230246251565e-16;  // 2^-53
    return (long long)(x * (double)(high + 1));
}

}  // namespace hog

// An order of the nodes in which neighbours are near each other: a large graph in this order finds most of
// what it reads in the caches.
#pragma once
#include <cstdint>
#include <stdexcept>
#include <vector>

namespace hog {

/// The order of a breadth-first search from the far end of every component. Components come in the order of
/// their first nodes, so that the graphs of a batch stay apart. `order` [nodes] gets the nodes.
inline void breadth_first(int64_t nodes, int64_t edges, const int64_t* src, const int64_t* dst,
                          int64_t* order) {
    std::vector<int64_t> ptr(nodes + 2, 0);
    for (int64_t q = 0; q < edges; ++q) {
        if (src[q] < 0 || src[q] >= nodes || dst[q] < 0 || dst[q] >= nodes)
            throw std::invalid_argument("an edge names a node that is not there");
        ++ptr[src[q] + 2], ++ptr[dst[q] + 2];
    }
    for (int64_t i = 2; i < nodes + 2; ++i) ptr[i] += ptr[i - 1];
    std::vector<int32_t> near(2 * edges);
    for (int64_t q = 0; q < edges; ++q) {
        near[ptr[src[q] + 1]++] = (int32_t)dst[q];
        near[ptr[dst[q] + 1]++] = (int32_t)src[q];
    }
    std::vector<uint8_t> seen(nodes, 0);
    int64_t done = 0;
    auto search = [&](int64_t start, uint8_t mark) {
        int64_t end = done;
        order[end++] = start;
        seen[start] = mark;
        for (int64_t at = done; at < end; ++at)
            for (int64_t q = ptr[order[at]]; q < ptr[order[at] + 1]; ++q)
                if (seen[near[q]] != mark) seen[near[q]] = mark, order[end++] = near[q];
        return end;
    };
    for (int64_t i = 0; i < nodes; ++i) {
        if (seen[i]) continue;
        const int64_t end = search(i, 1);
        done = search(order[end - 1], 2);
    }
}

}  // namespace hog

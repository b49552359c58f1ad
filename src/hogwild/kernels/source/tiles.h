// A large graph in tiles: small pieces of nodes, each with a few rings around it, which are solved as a
// batch of graphs.
//
// The energy of node i reads i and the senders of the edges into i. For the nodes F of a tile and of its
// rings, gradient and Hessian need the energies of F and of all receivers of edges out of F, with all
// edges into these nodes. Nodes outside F are held where they are.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

namespace hog {

struct Tiling {
    int64_t nodes, edges, moving;  // nodes 0 .. moving - 1 lie in tiles
    std::vector<int64_t> in_ptr, out_ptr;   // [nodes + 1]
    std::vector<int32_t> in_edge, out_edge, src, dst;  // [edges]
    std::vector<int32_t> owner;             // [moving] the tile of a node
    std::vector<int64_t> first;             // [tiles + 1] where a tile begins in `order`
    std::vector<int32_t> order;             // [moving] nodes by tile

    // The group of tiles that was gathered last.
    std::vector<int32_t> node, tile, edge, from, to;
    std::vector<uint8_t> kind;              // 0: of the tile; 1: of its rings; 2: held
    std::vector<int32_t> place;             // [nodes] scratch, -1

    int64_t tiles() const { return (int64_t)first.size() - 1; }

    Tiling(int64_t n, int64_t e, const int64_t* s, const int64_t* d, int64_t free, int64_t size)
        : nodes(n), edges(e), moving(free), in_ptr(n + 1, 0), out_ptr(n + 1, 0), in_edge(e),
          out_edge(e), src(e), dst(e), owner(free, -1), place(n, -1) {
        for (int64_t q = 0; q < e; ++q) {
            src[q] = (int32_t)s[q], dst[q] = (int32_t)d[q];
            ++in_ptr[d[q] + 1], ++out_ptr[s[q] + 1];
        }
        for (int64_t i = 0; i < n; ++i) in_ptr[i + 1] += in_ptr[i], out_ptr[i + 1] += out_ptr[i];
        std::vector<int64_t> a(in_ptr.begin(), in_ptr.end() - 1), b(out_ptr.begin(), out_ptr.end() - 1);
        for (int64_t q = 0; q < e; ++q) {
            in_edge[a[d[q]]++] = (int32_t)q;
            out_edge[b[s[q]]++] = (int32_t)q;
        }
        grow(std::max<int64_t>(size, 1));
    }

    /// `visit(j)` for all neighbours j of i.
    template <class Visit>
    void around(int64_t i, const Visit& visit) const {
        for (int64_t q = in_ptr[i]; q < in_ptr[i + 1]; ++q) visit(src[in_edge[q]]);
        for (int64_t q = out_ptr[i]; q < out_ptr[i + 1]; ++q) visit(dst[out_edge[q]]);
    }

    /// Every node joins the tile of the nearest of some random nodes, about one of `size`. Components
    /// without such a node fill further tiles.
    void grow(int64_t size) {
        std::vector<int32_t> queue;
        queue.reserve(moving);
        uint64_t random = 0x9E3779B97F4A7C15ULL;
        int32_t count = 0;
        auto join = [&](int64_t i, int32_t t) {
            if (i < moving && owner[i] < 0) owner[i] = t, queue.push_back((int32_t)i);
        };
        for (int64_t t = 0; t < moving / size; ++t) {
            random = random * 6364136223846793005ULL + 1442695040888963407ULL;
            const int64_t i = (int64_t)((random >> 11) % (uint64_t)moving);
            if (owner[i] < 0) join(i, count++);
        }
        int64_t head = 0, next = 0, start = 0;  // `start`: where the last further tile began
        bool further = false;
        for (;;) {
            for (; head < (int64_t)queue.size(); ++head) {
                const int64_t i = queue[head];
                around(i, [&](int32_t j) { join(j, owner[i]); });
            }
            while (next < moving && owner[next] >= 0) ++next;
            if (next == moving) break;
            if (!further || head - start >= size) further = true, start = head, ++count;
            join(next, count - 1);
        }
        first.assign(count + 1, 0);
        for (int32_t t : owner) ++first[t + 1];
        for (int32_t t = 0; t < count; ++t) first[t + 1] += first[t];
        std::vector<int64_t> at(first.begin(), first.end() - 1);
        order.resize(moving);
        for (int64_t i = 0; i < moving; ++i) order[at[owner[i]]++] = (int32_t)i;
    }

    /// Gather tiles `begin` to `end` with so many rings. False where that needs more than `most` nodes.
    bool gather(int64_t begin, int64_t end, int64_t rings, int64_t most) {
        for (auto* each : {&node, &tile, &edge, &from, &to}) each->clear();
        kind.clear();
        bool fits = true;
        for (int64_t t = begin; t < end && fits; ++t) {
            const int64_t base = (int64_t)node.size();
            auto add = [&](int32_t i, uint8_t what) {
                if (place[i] >= 0) return;
                place[i] = (int32_t)node.size();
                node.push_back(i), tile.push_back((int32_t)(t - begin)), kind.push_back(what);
            };
            for (int64_t i = first[t]; i < first[t + 1]; ++i) add(order[i], 0);
            int64_t done = base;
            for (int64_t r = 0; r < rings; ++r) {
                const int64_t last = (int64_t)node.size();
                for (; done < last; ++done)
                    around(node[done], [&](int32_t j) { if (j < moving) add(j, 1); });
            }
            const int64_t solved = (int64_t)node.size();
            for (int64_t i = base; i < solved; ++i)
                for (int64_t q = out_ptr[node[i]]; q < out_ptr[node[i] + 1]; ++q)
                    add(dst[out_edge[q]], 2);
            const int64_t centres = (int64_t)node.size();
            for (int64_t i = base; i < centres; ++i)
                for (int64_t q = in_ptr[node[i]]; q < in_ptr[node[i] + 1]; ++q) {
                    add(src[in_edge[q]], 2);
                    edge.push_back(in_edge[q]);
                    from.push_back(place[src[in_edge[q]]]), to.push_back((int32_t)i);
                }
            fits = (int64_t)node.size() <= most;
            for (int64_t i = base; i < (int64_t)node.size(); ++i) place[node[i]] = -1;
        }
        return fits;
    }
};

}  // namespace hog

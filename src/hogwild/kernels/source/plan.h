// In which order the nodes of a graph are eliminated, and where every number of its Hessian goes.
//
// The Hessian of a one-hop energy couples all nodes of a star (a node and the senders of the edges
// into it). Nested dissection splits a graph by small separators into a tree of fronts. A front is
// a dense matrix over its pivots (nodes eliminated here) and its boundary (later nodes coupled to
// them). Every star is added to the front of the node that is eliminated first: all other nodes of
// the star are in this front, too. A plan depends on the connectivity alone.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

#include "arena.h"
#include "terms.h"

namespace hog {

typedef std::vector<int32_t> Ints;

/// One graph: edges sorted by receiver, and its fronts, children before parents.
struct GraphPlan {
    int32_t n = 0, e = 0;
    Ints ptr, src;            // edges into node i: ptr[i] .. ptr[i + 1]; their senders
    Ints dst;                 // the receiver of every edge
    Ints out_ptr, out_edge;   // edges out of node j
    int32_t fronts = 0;
    Ints pivot_ptr, pivot;    // pivots of every front
    Ints bound_ptr, bound;    // boundary of every front, in the order of elimination
    Ints into;                // position of every boundary node in the parent's front
    Ints parent;              // -1 at a root
    Ints star_ptr, star;      // stars that are added to every front
    Ints own, slot;           // position of a star's node, and of its senders, in that front
    double ones = 0;          // sum over fronts of width^2, width^2 pivots: memory and work for k = 1
    double work = 0;
    int32_t widest = 0, degree = 0;  // of a front, in nodes; most edges into a node

    int width(int f) const {
        return pivot_ptr[f + 1] - pivot_ptr[f] + bound_ptr[f + 1] - bound_ptr[f];
    }
    size_t bytes() const {
        size_t total = sizeof(GraphPlan) + 64;  // and what the table adds
        for (const Ints* each : {&ptr, &src, &dst, &out_ptr, &out_edge, &pivot_ptr, &pivot, &bound_ptr,
                                 &bound, &into, &parent, &star_ptr, &star, &own, &slot})
            total += sizeof(int32_t) * each->capacity();
        return total;
    }
};

/// Splits a graph into fronts; `adjacent` holds the coupled nodes of every node.
class Dissection {
  public:
    Dissection(int n, const Ints& ptr, const Ints& adjacent, int leaf)
        : ptr_(ptr), adjacent_(adjacent), leaf_(leaf), piece_(n, 0), depth_(n, 0) {
        Ints all(n);
        std::iota(all.begin(), all.end(), 0);
        split(std::move(all));
    }
    std::vector<Ints> fronts;  // pieces come before the separators between them

  private:
    const Ints &ptr_, &adjacent_;
    const int leaf_;
    Ints piece_, depth_;  // number of the piece that a node belongs to now; its depth in a search
    int pieces_ = 0;

    /// Breadth-first search from `start` among the nodes of its piece; writes depths.
    void search(int start, Ints& order) {
        const int here = piece_[start], seen = ++pieces_;
        order.assign(1, start);
        piece_[start] = seen;
        depth_[start] = 0;
        for (size_t at = 0; at < order.size(); ++at) {
            const int v = order[at];
            for (int32_t q = ptr_[v]; q < ptr_[v + 1]; ++q) {
                const int u = adjacent_[q];
                if (piece_[u] != here) continue;
                piece_[u] = seen;
                depth_[u] = depth_[v] + 1;
                order.push_back(u);
            }
        }
    }

    void split(Ints nodes) {
        // An explicit stack instead of recursion: chains would nest deeply only in log n, but
        // caterpillars of hubs could nest further.
        struct Task { Ints nodes; bool ready; };
        std::vector<Task> stack;
        stack.push_back({std::move(nodes), false});
        while (!stack.empty()) {
            Task task = std::move(stack.back());
            stack.pop_back();
            if (task.ready) {
                fronts.push_back(std::move(task.nodes));
                continue;
            }
            const int mark = ++pieces_;
            for (int v : task.nodes) piece_[v] = mark;
            Ints order;
            std::vector<Task> found;
            for (int v : task.nodes) {
                if (piece_[v] != mark) continue;
                search(v, order);
                if ((int)order.size() <= leaf_) {
                    found.push_back({order, true});
                    continue;
                }
                search(order.back(), order);
                Ints cut = separator(order);
                if (cut.size() + 1 >= order.size()) {
                    found.push_back({order, true});
                    continue;
                }
                Ints rest;
                const int away = ++pieces_;
                for (int u : cut) piece_[u] = away;
                for (int u : order)
                    if (piece_[u] != away) rest.push_back(u);
                for (int u : order) piece_[u] = away;  // never the mark of the nodes around
                found.push_back({std::move(cut), true});
                found.push_back({std::move(rest), false});
            }
            // The stack is last in, first out: what comes last is eliminated first.
            for (auto& each : found) stack.push_back(std::move(each));
        }
    }

    /// The smallest level of the search in the middle half; only nodes that touch the next level.
    Ints separator(const Ints& order) {
        const int n = (int)order.size(), deepest = depth_[order.back()];
        Ints count(deepest + 2, 0);
        for (int v : order) ++count[depth_[v]];
        int best = -1, passed = 0;
        for (int level = 0; level <= deepest; ++level) {
            const int before = passed;
            passed += count[level];
            if (before < n / 4 || n - passed < n / 4) continue;
            if (best < 0 || count[level] < count[best]) best = level;
        }
        if (best < 0) {
            passed = 0;
            for (best = 0; best < deepest; ++best) {
                passed += count[best];
                if (passed >= n / 2) break;
            }
        }
        Ints out;
        for (int v : order) {
            if (depth_[v] != best) continue;
            bool touches = best == deepest;
            for (int32_t q = ptr_[v]; !touches && q < ptr_[v + 1]; ++q) {
                const int u = adjacent_[q];
                touches = piece_[u] == piece_[v] && depth_[u] == best + 1;
            }
            if (touches) out.push_back(v);
        }
        return out;
    }
};

/// The nodes that share a star with each node; with one hop, those that an edge joins to it.
inline void couplings(const GraphPlan& g, int hops, Ints& ptr, Ints& adjacent) {
    ptr.assign(g.n + 1, 0);
    adjacent.clear();
    Ints seen(g.n, -1);
    auto visit = [&](int v, int u) {
        if (seen[u] == v) return;
        seen[u] = v;
        adjacent.push_back(u);
    };
    for (int v = 0; v < g.n; ++v) {
        seen[v] = v;
        for (int q = g.ptr[v]; q < g.ptr[v + 1]; ++q) visit(v, g.src[q]);
        for (int o = g.out_ptr[v]; o < g.out_ptr[v + 1]; ++o) {
            const int i = g.dst[g.out_edge[o]];
            visit(v, i);
            if (hops == 1) continue;
            for (int q = g.ptr[i]; q < g.ptr[i + 1]; ++q) visit(v, g.src[q]);
        }
        ptr[v + 1] = (int32_t)adjacent.size();
    }
}

/// Nodes of a star, which is a dense block: a larger one is never worth a factorisation.
constexpr int MOST_STAR = 1500;

/// Pairs of nodes that share a star, counted with repetitions: what `couplings` visits.
inline double coupling_work(const GraphPlan& g, int hops) {
    double total = 0;
    for (int v = 0; v < g.n; ++v) {
        const double degree = 1.0 + g.ptr[v + 1] - g.ptr[v];
        if (hops == 2 && degree > MOST_STAR) return 1e300;
        total += degree * degree;
    }
    return total;
}

constexpr double MOST_ONES = 1u << 31;  // numbers in a graph's fronts: 16 GiB for k = 1

/// The tree of fronts of a graph whose edges are filled in; false where its fronts are too large.
/// With two hops the matrix couples stars; with one hop it couples the ends of edges.
inline bool eliminate(GraphPlan& g, int leaf, int hops) {
    Ints near_ptr, near;
    couplings(g, hops, near_ptr, near);
    Dissection cut(g.n, near_ptr, near, leaf);
    const int fronts = g.fronts = (int)cut.fronts.size();
    Ints rank(g.n), of(g.n), order;
    g.pivot_ptr.assign(1, 0);
    for (int f = 0; f < fronts; ++f) {
        std::sort(cut.fronts[f].begin(), cut.fronts[f].end());
        for (int v : cut.fronts[f]) {
            rank[v] = (int)order.size();
            of[v] = f;
            order.push_back(v);
        }
        g.pivot_ptr.push_back((int32_t)order.size());
    }
    g.pivot = order;
    g.parent.assign(fronts, -1);
    g.bound_ptr.assign(1, 0);
    std::vector<Ints> inherited(fronts);
    Ints seen(g.n, -1), later;
    for (int f = 0; f < fronts; ++f) {
        const int end = g.pivot_ptr[f + 1];
        later.clear();
        auto visit = [&](int r) {
            if (r < end || seen[r] == f) return;
            seen[r] = f;
            later.push_back(r);
        };
        for (int p = g.pivot_ptr[f]; p < end; ++p)
            for (int q = near_ptr[order[p]]; q < near_ptr[order[p] + 1]; ++q) visit(rank[near[q]]);
        for (int r : inherited[f]) visit(r);
        Ints().swap(inherited[f]);
        std::sort(later.begin(), later.end());
        for (int r : later) g.bound.push_back(order[r]);
        g.bound_ptr.push_back((int32_t)g.bound.size());
        if (!later.empty()) {
            const int above = of[order[later[0]]];
            g.parent[f] = above;
            auto& more = inherited[above];
            more.insert(more.end(), later.begin(), later.end());
        }
        const double width = g.width(f), pivots = end - g.pivot_ptr[f];
        g.ones += width * width;
        if (g.ones > MOST_ONES) return false;
        g.work += pivots * width * width;
        g.widest = std::max(g.widest, (int32_t)width);
    }
    // A star goes to the front of its node that is eliminated first. With one hop the nodes by
    // themselves (0 .. n - 1) and the edges (n .. n + e - 1) take the place of stars.
    const int items = hops == 1 ? g.n + g.e : g.n;
    Ints first(items);
    for (int i = 0; i < g.n; ++i) {
        first[i] = of[i];
        for (int q = g.ptr[i]; q < g.ptr[i + 1]; ++q) {
            const int sender = of[g.src[q]];
            if (hops == 1) first[g.n + q] = std::min(of[i], sender);
            else first[i] = std::min(first[i], sender);
        }
    }
    g.star_ptr.assign(fronts + 1, 0);
    for (int i = 0; i < items; ++i) ++g.star_ptr[first[i] + 1];
    for (int f = 0; f < fronts; ++f) g.star_ptr[f + 1] += g.star_ptr[f];
    g.star.resize(items);
    Ints next(g.star_ptr.begin(), g.star_ptr.end() - 1);
    for (int i = 0; i < items; ++i) g.star[next[first[i]]++] = i;
    g.own.resize(items);
    g.slot.resize(g.e);
    g.into.resize(g.bound.size());
    std::vector<Ints> children(fronts);
    for (int f = 0; f < fronts; ++f)
        if (g.parent[f] >= 0) children[g.parent[f]].push_back(f);
    Ints place(g.n);
    for (int f = 0; f < fronts; ++f) {
        int at = 0;
        for (int p = g.pivot_ptr[f]; p < g.pivot_ptr[f + 1]; ++p) place[g.pivot[p]] = at++;
        for (int b = g.bound_ptr[f]; b < g.bound_ptr[f + 1]; ++b) place[g.bound[b]] = at++;
        for (int s = g.star_ptr[f]; s < g.star_ptr[f + 1]; ++s) {
            const int i = g.star[s];
            if (i >= g.n) {  // an edge
                g.own[i] = place[g.dst[i - g.n]];
                g.slot[i - g.n] = place[g.src[i - g.n]];
                continue;
            }
            g.own[i] = place[i];
            for (int q = g.ptr[i]; hops == 2 && q < g.ptr[i + 1]; ++q) g.slot[q] = place[g.src[q]];
        }
        for (int c : children[f])
            for (int b = g.bound_ptr[c]; b < g.bound_ptr[c + 1]; ++b)
                g.into[b] = place[g.bound[b]];
    }
    return true;
}

/// Plans of graphs that were seen before, by their edges; mini-batches repeat graphs.
class PlanTable {
  public:
    static PlanTable& get() {
        static PlanTable table;
        return table;
    }
    std::shared_ptr<const GraphPlan> find(const std::string& key) {
        // Never wait: another thread may have held the lock when this process was forked.
        const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
        if (!lock) return nullptr;
        auto found = plans_.find(key);
        return found == plans_.end() ? nullptr : found->second;
    }
    void put(const std::string& key, std::shared_ptr<const GraphPlan> plan) {
        if (plan->n > LARGEST) return;
        const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
        if (!lock) return;
        const size_t size = key.size() + plan->bytes();
        if (bytes_ + size > MOST_BYTES) {
            plans_.clear();
            bytes_ = 0;
        }
        if (plans_.emplace(key, std::move(plan)).second) bytes_ += size;
    }

  private:
    static constexpr size_t MOST_BYTES = 256 << 20;
    static constexpr int LARGEST = 4096;  // nodes; a larger graph is kept by its owner alone
    std::mutex mutex_;
    size_t bytes_ = 0;
    std::unordered_map<std::string, std::shared_ptr<const GraphPlan>> plans_;
};

/// A batch of graphs: where their nodes and edges lie, and the plan of each.
struct Plan {
    int64_t nodes = 0, edges = 0, graphs = 0;
    std::vector<int64_t> first, edge_first;  // [G + 1]
    std::vector<int64_t> edge;               // [E] the caller's number of every sorted edge
    std::vector<std::shared_ptr<const GraphPlan>> of;
    mutable std::mutex busy;                 // of the arena
    mutable Arena arena;                     // the memory of solves in chunks
};

/// The plan of a batch; throws where the arrays are wrong.
inline Plan* make_plan(int64_t nodes, int64_t graphs, const int64_t* batch, int64_t edges,
                       const int64_t* src, const int64_t* dst, int leaf, int hops, double most_work) {
    if (nodes < 0 || graphs < 0 || edges < 0 || nodes >= INT32_MAX || graphs >= INT32_MAX ||
        edges >= INT32_MAX || (nodes && !batch) || (edges && (!src || !dst)))
        throw std::invalid_argument("the numbers of nodes, graphs and edges must be from 0 to 2^31 - 2");
    if (hops != 1 && hops != 2) throw std::invalid_argument("hops must be 1 or 2");
    auto plan = std::make_unique<Plan>();
    plan->nodes = nodes, plan->edges = edges, plan->graphs = graphs;
    plan->first.assign(graphs + 1, 0);
    for (int64_t i = 0; i < nodes; ++i) {
        if (batch[i] < 0 || batch[i] >= graphs || (i && batch[i] < batch[i - 1]))
            throw std::invalid_argument("batch is not sorted, or names a graph that is not there");
        ++plan->first[batch[i] + 1];
    }
    for (int64_t g = 0; g < graphs; ++g) plan->first[g + 1] += plan->first[g];
    std::vector<int64_t> start(nodes + 1, 0);
    for (int64_t q = 0; q < edges; ++q) {
        if (src[q] < 0 || src[q] >= nodes || dst[q] < 0 || dst[q] >= nodes ||
            batch[src[q]] != batch[dst[q]])
            throw std::invalid_argument("an edge names a node that is not there, or joins two graphs");
        ++start[dst[q] + 1];
    }
    for (int64_t i = 0; i < nodes; ++i) start[i + 1] += start[i];
    plan->edge.resize(edges);
    {
        std::vector<int64_t> next(start.begin(), start.end() - 1);
        for (int64_t q = 0; q < edges; ++q) plan->edge[next[dst[q]]++] = q;
    }
    plan->edge_first.resize(graphs + 1);
    plan->of.resize(graphs);
    std::string key;
    for (int64_t g = 0; g < graphs; ++g) {
        const int64_t n0 = plan->first[g], n1 = plan->first[g + 1], e0 = start[n0], e1 = start[n1];
        plan->edge_first[g] = e0, plan->edge_first[g + 1] = e1;
        auto one = std::make_shared<GraphPlan>();
        const int n = one->n = (int32_t)(n1 - n0), e = one->e = (int32_t)(e1 - e0);
        one->ptr.resize(n + 1);
        one->src.resize(e);
        for (int i = 0; i <= n; ++i) one->ptr[i] = (int32_t)(start[n0 + i] - e0);
        for (int q = 0; q < e; ++q) one->src[q] = (int32_t)(src[plan->edge[e0 + q]] - n0);
        key.assign((const char*)&leaf, sizeof leaf);
        key.append((const char*)&hops, sizeof hops);
        key.append((const char*)one->ptr.data(), sizeof(int32_t) * one->ptr.size());
        key.append((const char*)one->src.data(), sizeof(int32_t) * one->src.size());
        if (auto known = PlanTable::get().find(key)) {
            plan->of[g] = known;
            continue;
        }
        one->dst.resize(e);
        one->out_ptr.assign(n + 1, 0);
        one->out_edge.resize(e);
        for (int i = 0; i < n; ++i)
            for (int q = one->ptr[i]; q < one->ptr[i + 1]; ++q) {
                one->dst[q] = i;
                ++one->out_ptr[one->src[q] + 1];
            }
        for (int i = 0; i < n; ++i) one->out_ptr[i + 1] += one->out_ptr[i];
        Ints next(one->out_ptr.begin(), one->out_ptr.end() - 1);
        for (int q = 0; q < e; ++q) one->out_edge[next[one->src[q]]++] = q;
        for (int i = 0; i < n; ++i)
            one->degree = std::max(one->degree, one->ptr[i + 1] - one->ptr[i]);
        if (coupling_work(*one, hops) > most_work || !eliminate(*one, leaf, hops)) {
            one->work = one->ones = 1e300;  // hubs, or no separators: never factorised
            one->fronts = 0;
        }
        PlanTable::get().put(key, one);
        plan->of[g] = one;
    }
    return plan.release();
}

/// A plan for k unknowns a node as one array of numbers, as DevicePlan in fronts_gpu.h reads it.
/// Returns its length; writes nothing where `out` is null.
inline int64_t flatten(const GraphPlan& g, int k, int32_t wide, int32_t* out) {
    const int fronts = g.fronts;
    Ints child_ptr(fronts + 1, 0), height(fronts, 0), place(fronts), right(g.n);
    int64_t numbers = 0;
    int levels = 0;
    for (int f = 0; f < fronts; ++f) {
        const int above = g.parent[f], width = g.width(f) * k;
        if (above >= 0) {
            ++child_ptr[above + 1];
            height[above] = std::max(height[above], height[f] + 1);
        }
        levels = std::max(levels, height[f] + 1);
        place[f] = (int32_t)numbers;
        for (int p = g.pivot_ptr[f]; p < g.pivot_ptr[f + 1]; ++p)
            right[g.pivot[p]] =
                (int32_t)(numbers + (int64_t)width * (width | 1) + (p - g.pivot_ptr[f]) * k);
        numbers += (int64_t)(width + 1) * (width | 1);
    }
    for (int f = 0; f < fronts; ++f) child_ptr[f + 1] += child_ptr[f];
    Ints child(child_ptr[fronts]), next(child_ptr.begin(), child_ptr.end() - 1);
    for (int f = 0; f < fronts; ++f)
        if (g.parent[f] >= 0) child[next[g.parent[f]]++] = f;
    Ints order(fronts), level_ptr(levels + 1, 0), level_wide(levels);
    std::iota(order.begin(), order.end(), 0);
    auto is_wide = [&](int f) { return g.width(f) * k >= wide; };
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        if (height[a] != height[b]) return height[a] < height[b];
        if (is_wide(a) != is_wide(b)) return is_wide(b);
        return g.width(a) > g.width(b);
    });
    for (int f = 0; f < fronts; ++f) ++level_ptr[height[f] + 1];
    for (int l = 0; l < levels; ++l) level_ptr[l + 1] += level_ptr[l];
    for (int l = 0; l < levels; ++l) {
        level_wide[l] = level_ptr[l];
        while (level_wide[l] < level_ptr[l + 1] && !is_wide(order[level_wide[l]])) ++level_wide[l];
    }
    // The blocks of all fronts that stars add to, each with the terms that it is the sum of.
    struct Term { int64_t block; int32_t kind, u, v; };
    std::vector<Term> terms;
    for (int f = 0; f < fronts; ++f)
        for (int s = g.star_ptr[f]; s < g.star_ptr[f + 1]; ++s) {
            const int i = g.star[s];
            auto add = [&](int kind, int a, int b, int u, int v) {
                if (a < b) kind |= TRANSPOSED;
                if (a == b && (kind == COUPLING || kind == SENDERS)) kind |= WITH_TRANSPOSE;
                const int64_t high = std::max(a, b), low = std::min(a, b);
                terms.push_back({((int64_t)f << 40) + (high << 20) + low, kind, u, v});
            };
            add(OWN, g.own[i], g.own[i], i, i);
            for (int q = g.ptr[i]; q < g.ptr[i + 1]; ++q) {
                add(COUPLING, g.own[i], g.slot[q], q, q);
                add(SENDER, g.slot[q], g.slot[q], q, q);
                for (int o = g.ptr[i]; o < q; ++o) add(SENDERS, g.slot[q], g.slot[o], q, o);
            }
        }
    std::stable_sort(terms.begin(), terms.end(),
                     [](const Term& a, const Term& b) { return a.block < b.block; });
    Ints block_place, block_stride, block_ptr, kind, left, other;
    for (size_t t = 0; t < terms.size(); ++t) {
        if (!t || terms[t].block != terms[t - 1].block) {
            const int f = (int)(terms[t].block >> 40), a = (int)(terms[t].block >> 20) & 0xfffff,
                      b = (int)terms[t].block & 0xfffff, stride = (g.width(f) * k) | 1;
            block_place.push_back(place[f] + a * k * stride + b * k);
            block_stride.push_back(a == b ? -stride : stride);
            block_ptr.push_back((int32_t)t);
        }
        kind.push_back(terms[t].kind);
        left.push_back(terms[t].u);
        other.push_back(terms[t].v);
    }
    block_ptr.push_back((int32_t)terms.size());
    const Ints head{g.n, g.e, fronts, levels, (int32_t)g.bound.size(), (int32_t)child.size(),
                    (int32_t)std::min<int64_t>(numbers, INT32_MAX), (int32_t)block_place.size(),
                    (int32_t)terms.size()};
    const Ints* parts[] = {&head, &g.ptr, &g.src, &g.dst, &g.out_ptr, &g.out_edge, &g.own, &g.slot,
                           &g.pivot_ptr, &g.pivot, &g.bound_ptr, &g.bound, &g.into, &child_ptr,
                           &child, &place, &right, &level_ptr, &level_wide, &order, &block_place,
                           &block_stride, &block_ptr, &kind, &left, &other};
    int64_t length = 0;
    for (const Ints* part : parts) {
        if (out) std::copy(part->begin(), part->end(), out + length);
        length += (int64_t)part->size();
    }
    return length;
}

}  // namespace hog

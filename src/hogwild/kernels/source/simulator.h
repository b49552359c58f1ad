// A tick of the simulator as one call: whose turn it is, what they hear, their updates, what they send.
//
// hogwild/asynchrony/schedule.py and history.py have the meaning of the arrays. Nothing here depends
// on the number of threads: a node's update depends on no other node of the same tick.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "draws.h"
#include "fixed.h"
#include "messages.h"

namespace hog {

constexpr int64_t CHUNK = 64;   // nodes of a task
constexpr int AGES = 64;        // ages that a task counts by itself

/// When nodes update, and how old their views are.
struct Clock {
    int64_t nodes, edges, stagger, delay;
    const int64_t *begin, *order;          // edges by receiver
    const int64_t *node_keys, *edge_keys;  // of the random streams
    int64_t *next, *view;                  // of every node and edge; they change
};

/// Packets of the last ticks, and what a simulation counts.
struct Post {
    int64_t nodes, edges, versions, depth, numbers;  // numbers: in a packet
    const int64_t *src, *reverse, *out_degree;
    double *node, *edge;              // [versions * N, R * k], [versions * E, R * letter]
    int64_t *content, *latest, *current;
    double* h;                        // [R, k, N]
    int64_t *updates, *packets, *sent, *last, *gap;
    int64_t *packet_ages, *content_ages, *oldest_ages;  // counts; the largest age of both kinds
    int64_t *where, *letters, *to_node, *to_letters;    // room for one tick
};

/// The next tick of a schedule without impairments; returns the number of nodes.
inline int64_t draw_tick(const Clock& c, int64_t time, int64_t* nodes, int64_t* first,
                         int64_t* edges, int64_t* slots, int64_t* views) {
    int64_t count = 0, e = 0;
    for (int64_t i = 0; i < c.nodes; ++i)
        if (c.next[i] == time) nodes[count++] = i;
    for (int64_t a = 0; a < count; ++a) {
        const int64_t i = nodes[a];
        first[a] = e;
        for (int64_t q = c.begin[i]; q < c.begin[i + 1]; ++q, ++e) {
            const int64_t number = c.order[q], limit = time - c.view[number];
            const int64_t age = draw(c.edge_keys[number], time, std::min(limit, c.delay));
            edges[e] = number, slots[e] = a;
            views[e] = c.view[number] = time - age;
        }
        c.next[i] = time + 1 + draw(c.node_keys[i], time, c.stagger - 1);
    }
    first[count] = e;
    return count;
}

inline void raise(int64_t* at, int64_t x) {
    int64_t old = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (old < x &&
           !__atomic_compare_exchange_n(at, &old, x, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

/// Where the packets of some nodes of a tick lie, those heard and those sent; counts them.
inline void find_packets(const Post& p, int64_t time, const Turn& turn, const int64_t* edges,
                         const int64_t* views, int64_t from, int64_t to) {
    const int64_t width = turn.inbox.item, mail = turn.mail.item;
    const int64_t n = p.nodes, m = p.depth + 1, shift = time % m - time, size = p.versions * n;
    int64_t ages[2][AGES] = {}, most[2] = {0, 0}, gap = 0;
    const double share = 1.0 / (double)n;
    auto version = [&](int64_t x) { return (int64_t)(((double)x + 0.5) * share); };  // x / n
    auto count = [&](int kind, int64_t age) {
        most[kind] = std::max(most[kind], age);
        if (age < AGES) ++ages[kind][age];
        else __atomic_fetch_add((kind ? p.content_ages : p.packet_ages) + age, 1, __ATOMIC_RELAXED);
    };
    for (int64_t a = from; a < to; ++a) {
        const int64_t i = turn.nodes[a];
        int64_t oldest = time, mine = p.latest[i] + n;
        if (mine >= size) mine -= size;
        __builtin_prefetch(p.node + mine * width, 1);
        const int64_t base = version(mine) * p.edges;
        for (int64_t e = turn.first[a]; e < turn.first[a + 1]; ++e) {
            const int64_t number = edges[e], tau = views[e];
            int64_t row = tau + shift;
            if (row < 0) row += m;
            const int64_t there = p.current[row * n + p.src[number]];
            p.where[e] = there;
            p.letters[e] = version(there) * p.edges + p.reverse[number];
            p.to_letters[e] = base + number;
            __builtin_prefetch(p.node + there * width);
            __builtin_prefetch(p.edge + p.letters[e] * mail);
            __builtin_prefetch(p.edge + p.to_letters[e] * mail, 1);
            count(0, time - tau);
            count(1, time - std::min(tau, p.content[there]));
            oldest = std::min(oldest, tau);
        }
        p.to_node[a] = mine;
        p.content[mine] = oldest;
        p.latest[i] = mine;
        p.updates[i] += 1;
        p.packets[i] += p.out_degree[i];
        p.sent[i] += p.out_degree[i] * p.numbers;
        gap = std::max(gap, time - p.last[i]);
        p.last[i] = time;
    }
    raise(p.gap, gap);
    for (int kind = 0; kind < 2; ++kind) {
        if (turn.first[to] > turn.first[from]) raise(p.oldest_ages + kind, most[kind]);
        for (int age = 0; age < AGES; ++age)
            if (ages[kind][age])
                __atomic_fetch_add((kind ? p.content_ages : p.packet_ages) + age, ages[kind][age],
                                   __ATOMIC_RELAXED);
    }
}

/// The slots `from` ... `to` of a turn, nodes with many edges first.
inline int by_degree(const Turn& turn, int64_t from, int64_t to, int32_t* slots) {
    constexpr int FEW = 64;  // degrees from here on are sorted by comparing them
    const int count = (int)(to - from);
    auto degree = [&](int32_t a) { return turn.first[a + 1] - turn.first[a]; };
    int32_t begin[FEW + 1] = {};
    for (int32_t a = (int32_t)from; a < to; ++a) ++begin[FEW - 1 - std::min<int64_t>(degree(a), FEW - 1)];
    int many = begin[0], sum = 0;
    for (int d = 0; d < FEW; ++d) {
        const int here = begin[d];
        begin[d] = sum, sum += here;
    }
    for (int32_t a = (int32_t)from; a < to; ++a)
        slots[begin[FEW - 1 - std::min<int64_t>(degree(a), FEW - 1)]++] = a;
    std::stable_sort(slots, slots + many, [&](int32_t a, int32_t b) { return degree(a) > degree(b); });
    return count;
}

/// Update the nodes `from` ... `to` of a turn in one replica.
template <class S>
void update_nodes(const Rule& rule, const Turn& turn, int64_t from, int64_t to,
                         int64_t replica, Arena& arena) {
    int32_t slots[CHUNK];
    const int count = by_degree(turn, from, to, slots);
    auto degree = [&](int32_t a) { return turn.first[a + 1] - turn.first[a]; };
    auto run = [&](auto& pack) {
        for (int at = 0; at < count; at += LANES) {
            if (at == 0 || degree(slots[at]) * 2 < pack.most)
                pack.lay_out(arena, (int)degree(slots[at]));
            const int next = at + LANES;
            if (next < count) pack.expect(slots + next, std::min(LANES, count - next), replica);
            pack.seat(slots + at, std::min(LANES, count - at), replica);
            pack.update();
        }
    };
    if (rule.messages) {
        Messengers<S> pack(rule, turn);
        run(pack);
    } else {
        Steps<S> pack(rule, turn);
        run(pack);
    }
}

/// The same with a model of constant sizes.
template <class Pack>
void update_fixed(const Rule& rule, const Turn& turn, int64_t from, int64_t to, int64_t replica,
                  Arena& arena) {
    int32_t slots[CHUNK];
    const int count = by_degree(turn, from, to, slots);
    Pack pack(rule, turn, replica);
    pack.lay_out(arena, (int)(turn.first[slots[0] + 1] - turn.first[slots[0]]));
    for (int at = 0; at < count; at += LANES) {
        const int next = at + LANES;
        if (next < count) pack.expect(slots + next, std::min(LANES, count - next));
        pack.update(slots + at, std::min(LANES, count - at));
    }
}

}  // namespace hog

extern "C" {

/// Ask for large pages in fresh memory, where the system has them: fewer addresses to look up.
HOG_API void hog_large_pages(void* at, int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    const uintptr_t page = 1 << 21, from = ((uintptr_t)at + page - 1) / page * page,
                    to = ((uintptr_t)at + bytes) / page * page;
    if (to > from) madvise((void*)from, to - from, MADV_HUGEPAGE);
#endif
}

HOG_API int64_t hog_draw(const void* clock, int64_t time, int64_t* nodes, int64_t* first,
                         int64_t* edges, int64_t* slots, int64_t* views) {
    return draw_tick(*(const Clock*)clock, time, nodes, first, edges, slots, views);
}

/// Update the nodes of a turn. With `post`, the nodes read and write packets there.
HOG_API int hog_turn(const void* rule_, void* turn_, const void* post_, int64_t time,
                     const int64_t* edges, const int64_t* views, int64_t threads, char* why,
                     int64_t why_size) {
    try {
        const Rule& rule = *(const Rule*)rule_;
        const Post* post = (const Post*)post_;
        Turn turn = *(const Turn*)turn_;
        const int64_t replicas = rule.filled.replicas, size = turn.size;
        const int64_t chunks = (size + CHUNK - 1) / CHUNK, k = rule.filled.sizes->k();
        if (post) {
            const int64_t n = post->nodes, letter = post->numbers - k;
            turn.h = turn.out = Field{post->h, turn.nodes, 1, k * n, n};
            turn.inbox = Field{post->node, post->where, replicas * k, k, 1};
            turn.also = Field{post->node, post->to_node, replicas * k, k, 1};
            turn.mail = Field{post->edge, post->letters, replicas * letter, letter, 1};
            turn.letters = Field{post->edge, post->to_letters, replicas * letter, letter, 1};
        }
        // A thread is worth starting for some hundred gradient steps, or some ten messages.
        const int64_t worth = rule.messages ? 32 : 256;
        threads = std::max<int64_t>(1, std::min(threads, size * replicas / worth));
        std::vector<Arena> own(threads);
        typedef FixedModel<2, 2, 4> Usual;
        typedef FixedSteps<2, 2, 4> Quick;
        const bool usual = Usual::is(*rule.filled.sizes), unrolled = Quick::serves(rule, turn);
        const bool together = post && replicas == 1;
        if (post && !together) find_packets(*post, time, turn, edges, views, 0, size);
        each_task(chunks * replicas, threads, [&](int64_t t, int64_t thread) {
            const int64_t from = t / replicas * CHUNK, to = std::min(size, from + CHUNK);
            if (together) find_packets(*post, time, turn, edges, views, from, to);
            if (unrolled) update_fixed<Quick>(rule, turn, from, to, t % replicas, own[thread]);
            else if (usual) update_nodes<Usual>(rule, turn, from, to, t % replicas, own[thread]);
            else update_nodes<AnyModel>(rule, turn, from, to, t % replicas, own[thread]);
        });
        return 0;
    } catch (const std::exception& error) {
        explain(why, why_size, error.what());
        return 1;
    }
}

}  // extern "C"

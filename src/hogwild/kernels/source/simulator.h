// A tick of the simulator as one call: whose turn it is, what they hear, their updates, what they send.
//
// hogwild/asynchrony/schedule.py and hogwild/engines/ticks.py have the meaning of the arrays. Nothing here depends
// on the number of threads: a node's update depends on no other node of the same tick.
#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>

#include "draws.h"
#include "beside.h"
#include "messages.h"

namespace hog {

constexpr int64_t CHUNK = 256;  // nodes of a task
constexpr int AGES = 64;        // ages that a task counts by itself
constexpr int64_t BLIND = 16;   // edges of a node that are listed without looking whether they exist

/// When nodes update, and how old their views are. Edges are in the order by receiver.
struct Clock {
    int64_t nodes, edges, stagger, delay;
    const int64_t* begin;                  // [N + 1] where the edges into a node begin
    const int64_t *node_keys, *edge_keys;  // of the random streams
    int64_t *next, *view;                  // of every node and edge; they change
};

/// Packets of the last ticks, and what a simulation counts.
struct Post {
    int64_t nodes, edges, versions, depth, numbers;  // numbers: in a packet
    const int64_t *src, *reverse;     // of the edges by receiver
    const int64_t* out_degree;
    double *node, *edge;              // [versions * N, R * k], [versions * E, R * letter]
    int64_t *content, *latest, *current;
    double* h;                        // [R, k, N]
    int64_t *updates, *packets, *sent, *last, *gap;
    int64_t *packet_ages, *content_ages, *oldest_ages;  // counts; the largest age of both kinds
};

/// The next tick of a schedule without impairments; returns the number of nodes.
inline int64_t draw_tick(const Clock& c, int64_t time, int64_t* nodes, int64_t* first,
                         int64_t* views) {
    int64_t count = 0, e = 0;
    for (int64_t i = 0; i < c.nodes; ++i) {  // without a jump: turns come at random
        nodes[count] = i;
        count += c.next[i] == time;
    }
    std::vector<int64_t> places, keys;
    for (int64_t from = 0; from < count; from += CHUNK) {
        const int64_t to = std::min(count, from + CHUNK), begun = e;
        for (int64_t a = from; a < to; ++a) {
            const int64_t i = nodes[a];
            first[a] = e;
            e += c.begin[i + 1] - c.begin[i];
            c.next[i] = time + 1 + draw(c.node_keys[i], time, c.stagger - 1);
        }
        first[to] = e;
        const int64_t many = e - begun;
        places.resize(std::max<size_t>(places.size(), many + BLIND));
        keys.resize(std::max<size_t>(keys.size(), many));
        // The edges into the nodes, by their places. A loop over each node's edges would end at random,
        // too: edges are listed BLIND at a time, and the next node overwrites those that are too many.
        for (int64_t a = from; a < to; ++a) {
            const int64_t q = c.begin[nodes[a]], degree = first[a + 1] - first[a];
            int64_t *at = places.data() + (first[a] - begun), p = 0;
            do
                for (const int64_t last = p + BLIND; p < last; ++p) at[p] = q + p;
            while (p < degree);
        }
        int64_t* drawn = views + begun;
        for (int64_t x = 0; x < many; ++x) {
            drawn[x] = c.view[places[x]];
            keys[x] = c.edge_keys[places[x]];
        }
        for (int64_t x = 0; x < many; ++x)
            drawn[x] = time - draw(keys[x], time, std::min(time - drawn[x], c.delay));
        for (int64_t x = 0; x < many; ++x) c.view[places[x]] = drawn[x];
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

/// Where the packets of some nodes lie: those heard and the letters in them, those sent.
struct Places {
    std::vector<int64_t> heard, letters, to_letters, to_node;
    void make_room(int64_t edges, int64_t nodes) {
        if ((int64_t)heard.size() < edges) heard.resize(edges), letters.resize(edges), to_letters.resize(edges);
        if ((int64_t)to_node.size() < nodes) to_node.resize(nodes);
    }
};

/// How often each age occurred, and the largest one.
class Counter {
  public:
    explicit Counter(int64_t* ages) : ages_(ages) {}
    void add(int64_t age) {
        if (age < AGES) ++few_[age];
        else __atomic_fetch_add(ages_ + age, 1, __ATOMIC_RELAXED);
        most_ = std::max(most_, age);
    }
    void finish(int64_t* most) const {
        raise(most, most_);
        for (int age = 0; age < AGES; ++age)
            if (few_[age]) __atomic_fetch_add(ages_ + age, few_[age], __ATOMIC_RELAXED);
    }

  private:
    int64_t *ages_, few_[AGES] = {}, most_ = 0;
};

/// Find the packets of the nodes `from` ... `to` of a turn, and count them.
inline void find_packets(const Post& p, const Filled& f, int64_t time, const Turn& turn,
                         const int64_t* views, int64_t from, int64_t to, Places& found) {
    const int64_t begun = turn.first[from];
    const int64_t n = p.nodes, m = p.depth + 1, shift = time % m - time, size = p.versions * n;
    found.make_room(turn.first[to] - begun, to - from);
    int64_t *heard = found.heard.data(), *letters = found.letters.data(),
            *to_letters = found.to_letters.data(), *to_node = found.to_node.data();
    const double share = 1.0 / (double)n;
    auto version = [&](int64_t x) { return (int64_t)(((double)x + 0.5) * share); };  // x / n
    // Three rounds over the edges: memory answers the requests of one while others are made.
    for (int64_t a = from, e = 0; a < to; ++a) {
        const int64_t i = turn.nodes[a], many = turn.first[a + 1] - turn.first[a];
        for (int64_t q = f.begin[i]; q < f.begin[i] + many; ++q, ++e) {
            int64_t row = views[begun + e] + shift;
            row += row < 0 ? m : 0;
            heard[e] = row * n + p.src[q];
            __builtin_prefetch(p.current + heard[e]);
        }
    }
    int64_t gap = 0;
    for (int64_t a = from, e = 0; a < to; ++a) {
        const int64_t i = turn.nodes[a], many = turn.first[a + 1] - turn.first[a];
        int64_t mine = p.latest[i] + n;
        if (mine >= size) mine -= size;
        to_node[a - from] = p.latest[i] = mine;
        const int64_t base = version(mine) * p.edges;
        for (int64_t q = f.begin[i]; q < f.begin[i] + many; ++q, ++e) {
            const int64_t there = heard[e] = p.current[heard[e]];
            letters[e] = version(there) * p.edges + p.reverse[q];
            to_letters[e] = base + f.order[q];
            __builtin_prefetch(p.content + there);
        }
        p.updates[i] += 1;
        p.packets[i] += p.out_degree[i];
        p.sent[i] += p.out_degree[i] * p.numbers;
        gap = std::max(gap, time - p.last[i]);
        p.last[i] = time;
    }
    raise(p.gap, gap);
    if (turn.first[to] == begun) {
        for (int64_t a = from; a < to; ++a) p.content[to_node[a - from]] = time;
        return;
    }
    Counter packets(p.packet_ages), contents(p.content_ages);
    for (int64_t a = from, e = 0; a < to; ++a) {
        const int64_t many = turn.first[a + 1] - turn.first[a];
        int64_t oldest = time;
        for (int64_t last = e + many; e < last; ++e) {
            const int64_t tau = views[begun + e];
            packets.add(time - tau);
            contents.add(time - std::min(tau, p.content[heard[e]]));
            oldest = std::min(oldest, tau);
        }
        p.content[to_node[a - from]] = oldest;
    }
    packets.finish(p.oldest_ages), contents.finish(p.oldest_ages + 1);
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
        pack.expect(slots + next, std::max(0, std::min(LANES, count - next)));
        pack.update(slots + at, std::min(LANES, count - at));
    }
}

/// Update the nodes of a turn. With `post`, the nodes read and write packets there, those that `views`
/// tells the times of.
inline void take_turn(const Rule& rule, const Turn& given, const Post* post, int64_t time,
                      const int64_t* views, int64_t threads) {
    const int64_t replicas = rule.filled.replicas, size = given.size;
    const int64_t k = rule.filled.sizes->k();
    // A thread is worth starting for some hundred gradient steps, or some ten messages.
    const int64_t worth = rule.messages ? 32 : 256;
    threads = std::max<int64_t>(1, std::min(threads, size * replicas / worth));
    // Some tasks a thread, of whole packs: no thread waits long for another.
    const int64_t tasks = threads > 1 ? 4 * threads : 1, packs = (size / tasks + LANES) / LANES;
    const int64_t chunk = std::min(CHUNK, packs * LANES), chunks = (size + chunk - 1) / chunk;
    std::vector<Arena> own(threads);
    std::vector<Places> places(threads);
    typedef FixedModel<2, 2, 4> Usual;
    typedef FixedSteps<2, 2, 4> Quick;
    const bool usual = Usual::is(*rule.filled.sizes);
    each_task(chunks, threads, [&](int64_t t, int64_t thread) {
        const int64_t from = t * chunk, to = std::min(size, from + chunk);
        Turn turn = given;
        if (post) {  // rows of the chunk's own items, counted from its first ones
            const int64_t n = post->nodes, letter = post->numbers - k, begun = given.first[from];
            Places& at = places[thread];
            turn.h = turn.out = Field{post->h, turn.nodes, 1, k * n, n};
            turn.inbox = Field{post->node, nullptr, replicas * k, k, 1};
            turn.mail = Field{post->edge, nullptr, replicas * letter, letter, 1};
            turn.also = turn.inbox, turn.letters = turn.mail;
            find_packets(*post, rule.filled, time, turn, views, from, to, at);
            turn.inbox.rows = at.heard.data(), turn.mail.rows = at.letters.data();
            turn.letters.rows = at.to_letters.data(), turn.also.rows = at.to_node.data();
            turn.inbox.begin = turn.mail.begin = turn.letters.begin = begun;
            turn.also.begin = from;
        }
        typedef FixedReplicas<2, 2, 4> Beside;
        if (Beside::serves(rule, turn)) {
            int64_t most = 0;
            for (int64_t a = from; a < to; ++a)
                most = std::max(most, turn.first[a + 1] - turn.first[a]);
            for (int64_t block = 0; block * LANES < replicas; ++block) {
                Beside pack(rule, turn, block);
                pack.lay_out(own[thread], most);
                for (int64_t a = from; a < to; ++a) {
                    pack.expect(std::min(a + 1, to - 1));
                    pack.update(a);
                }
            }
            return;
        }
        const bool quick = Quick::serves(rule, turn);
        for (int64_t r = 0; r < replicas; ++r) {
            if (quick) update_fixed<Quick>(rule, turn, from, to, r, own[thread]);
            else if (usual) update_nodes<Usual>(rule, turn, from, to, r, own[thread]);
            else update_nodes<AnyModel>(rule, turn, from, to, r, own[thread]);
        }
    });
}

}  // namespace hog

extern "C" {

HOG_API int64_t hog_draw(const void* clock, int64_t time, int64_t* nodes, int64_t* first,
                         int64_t* views) {
    return draw_tick(*(const Clock*)clock, time, nodes, first, views);
}

/// Update the nodes of a turn (`take_turn`).
HOG_API int hog_turn(const void* rule, const void* turn, const void* post, int64_t time,
                     const int64_t* views, int64_t threads, char* why, int64_t why_size) {
    return guarded(why, why_size, [&] {
        take_turn(*(const Rule*)rule, *(const Turn*)turn, (const Post*)post, time, views, threads);
    });
}

/// A whole tick of a schedule without impairments: what hog_draw and hog_turn do, with the packets of this
/// time opened before. Python waits for one call instead of making some ten tensors. Returns the number
/// of nodes whose turn it was, or -1.
HOG_API int64_t hog_tick(const void* clock, const void* rule, const void* post_, int64_t time,
                         int64_t* nodes, int64_t* first, int64_t* views, int64_t threads, char* why,
                         int64_t why_size) {
    int64_t count = 0;
    const int failed = guarded(why, why_size, [&] {
        const Post& post = *(const Post*)post_;
        std::copy(post.latest, post.latest + post.nodes, post.current + time % (post.depth + 1) * post.nodes);
        count = draw_tick(*(const Clock*)clock, time, nodes, first, views);
        Turn turn{};
        turn.size = count, turn.nodes = nodes, turn.first = first;
        if (count) take_turn(*(const Rule*)rule, turn, &post, time, views, threads);
    });
    return failed ? -1 : count;
}

}  // extern "C"

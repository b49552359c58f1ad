// The turns of nodes in a tick on a GPU: whose turn it is, which packets they hold, what is counted.
// ticks.cu has the updates.
#pragma once
#include "draws.h"
#include "elimination.h"
#include "layers_gpu.h"

namespace hog {

enum What { DRAW = 1, FIND = 2, UPDATE = 4 };
enum Step { CONSTANT = 0, GIVEN = 1, BLOCKS = 2 };

// Threads of a block: those with an edge, then those with a node, in warps of their own.
#define HOG_ALL (HOG_THREADS + (HOG_NODES + 31) / 32 * 32)
#define HOG_CHUNKS (HOG_RANGE / 32)  // chunks of 32 nodes of a block: a warp lists a chunk at a time
#define HOG_AGES 64     // ages that a block counts by itself
#define HOG_COUNTERS 4  // of each age: lanes of a warp that add to the same number wait for each other
#define HOG_M (HOG_CHANNELS * (HOG_CONCAT ? HOG_HEADS : 1))
#define HOG_D (HOG_ENDS * HOG_K)
#define HOG_UN (HOG_M + HOG_K)
#define HOG_KK (HOG_STEP == 2 ? HOG_K * HOG_K : 0)
#define HOG_MK (HOG_STEP == 2 ? HOG_M * HOG_K : 0)
#define HOG_MM (HOG_STEP == 2 ? HOG_M * HOG_M : 0)
#define HOG_LETTER (HOG_K + HOG_KK)
// What a node remembers: its gradient; its block, damping and last gradient. HOG_MEMORY is the sum.
#define HOG_MEMORY (HOG_K + (HOG_STEP == 2 ? HOG_KK + 1 + HOG_K : 0))
#define HOG_SUMS (HOG_K + HOG_KK + HOG_MK)  // what an edge adds to sums of its receiver
#define HOG_GATHER (HOG_SUMS > HOG_M ? HOG_SUMS : HOG_M)
#define HOG_TELL (HOG_K + HOG_M + HOG_MM)
#define HOG_WIDE (16 / (int)sizeof(Real))   // numbers that one access moves
#define HOG_STRIDE(row) ((row) + HOG_WIDE)  // of features in shared memory: threads that read the same numbers
                                            // of different rows use different banks
#define HOG_BESIDE (HOG_GATHER <= HOG_WIDE)  // whether what an edge gathers has room behind its features

/// What is known of an edge: one access reads all of it.
struct alignas(16) Record {
    unsigned held;     // the packet that its receiver holds: time, version
    int src, reverse;  // its sender; its reverse edge in the graph
    int number;        // its number in the graph; of a self-loop, all bits are turned

    HOG_METHOD bool is_loop() const { return number < 0; }
};

/// A simulation in the memory of the GPU. Edges are numbered by receiver.
struct Ticks {
    long long nodes, edges, replicas, range;            // range: nodes of a block
    long long rows, versions, numbers, stagger, delay;  // rows: of `ring`
    const int* begin;                                   // the first edges of the nodes
    const long long *node_keys, *edge_keys, *out_degree;
    Record* records;                                    // of the edges
    long long *next, *turn;                             // turn: a node's last tick, if it was given
    Real *node, *edge, *h;                            // packets as in Outbox; h: [R, k, N]
    unsigned* ring;                                     // [rows, N] the packet of each node at a tick: pack()
    long long *content, *latest;
    long long *updates, *packets, *sent, *last, *gap, *packet_ages, *content_ages, *oldest_ages;
    const Real *weights, *of_edges, *of_nodes, *rates;
    Real* memory;                                     // [N, R, HOG_MEMORY]
    double rate, damping;
};

// The simulation that this module was loaded for, and the weights of its only replica: instructions read
// them at no cost. With several replicas, the weights are copied to shared memory.
extern "C" {
__constant__ Ticks hog_ticks;
__constant__ Real hog_weights[HOG_FEW ? HOG_WEIGHTS : 1];
}

/// Copy some things to shared memory without waiting for them.
template <int COUNT, class T>
HOG_FN void copy_later(T* to, const T* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const unsigned at = (unsigned)__cvta_generic_to_shared(to);
    // Nobody reads `to` before wait_for_copies; the compiler need not read constants again.
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(COUNT * sizeof(T)));
#else
    HOG_EACH(x, COUNT) to[x] = from[x];
#endif
}
HOG_FN void wait_for_copies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
/// Lanes of a warp that copy a row together, HOG_WIDE numbers each.
HOG_FN constexpr int copiers(int row) { return row <= 8 * HOG_WIDE ? 8 : row <= 16 * HOG_WIDE ? 16 : 32; }

/// An address that the compiler computes once, and not again from its parts wherever it is used.
template <class T>
HOG_FN T* settled(T* at) {
#if defined(__CUDA_ARCH__)
    asm("" : "+l"(at));
#endif
    return at;
}

// A time modulo 2^24 and the version of a packet: in the ring, the time of the packet's oldest content; of
// an edge, the time at which its sender held the packet.
HOG_FN unsigned pack(long long time, int version) {
    return ((unsigned)time & 0xffffffu) << 8 | (unsigned)version;
}
HOG_FN int version_of(unsigned packed) { return (int)(packed & 255u); }
HOG_FN int age_of(unsigned packed, long long time) {
    return (int)(((unsigned)time - (packed >> 8)) & 0xffffffu);
}

/// Whether it is a node's turn.
HOG_FN bool has_turn(long long node, long long time, int what) {
    return (what & DRAW ? hog_ticks.next[node] : hog_ticks.turn[node]) == time;
}

HOG_FN void add_count(long long* at, long long x) {
    atomicAdd((unsigned long long*)at, (unsigned long long)x);
}

/// The sum over the lanes of a warp up to this one.
HOG_FN int up_to_lane(int x) {
    const int lane_ = threadIdx.x % 32;
    for (int o = 1; o < 32; o *= 2) {
        const int other = __shfl_up_sync(~0u, x, o);
        if (lane_ >= o) x += other;
    }
    return x;
}

/// An edge of a batch, which its thread knows.
struct Edge {
    bool on;        // whether the thread has an edge
    bool loop;
    int owner;      // its receiver in the batch
    long long q;    // its number, by receiver
    int number;     // its number in the graph
    Real view[HOG_K];
};

/// Whose turn it is, and what the nodes hear.
class Turns {
  public:
    HOG_METHOD Turns(long long time_, int what_, int row, double* shared)
        : time(time_), what(what_), me(threadIdx.x), spot(threadIdx.x - HOG_THREADS) {
#if !HOG_FEW
        replica = blockIdx.y;
#endif
        start = blockIdx.x * hog_ticks.range;
        row_now = row, row_next = row + 1 < (int)hog_ticks.rows ? row + 1 : 0;
        records = (Record*)shared;
        letters = (long long*)(records + HOG_THREADS);
        of_edges = (Real*)(letters + HOG_NODES);
        of_nodes = of_edges + HOG_THREADS * HOG_STRIDE(HOG_ROW);
        gather = of_nodes + HOG_NODES * HOG_STRIDE(HOG_NODE_ROW);
        tell = gather + (HOG_BESIDE ? 0 : HOG_THREADS * HOG_GATHER);
        int* whole = (int*)(tell + HOG_NODES * HOG_TELL);
        begins = whole, whole += HOG_RANGE;
        first = whole, whole += HOG_RANGE + 1;
        counts = whole, whole += 2 * HOG_AGES * HOG_COUNTERS;
        most = whole, whole += 3;
        packets = (unsigned*)whole, whole += HOG_THREADS;
        found = whole, whole += HOG_CHUNKS;
        reached = whole, whole += HOG_CHUNKS;
        who = (unsigned short*)whole;
        ages = (unsigned char*)(who + HOG_RANGE);
    }

  protected:
    long long time, start;
#if HOG_FEW
    static constexpr int replica = 0, replicas = 1;
#else
    int replica;
    const long long replicas = hog_ticks.replicas;
#endif
    int what, me, spot;     // spot: the place of a thread with a node in the batch
    int row_now, row_next;  // rows of this tick and of the next one in the ring
    Real *of_edges, *of_nodes, *gather, *tell;  // of_edges, of_nodes: features of the batch
    Record* records;                            // of the batch's edges, then of the next one's
    long long* letters;                         // where those of a node's new packet begin
    unsigned* packets;                          // in the ring, of these edges
    int *begins, *first;                        // begins: the first edges of the nodes in the list
    int *counts, *most;                         // of ages; the largest ages of packets and content, and gap
    int *found, *reached;                       // the nodes in the list, and their edges, of each chunk
    unsigned short* who;                        // these nodes, in the block's range
    unsigned char* ages;                        // of packets
    int listed, seated, nodes, edges;           // seated: the batch's first node in the list
#if HOG_HUBS
    bool several;  // whether the batch takes several rounds
#else
    static constexpr bool several = false;
#endif
    long long i, mine;  // of threads with a node: the node; where its packet goes
    Edge edge;

    HOG_METHOD bool has_node() const { return spot >= 0 && spot < nodes; }
    HOG_METHOD unsigned& ring(int row, long long node) const { return hog_ticks.ring[row * hog_ticks.nodes + node]; }
    /// What the thread of edge e tells its node.
    HOG_METHOD Real& gathered(int f, int e) const {
        return HOG_BESIDE ? of_edges[e * HOG_STRIDE(HOG_ROW) + HOG_ROW + f] : gather[f * HOG_THREADS + e];
    }
    HOG_METHOD int first_edge(int a) const { return first[seated + a] - first[seated]; }
    /// The edges of this thread's node that are computed in a round: their first thread and the one behind them.
    HOG_METHOD int from_thread(int round) const {
        const int from = first_edge(spot) - round;
        return from > 0 ? from : 0;
    }
    HOG_METHOD int until_thread(int round) const {
        const int until = first_edge(spot + 1) - round;
        return until < HOG_THREADS ? until : HOG_THREADS;
    }

    // -- whose turn it is --------------------------------------------------------------------------

    /// List the nodes whose turn it is, and where their edges begin. A warp takes 32 nodes at a time.
    HOG_METHOD void list() {
        constexpr int warps = HOG_ALL / 32, share = (HOG_CHUNKS + warps - 1) / warps;
        const int lane_ = me % 32, warp = me / 32;
        bool turn[share];
        int begin[share], upto[share];  // upto: edges of the warp's listed nodes up to this one
        unsigned packet[share], turns[share];
        HOG_EACH(x, share) {  // all reads at once, also of what is not used then
            const int at = 32 * (x * warps + warp) + lane_;
            const long long node = start + at;
            turn[x] = false, begin[x] = upto[x] = 0, packet[x] = 0;
            if (at >= (int)hog_ticks.range || node >= hog_ticks.nodes) continue;
            turn[x] = has_turn(node, time, what);
            begin[x] = hog_ticks.begin[node], upto[x] = hog_ticks.begin[node + 1] - begin[x];
            if (what & FIND) packet[x] = ring(row_now, node);
        }
        HOG_EACH(x, share) {
            const int chunk = x * warps + warp, at = 32 * chunk + lane_;
            const long long node = start + at;
            const bool there = at < (int)hog_ticks.range && node < hog_ticks.nodes;
            if ((what & FIND) && there && !turn[x]) ring(row_next, node) = packet[x];
            turns[x] = __ballot_sync(~0u, turn[x]);
            upto[x] = up_to_lane(turn[x] ? upto[x] : 0);
            if (lane_ == 31 && chunk < HOG_CHUNKS) found[chunk] = __popc(turns[x]), reached[chunk] = upto[x];
        }
        __syncthreads();
        listed = 0;
        HOG_EACH(v, HOG_CHUNKS) listed += found[v];
        HOG_EACH(x, share) {
            const int chunk = x * warps + warp;
            int a = __popc(turns[x] & ((1u << lane_) - 1)), before = 0;
            HOG_EACH(v, HOG_CHUNKS) if (v < chunk) a += found[v], before += reached[v];
            if (!turn[x]) continue;
            who[a] = (unsigned short)(32 * chunk + lane_);
            begins[a] = begin[x], first[a + 1] = before + upto[x];
        }
        if (me == 0) first[0] = 0;
        __syncthreads();
    }

    /// The next batch. Every warp counts its nodes by itself: nobody waits.
    HOG_METHOD void seat(int a) {
        seated = a, nodes = 0;
        HOG_UNROLL for (int b = 0; b < HOG_NODES; b += 32) {
            const int c = b + me % 32;
            const bool fits = c < HOG_NODES && a + c < listed && first[a + c + 1] - first[a] <= HOG_THREADS;
            nodes += __popc(__ballot_sync(~0u, fits));
        }
#if HOG_HUBS
        several = nodes == 0;
        if (several) nodes = 1;
#endif
        edges = first_edge(nodes);
        if (has_node()) i = start + who[a + spot];
    }

    /// The place of the node that has edge e of all edges in the list, among the places from `a` to `end`.
    HOG_METHOD int place_of(int e, int a, int end) const {
        HOG_UNROLL for (int o = HOG_NODES / 2; o > 0; o /= 2)
            if (a + o < end && first[a + o] <= e) a += o;
        return a;
    }

    // -- which packets they hold -------------------------------------------------------------------

    /// Read the record of this thread's edge in the batch that begins at place `a` of the list, and ask for
    /// the packet: when the batch begins, both are there. Edges that do not fit in it are read in vain.
    HOG_METHOD void look_ahead(int a) const {
        if (me >= HOG_THREADS) return;
        const int left = listed - a, end = a + (left < HOG_NODES ? left : HOG_NODES), e = first[a] + me;
        if (e >= first[end]) return;
        const int b = place_of(e, a, end);
        ask(begins[b] + e - first[b]);
    }

    /// Read the record of edge q, and ask for the packet that its receiver holds from now on.
    HOG_METHOD void ask(long long q) const {
        Record known = hog_ticks.records[q];
        if (what & FIND) {
            int age = age_of(known.held, time);
            if (what & DRAW)
                age = (int)draw(hog_ticks.edge_keys[q], time, age < hog_ticks.delay ? age : hog_ticks.delay);
            const int then = row_now >= age ? row_now - age : row_now - age + (int)hog_ticks.rows;
            copy_later<1>(packets + me, &ring(then, known.src));
            known.held = pack(time - age, 0);
        }
        records[me] = known;
    }

    /// The record of this thread's edge, whose receiver holds the packet that was asked for.
    HOG_METHOD Record hold() const {
        Record known = records[me];
        if (what & FIND) {
            known.held |= (unsigned)version_of(packets[me]);
            hog_ticks.records[edge.q].held = known.held;
        }
        return known;
    }

    /// Count the packet of this thread's edge and its content.
    HOG_METHOD void count() const {
        const int age = age_of(records[me].held, time), inside = age_of(packets[me], time);
        count_age(0, age);
        count_age(1, inside > age ? inside : age);
    }

    /// Count a packet (0), or its content (1), of this age.
    HOG_METHOD void count_age(int kind, int age) const {
        if (age > most[kind]) atomicMax(most + kind, age);
        if (age < HOG_AGES) atomicAdd(counts + (kind * HOG_AGES + age) * HOG_COUNTERS + me % HOG_COUNTERS, 1);
        else add_count((kind ? hog_ticks.content_ages : hog_ticks.packet_ages) + age, 1);
    }

    // -- what they hear ----------------------------------------------------------------------------

    /// Take this thread's edge of a round, if there is one.
    HOG_METHOD void take(int round) {
        edge.on = me < HOG_THREADS && round + me < edges;
        if (!edge.on) return;
        const int e = first[seated] + round + me, a = place_of(e, seated, seated + nodes);
        edge.owner = a - seated;
        edge.q = begins[a] + e - first[a];
    }

    /// This lane's part of the copy of a row, from its number `f0` on.
    template <int ROW>
    HOG_METHOD void copy_row(Real* to, const Real* from, int f0) const {
        constexpr int at_once = HOG_WIDE * copiers(ROW);
        HOG_UNROLL for (int f = 0; f < ROW; f += at_once)
            if (f + at_once <= ROW || f + f0 < ROW) copy_later<HOG_WIDE>(to + f, from + f);
    }

    /// Fetch the features of the edges of a round: every warp fetches those of its own edges.
    HOG_METHOD void fetch_edges(int round) const {
        constexpr int lanes = copiers(HOG_ROW), together = 32 / lanes;
        const int begin = me - me % 32, left = edges - round - begin;
        const int count = me >= HOG_THREADS ? 0 : left < 32 ? left : 32, mine_ = edge.on ? (int)edge.q : 0;
        const int row = me % 32 / lanes, f0 = HOG_WIDE * (me % lanes);
        const Real* from = settled(hog_ticks.of_edges + replica * hog_ticks.edges * HOG_ROW + f0);
        Real* to = settled(of_edges + (begin + row) * HOG_STRIDE(HOG_ROW) + f0);
        HOG_UNROLL for (int e = 0; e < 32; e += together) {  // no loop: what is added to `to` is a constant
            const Real* at = from + (long long)__shfl_sync(~0u, mine_, e + row) * HOG_ROW;
            if (e + row < count) copy_row<HOG_ROW>(to + e * HOG_STRIDE(HOG_ROW), at, f0);
        }
    }

    /// Fetch the features of the batch's nodes: the warps take turns.
    HOG_METHOD void fetch_nodes() const {
        constexpr int lanes = copiers(HOG_NODE_ROW);
        const int f0 = HOG_WIDE * (me % lanes);
        const Real* from = hog_ticks.of_nodes + (replica * hog_ticks.nodes + start) * HOG_NODE_ROW + f0;
        for (int a = me / lanes; a < nodes; a += HOG_ALL / lanes)
            copy_row<HOG_NODE_ROW>(of_nodes + a * HOG_STRIDE(HOG_NODE_ROW) + f0,
                                   from + (long long)who[seated + a] * HOG_NODE_ROW, f0);
    }

    /// Read the packet of this thread's edge, and the letter in it if it is read for the first time.
    HOG_METHOD void listen(const Record known, Real* fresh) {
        edge.loop = known.is_loop();
        edge.number = edge.loop ? ~known.number : known.number;
        const long long version = version_of(known.held), there = version * hog_ticks.nodes + known.src;
        if (fresh) ages[me] = (unsigned char)age_of(known.held, time);
        if (!(what & UPDATE)) return;
        const Real* packet = hog_ticks.node + (there * replicas + replica) * HOG_K;
        if (fresh) {
            const long long place = version * hog_ticks.edges + known.reverse;
            const Real* letter = hog_ticks.edge + (place * replicas + replica) * HOG_LETTER;
            HOG_EACH(f, HOG_LETTER) fresh[f] = letter[f];
        }
        HOG_EACH(c, HOG_K) edge.view[c] = packet[c];
    }

    /// The sums over the edges of this thread's node in a round, of what the edges' threads gathered.
    template <int FIELDS>
    HOG_METHOD void add_gathered(int round, Real* to) const {
        const int end = until_thread(round);
        for (int e = from_thread(round); e < end; ++e)
            HOG_EACH(f, FIELDS) to[f] += gathered(f, e);
    }

    Real heard[HOG_LETTER], at[HOG_K], own[HOG_K];  // of this thread's node: its h and its gradient

    HOG_METHOD Real* remembered() const { return hog_ticks.memory + (i * replicas + replica) * HOG_MEMORY; }

    /// Read the packets; file that the nodes send.
    HOG_METHOD void hear() {
        Filed filed;
        Real letter[HOG_LETTER];
        int oldest = 0, round = 0;  // oldest: age
        HOG_EACH(f, HOG_LETTER) heard[f] = 0;
        if (has_node()) read_own(filed);
        take(0);
        wait_for_copies();
        if (edge.on) listen(hold(), letter);
        if (what & UPDATE) {
            fetch_nodes();
            if (!several) fetch_edges(0);
        }
        for (;;) {
            if (edge.on && (what & FIND)) count();  // while packets are on their way
            __syncthreads();
            if (has_node() && (what & FIND)) oldest = older(oldest, round);
            const bool done = !several || round + HOG_THREADS >= edges;
            if (done && has_node()) file(filed, oldest);  // while the letters are on their way
            if (what & UPDATE) {
                if (edge.on) HOG_EACH(f, HOG_LETTER) gathered(f, me) = letter[f];
                __syncthreads();
                if (has_node()) add_gathered<HOG_LETTER>(round, heard);
            }
            if (done) return;
            __syncthreads();
            round += HOG_THREADS;
            take(round);
            if (edge.on) ask(edge.q);
            wait_for_copies();
            if (edge.on) listen(hold(), letter);
        }
    }

    /// The largest age of the packets of this thread's node in a round and of those before it.
    HOG_METHOD int older(int oldest, int round) const {
        const int end = until_thread(round);
        for (int e = from_thread(round); e < end; ++e) oldest = ages[e] > oldest ? ages[e] : oldest;
        return oldest;
    }

    /// What is read of a node to file that it sends: its packet, last tick, edges to others and key.
    struct Filed {
        unsigned packet;
        long long last, out, key;
    };

    /// Read early what is used of this thread's node behind the next barrier.
    HOG_METHOD void read_own(Filed& filed) {
        filed.packet = ring(what & FIND ? row_now : row_next, i);
        if (what & FIND) filed.last = hog_ticks.last[i], filed.out = hog_ticks.out_degree[i];
        if ((what & FIND) && (what & DRAW)) filed.key = hog_ticks.node_keys[i];
        if (!(what & UPDATE)) return;
        HOG_EACH(c, HOG_K) at[c] = hog_ticks.h[(replica * HOG_K + c) * hog_ticks.nodes + i];
        HOG_EACH(c, HOG_K) own[c] = remembered()[c];
    }

    /// File that this thread's node sends a packet whose oldest content has this age.
    HOG_METHOD void file(const Filed& filed, int oldest) {
        int version = version_of(filed.packet);
        if (what & FIND) version = version + 1 < (int)hog_ticks.versions ? version + 1 : 0;
        mine = version * hog_ticks.nodes + i;
        letters[spot] = version * hog_ticks.edges;
        if (!(what & FIND)) return;
        ring(row_next, i) = pack(time - oldest, version);
        hog_ticks.latest[i] = mine;
        hog_ticks.content[mine] = time - oldest;
        add_count(hog_ticks.updates + i, 1);  // without waiting for the old values
        add_count(hog_ticks.packets + i, filed.out);
        add_count(hog_ticks.sent + i, filed.out * hog_ticks.numbers);
        hog_ticks.last[i] = time;
        atomicMax(most + 2, (int)(time - filed.last));
        if (!(what & DRAW)) return;
        hog_ticks.next[i] = time + 1 + draw(filed.key, time, hog_ticks.stagger - 1);
        if (!(what & UPDATE)) hog_ticks.turn[i] = time;  // a second launch updates the node
    }

    /// Nothing is counted so far.
    HOG_METHOD void count_nothing() const {
        for (int x = me; x < 2 * HOG_AGES * HOG_COUNTERS; x += HOG_ALL) counts[x] = 0;
        if (me < 3) most[me] = 0;
    }

    /// Tell the simulation what this block counted.
    HOG_METHOD void report() const {
        __syncthreads();
        for (int x = me; x < 2 * HOG_AGES; x += HOG_ALL) {
            int sum = 0;
            HOG_EACH(c, HOG_COUNTERS) sum += counts[x * HOG_COUNTERS + c];
            if (sum) add_count((x < HOG_AGES ? hog_ticks.packet_ages : hog_ticks.content_ages) + x % HOG_AGES, sum);
        }
        if (me >= 3) return;
        long long* to = me < 2 ? hog_ticks.oldest_ages + me : hog_ticks.gap;
        if (*to < most[me]) atomicMax(to, (long long)most[me]);
    }
};

}  // namespace hog

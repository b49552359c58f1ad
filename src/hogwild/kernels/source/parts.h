// How the threads of a CPU share one large graph (chunks.h).
//
// The graph is cut into chunks and parts, whose number depends on the graph alone. Sums are sums over chunks,
// in order: the number of threads does not change a single bit.
#pragma once
#include "crew.h"
#include "listening.h"
#include "plan.h"

namespace hog {

/// A graph in chunks of consecutive nodes, and parts of consecutive chunks, which threads share.
struct Parts {
    static constexpr int CHUNK = 768;   // nodes and edges of a chunk, unless one node has more
    static constexpr int MOST = 256;    // parts
    const GraphPlan& graph;
    Ints first;                // [chunks + 1] nodes
    Ints low, high;            // [chunks] the first and last receiver of the edges out of a chunk
    Ints part{0};              // [parts + 1] chunks
    int nodes = 0, edges = 0;  // of the largest chunk

    explicit Parts(const GraphPlan& g) : graph(g) {
        for (int from = 0, to; from < g.n; from = to) {
            to = from + 1;
            while (to < g.n && to + 1 - from + g.ptr[to + 1] - g.ptr[from] <= CHUNK) ++to;
            int least = g.n, most = -1;
            for (int o = g.out_ptr[from]; o < g.out_ptr[to]; ++o) {
                const int i = g.dst[g.out_edge[o]];
                least = std::min(least, i), most = std::max(most, i);
            }
            first.push_back(from), low.push_back(least), high.push_back(most);
            nodes = std::max(nodes, to - from), edges = std::max(edges, g.ptr[to] - g.ptr[from]);
        }
        const int64_t count = (int64_t)first.size(), all = (int64_t)g.n + g.e;
        first.push_back(g.n);
        const int64_t wanted = std::clamp<int64_t>(count / 8, 1, MOST);
        for (int64_t c = 1; c < count; ++c)
            if ((first[c] + (int64_t)g.ptr[first[c]]) * wanted >= all * (int64_t)part.size())
                part.push_back((int32_t)c);
        part.push_back((int32_t)count);
    }
    int count() const { return (int)part.size() - 1; }
};

/// What the threads of one solve share.
struct Gang {
    Gang(const Parts& of, int threads)
        : parts(of), common(threads), listening(Listening::here()), numbers(4 * of.low.size()) {}
    const Parts& parts;
    Common common;
    Listening& listening;  // of the thread that made the call, which has the rank 0
    bool stopped[2] = {false, false};
    std::vector<double> numbers;  // two for every chunk, twice over
};

/// The parts of one thread (`Nodes` in system.h).
class PartNodes {
  public:
    PartNodes(Gang& gang, int rank) : gang_(gang), p_(gang.parts), rank_(rank) {
        const int64_t count = p_.count(), size = gang.common.size;
        begin_part_ = (int)(count * rank / size), end_part_ = (int)(count * (rank + 1) / size);
        begin_ = p_.part[begin_part_], end_ = p_.part[end_part_];
    }
    int rank() const { return rank_; }
    void sync() const { gang_.common.wait(); }
    /// Whether the solve must end: what was so at the last sum, for all threads alike.
    bool stopped() const { return gang_.stopped[turn_]; }

    /// `what(part, first chunk, last chunk)`.
    template <class Each>
    void each_part(const Each& what) const {
        for (int p = begin_part_; p < end_part_; ++p) what(p, p_.part[p], p_.part[p + 1]);
    }
    template <class Each>
    void each(const Each& what) const {
        for (int i = p_.first[begin_], end = p_.first[end_]; i < end; ++i) what(i);
    }
    /// `what(chunk, a, b)` adds to a and b, or makes them larger; all threads get the same two numbers.
    template <bool FIRST, bool SECOND, class Each>
    void combine(const Each& what, double& a, double& b) const {
        double* const here = flip();
        for (int c = begin_; c < end_; ++c) what(c, here[2 * c], here[2 * c + 1]);
        total<FIRST, SECOND>(here, a, b);
    }
    /// `what(i, a, b)` adds to a, and makes b larger.
    template <class Each>
    void sum_and_max(const Each& what, double& a, double& b) const {
        combine<false, true>(over(what), a, b);
    }
    /// `what(i, a, b)` makes both larger.
    template <class Each>
    void max(const Each& what, double& a, double& b) const {
        combine<true, true>(over(what), a, b);
    }
    /// `hear(i)` for all nodes, and then `answer(i, a)`, which adds to a; all threads get the sum. A chunk
    /// answers as soon as its receivers have heard, while its edges are still in the caches. Where other
    /// threads compute some of its receivers, it waits for them.
    template <class Hear, class Answer>
    double both_ways(const Hear& hear, const Answer& answer) const {
        double* const here = flip();
        auto reply = [&](int c) {
            for (int i = p_.first[c], end = p_.first[c + 1]; i < end; ++i) answer(i, here[2 * c]);
        };
        const int least = p_.first[begin_], most = p_.first[end_];
        auto inside = [&](int c) { return p_.low[c] >= least && p_.high[c] < most; };
        for (int c = begin_, next = begin_; c < end_; ++c) {
            const int heard = p_.first[c + 1];
            for (int i = p_.first[c]; i < heard; ++i) hear(i);
            for (; next <= c; ++next) {
                if (!inside(next)) continue;
                if (p_.high[next] >= heard) break;
                reply(next);
            }
        }
        sync();
        for (int c = begin_; c < end_; ++c)
            if (!inside(c)) reply(c);
        double sum, none;
        total<false, false>(here, sum, none);
        return sum;
    }

  private:
    Gang& gang_;
    const Parts& p_;
    const int rank_;
    int begin_part_, end_part_, begin_, end_;
    mutable int turn_ = 0;

    /// The other half of the numbers, zero for the chunks of this thread.
    double* flip() const {
        turn_ ^= 1;
        double* const here = gang_.numbers.data() + gang_.numbers.size() / 2 * turn_;
        std::fill(here + 2 * begin_, here + 2 * end_, 0.0);
        return here;
    }
    template <bool FIRST, bool SECOND>
    void total(const double* here, double& a, double& b) const {
        if (rank_ == 0) gang_.stopped[turn_] = gang_.listening.asked_to_end();
        sync();
        a = b = 0;
        for (size_t c = 0; c < p_.low.size(); ++c)
            join<FIRST>(a, here[2 * c]), join<SECOND>(b, here[2 * c + 1]);
        if (stopped()) a = b = NAN;  // nothing goes on with such numbers
    }
    template <bool LARGEST>
    static void join(double& a, double x) {
        if (!LARGEST) a += x;
        else if (x > a || x != x) a = x;  // NaN stays
    }
    template <class Each>
    auto over(const Each& what) const {
        return [&](int c, double& a, double& b) {
            for (int i = p_.first[c], end = p_.first[c + 1]; i < end; ++i) what(i, a, b);
        };
    }
};

}  // namespace hog

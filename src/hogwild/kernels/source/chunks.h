// One large graph on a CPU: Newton's method, the adjoint and its cotangents, on threads that share the graph.
//
// A pass over the graph takes chunks of consecutive nodes with the edges into them, which fit into the
// caches. A chunk is a Task (energy.h): everything that its networks need is computed in the memory of the
// chunk, from o_0 on. What stays are the blocks of the Hessian for conjugate gradients (system.h), in single
// precision, and for every edge what it sends back to its sender, which the senders gather.
#pragma once
#include <stdexcept>

#include "batch.h"
#include "parts.h"
#include "system.h"

namespace hog {

/// A chunk's Task solves no linear systems.
struct NoSolver {
    static constexpr bool matrix_free = false;
};
typedef Task<Sizes, NoSolver, Alone> ChunkTask;

/// Memory of one thread: a chunk's task, its connectivity, and sums of gradients of parameters.
struct Desk {
    V *task, *sums;
    int *ptr, *src, *dst, *none;

    static size_t vectors(const Sizes& s, const Parts& p) { return Desk(s, p, nullptr).size_; }
    Desk(const Sizes& s, const Parts& p, V* memory) {
        auto take = [&](size_t vectors) {
            V* const out = memory ? memory + size_ : nullptr;
            size_ += vectors;
            return out;
        };
        auto ints = [&](size_t count) { return (int*)take(count / (2 * LANES) + 1); };
        task = take(ChunkTask::vectors(s, p.nodes, p.edges));
        take(GAP);
        sums = take(s.parameters());
        ptr = ints(p.nodes + 1), none = ints(p.nodes + 1), src = ints(p.edges), dst = ints(p.edges);
        if (memory) std::fill(none, none + p.nodes + 1, 0);
    }

  private:
    size_t size_ = 0;
};

/// A graph and replica in chunks, of K unknowns a node and messages of M numbers, or fewer of both; every
/// thread has an object of its own. `newton` (newton.h) solves it.
template <int K, int M>
class Chunks {
    typedef System<double, K, M, PartNodes> Fine;
    typedef System<float, K, M, PartNodes> Fast;
    const Sizes& s_;
    const int k_, m_;
    const Parts& parts_;
    const GraphPlan& plan_;
    const GraphView view_;
    const Place place_;
    const Refined how_;
    const PartNodes& nodes_;
    const Desk desk_;

  public:
    double value, noise, residual, scale;
    double *h, *g, *d, *trial;  // [n, k]

  private:
    double* sizes_;   // of the gradient's terms, [n, k]
    double* turned_;  // o_0 on nodes, as far as messages read it
    double* sent_;    // cotangents of o_0 of every edge
    const Fine fine_;
    const Fast fast_;
    double* back_;
    const double* at_ = nullptr;  // the point of the last pass, its reach, and whether fine_ is filled
    double reach_ = 0;
    bool exact_ = false;

  public:
    /// Numbers of memory that all threads share.
    static size_t numbers(const Sizes& s, const GraphPlan& p) {
        const size_t n = p.n, e = p.e, blocks = Fine::numbers(n, e) + Fast::numbers(n, e) / 2 + 2 + e * back(s);
        return n * (5 * s.k() + s.loop_row()) + 2 + std::max(blocks, e * sent(s));
    }

    Chunks(const Posed& posed, int64_t graph, int64_t replica, const double* used, const Refined& how,
           const Parts& parts, const PartNodes& nodes, double* memory, const Desk& desk)
        : s_(*posed.sizes), k_(s_.k()), m_(s_.merged()), parts_(parts), plan_(parts.graph),
          view_(view(plan_)), place_(posed.place(graph, replica, used)), how_(how), nodes_(nodes),
          desk_(desk), h(take(memory, k_)), g(take(memory, k_)), d(take(memory, k_)),
          trial(take(memory, k_)), sizes_(take(memory, k_)), turned_(take(memory, s_.loop_row())),
          sent_(memory = (double*)(((size_t)memory + 15) / 16 * 16)),
          fine_(view_, nodes, memory), fast_(single(memory)), back_(memory) {}

    /// Lay out what no pass changes; the first thing that is done.
    void fill_contexts() const {
        nodes_.each_part([&](int, int begin, int end) {
            for (int c = begin; c < end; ++c) task(parts_.first[c], parts_.first[c + 1]).turn_nodes();
        });
        nodes_.sync();
    }

    /// Read [k, N] of a replica into x [n, k]; nullptr: zero.
    void read(const double* from, double* x) const {
        nodes_.each([&](int i) {
            for (int c = 0; c < k_; ++c)
                x[(size_t)i * k_ + c] = from ? from[c * place_.N + place_.n0 + i] : 0.0;
        });
        nodes_.sync();
    }
    /// Set x [n, k] to zero at the nodes that are held.
    void hold(double* x) const {
        nodes_.each([&](int i) {
            for (int c = 0; c < k_ && held(i); ++c) x[(size_t)i * k_ + c] = 0.0;
        });
        nodes_.sync();
    }
    void write(const double* x, double* out) const {
        nodes_.each([&](int i) {
            for (int c = 0; c < k_; ++c) out[c * place_.N + place_.n0 + i] = x[(size_t)i * k_ + c];
        });
    }

    /// Everything at x: value, gradient and blocks come from one pass.
    void evaluate(const double* x) { pass(x, 0.0, false); }
    void differentiate(const double* x, double reach) {
        if (x != at_ || reach != reach_) pass(x, reach, false);
    }
    /// The same with blocks in double precision.
    void linearise(const double* x) { pass(x, 0.0, true); }

    bool solve_linear(const double* from, double sign, double* x) {
        return how_.solve(fine_, fast_, k_, from, sign, x, [&] {
            if (exact_) nodes_.sync();
            else pass(at_, reach_, true);
        });
    }
    bool stopped() const { return nodes_.stopped(); }
    bool exhausted() const { return stopped(); }

    double dot(const double* x, const double* y) const {
        double sum, none;
        nodes_.sum_and_max(
            [&](int i, double& a, double&) {
                for (int c = 0; c < k_; ++c) a += x[(size_t)i * k_ + c] * y[(size_t)i * k_ + c];
            },
            sum, none);
        return sum;
    }
    void descend() {
        nodes_.each([&](int i) {
            for (int c = 0; c < k_; ++c) {
                const double own = fine_.node[(size_t)i * Fine::NODE + c * K + c];
                d[(size_t)i * k_ + c] = -g[(size_t)i * k_ + c] / (own > 0 ? own : 1.0);
            }
        });
        nodes_.sync();
    }
    void step(double t) {
        nodes_.each([&](int i) {
            for (size_t at = (size_t)i * k_, end = at + k_; at < end; ++at) trial[at] = h[at] + t * d[at];
        });
        nodes_.sync();
    }

    /// The gradients of everything that the problem is made of, from lambda = H^-1 dL/dh in d at the
    /// solution h; `sums` [parts, parameters] gets those of the parameters as the networks use them. The
    /// blocks are lost.
    void reverse(const Cotangents& out, double* sums) {
        const int count = s_.parameters(), rows = sent(s_);
        nodes_.sync();  // lambda is there, and nobody needs the blocks
        nodes_.each_part([&](int part, int begin, int end) {
            for (int i = 0; i < count; ++i) desk_.sums[i] = wide(0.0);
            for (int c = begin; c < end; ++c) {
                const int from = parts_.first[c];
                ChunkTask t = task(from, parts_.first[c + 1]);
                t.h = h + (size_t)from * k_;
                t.d = d + (size_t)from * k_;
                t.fill_contexts();
                t.evaluate(t.h);
                t.differentiate(t.h, 0.0);
                t.reverse(out, Adder{desk_.sums});
                for (int q = 0; q < t.v.e; ++q)
                    t.copy_sent(q, sent_ + (size_t)(plan_.ptr[from] + q) * rows);
            }
            for (int i = 0; i < count; ++i) sums[(size_t)part * count + i] = sum_lanes(desk_.sums[i]);
        });
        nodes_.sync();
        if (!s_.sent()) return;
        nodes_.each([&](int i) {
            for (int row = 0; row < rows; ++row) {
                double sum = 0;
                for (int o = view_.out_ptr[i]; o < view_.out_ptr[i + 1]; ++o)
                    sum += sent_[(size_t)view_.out_edge[o] * rows + row];
                out.nodes[(s_.own_rows() + row) * place_.N + place_.n0 + i] = sum;
            }
        });
    }

  private:
    /// Numbers that an edge sends back to its sender: gradient and curvature, or cotangents of o_0.
    static size_t back(const Sizes& s) { return s.k() + s.k() * (s.k() + 1) / 2; }
    static size_t sent(const Sizes& s) { return (size_t)s.heads() * s.message().rows0(); }

    double* take(double*& memory, int width) const {
        double* const out = memory;
        memory += (size_t)plan_.n * width;
        return out;
    }
    Fast single(double*& memory) const {
        float* rest = (float*)memory;
        const Fast out(view_, nodes_, rest);
        memory = (double*)rest;
        return out;
    }
    bool held(int i) const { return place_.held && place_.held[place_.n0 + i]; }

    /// The task of a chunk: its nodes are counted from its first one, senders elsewhere, too.
    ChunkTask task(int from, int to) const {
        const int e0 = plan_.ptr[from], n = to - from, e = plan_.ptr[to] - e0;
        for (int i = 0; i <= n; ++i) desk_.ptr[i] = plan_.ptr[from + i] - e0;
        for (int q = 0; q < e; ++q) {
            desk_.src[q] = plan_.src[e0 + q] - from;
            desk_.dst[q] = plan_.dst[e0 + q] - from;
        }
        Place place = place_;
        place.n0 += from;
        place.edge += e0;
        const GraphView some{n, e, desk_.ptr, desk_.src, desk_.dst, desk_.none, nullptr, nullptr, nullptr};
        ChunkTask out(s_, some, place, NoSolver{}, Alone{}, desk_.task);
        out.use_turned(turned_ + (size_t)from * s_.loop_row());
        return out;
    }

    void pass(const double* x, double reach, bool exact) {
        nodes_.template combine<false, false>(
            [&](int c, double& sum, double& size) {
                const int from = parts_.first[c];
                ChunkTask t = task(from, parts_.first[c + 1]);
                const double* here = x + (size_t)from * k_;
                t.use_gradient(g + (size_t)from * k_, sizes_ + (size_t)from * k_);
                t.fill_contexts();
                t.evaluate(here);
                sum = t.value, size = t.noise;
                t.differentiate(here, reach);
                t.assemble();
                t.hold_blocks();
                keep(t, from, exact);
            },
            value, noise);
        at_ = x, reach_ = reach, exact_ = exact;
        nodes_.max([&](int i, double& most, double& size) { gather(i, most, size); }, residual, scale);
    }

    /// Keep the blocks of a chunk; those of its nodes without what their edges out add.
    void keep(const ChunkTask& t, int from, bool exact) const {
        const int e0 = plan_.ptr[from];
        for (int q = 0; q < t.v.e; ++q) {
            float* const row = fast_.edge + (size_t)(e0 + q) * Fast::EDGE;
            double* const wide = fine_.edge + (size_t)(e0 + q) * Fine::EDGE;
            auto put = [&](int at, double x) {
                row[at] = (float)x;
                if (exact) wide[at] = x;
            };
            for (int m = 0; m < M; ++m)
                for (int c = 0; c < K; ++c)
                    put(m * K + c, m < m_ && c < k_ ? t.Jj.at(q, m * k_ + c) : 0.0);
            for (int a = 0; a < K; ++a)
                for (int c = 0; c < K; ++c)
                    put(M * K + a * K + c, a < k_ && c < k_ ? t.X.at(q, a * k_ + c) : 0.0);
            double* to = back_ + (size_t)(e0 + q) * back(s_);
            t.copy_back(q, to);
            to += k_;
            for (int a = 0; a < k_; ++a)
                for (int c = 0; c <= a; ++c) {
                    double own = t.Hjj.at(q, a * k_ + c);
                    for (int m = 0; m < m_; ++m) own -= t.Jj.at(q, m * k_ + a) * t.UJ.at(q, m * k_ + c);
                    *to++ = own;
                }
        }
        for (int i = 0; i < t.v.n; ++i) {
            double* const to = fine_.node + (size_t)(from + i) * Fine::NODE;
            float* const down = fast_.node + (size_t)(from + i) * Fast::NODE;
            for (int a = 0; a < K; ++a)
                for (int c = 0; c < K; ++c)
                    to[a * K + c] = a < k_ && c < k_ ? t.B.at(i, a * k_ + c) : a == c ? 1.0 : 0.0;
            for (int a = 0; a < M; ++a)
                for (int c = 0; c < M; ++c) {
                    const double u = a < m_ && c < m_ ? t.Um.at(i, a * (m_ + k_) + c) : 0.0;
                    to[K * K + a * M + c] = u;
                    down[K * K + a * M + c] = (float)u;
                }
        }
    }

    /// Add what the edges out of a node send back to it: gradient and block; and invert the block.
    void gather(int i, double& most, double& size) const {
        double own[K * K], whole[K * K];
        for (int c = 0; c < K * K; ++c) own[c] = whole[c] = fine_.node[(size_t)i * Fine::NODE + c];
        for (int o = view_.out_ptr[i]; o < view_.out_ptr[i + 1]; ++o) {
            const size_t e = view_.out_edge[o];
            const double* from = back_ + e * back(s_);
            if (!held(i))
                for (int c = 0; c < k_; ++c) {
                    g[(size_t)i * k_ + c] += from[c];
                    sizes_[(size_t)i * k_ + c] += std::fabs(from[c]);
                }
            from += k_;
            const float* const J = fast_.edge + e * Fast::EDGE;
            const double* const U = fine_.node + (size_t)view_.dst[e] * Fine::NODE + K * K;
            for (int a = 0; a < k_; ++a)
                for (int c = 0; c <= a; ++c, ++from) {
                    double paired = 0;
                    for (int m = 0; m < M; ++m)
                        for (int l = 0; l < M; ++l) paired += U[m * M + l] * J[m * K + a] * J[l * K + c];
                    own[a * K + c] += *from, whole[a * K + c] += *from + paired;
                    if (a == c) continue;
                    own[c * K + a] += *from, whole[c * K + a] += *from + paired;
                }
        }
        for (int c = 0; c < k_ && !held(i); ++c) {
            const double entry = g[(size_t)i * k_ + c], terms = sizes_[(size_t)i * k_ + c];
            if (std::fabs(entry) > most || entry != entry) most = std::fabs(entry);
            if (terms > size) size = terms;
        }
        invert<K>(whole);
        fine_.put_node(i, own, whole);
        fast_.put_node(i, own, whole);
    }
};

template <int K, int M>
struct Widths {
    static constexpr int k = K, m = M;
};

/// `what(Widths<K, M>)` for the narrowest blocks that hold k unknowns a node and messages of m numbers.
/// False where there are none.
template <class What>
bool with_widths(int, int, const What&) {
    return false;
}
template <class What, int K, int M, class... Wider>
bool with_widths(int k, int m, const What& what, Widths<K, M> narrow, Wider... wider) {
    if (k > K || m > M) return with_widths(k, m, what, wider...);
    what(narrow);
    return true;
}

/// Run `work(chunks, thread)` on all threads for one graph and replica, with blocks of these widths.
template <int K, int M, class Work>
void run_chunks(const Posed& posed, int64_t graph, int64_t replica, const double* used, const Refined& how,
                const Parts& parts, int64_t threads, const Work& work) {
    const Sizes& s = *posed.sizes;
    const Plan& plan = *posed.plan;
    threads = std::clamp<int64_t>(threads, 1, parts.count());
    Arena other;
    const std::unique_lock<std::mutex> lock(plan.busy, std::try_to_lock);
    Arena& arena = lock ? plan.arena : other;  // kept for the next solve, unless another one runs now
    const size_t shared = whole(Chunks<K, M>::numbers(s, parts.graph)), desk = Desk::vectors(s, parts);
    const size_t all = shared + threads * desk + GAP;
    V* const memory = poisoned(arena.room(all), all, all - GAP);
    Gang gang(parts, (int)threads);
    crew(gang.common, (int)threads, [&](int rank) {
        const PartNodes nodes(gang, rank);
        Chunks<K, M> chunks(posed, graph, replica, used, how, parts, nodes, (double*)memory,
                            Desk(s, parts, memory + shared + rank * desk));
        work(chunks, rank);
    });
}

/// The same with the narrowest blocks that hold the model's; throws where there are none.
template <class Work>
void with_chunks(const Posed& posed, int64_t graph, int64_t replica, const double* used, const Refined& how,
                 const Parts& parts, int64_t threads, const Work& work) {
    const bool fits = with_widths(
        posed.sizes->k(), posed.sizes->merged(),
        [&](auto widths) {
            run_chunks<decltype(widths)::k, decltype(widths)::m>(posed, graph, replica, used, how, parts,
                                                                 threads, work);
        },
        Widths<1, 1>{}, Widths<2, 2>{}, Widths<2, 4>{}, Widths<2, 8>{}, Widths<4, 4>{}, Widths<4, 8>{},
        Widths<8, 8>{}, Widths<8, 16>{});
    if (!fits) throw std::invalid_argument("embeddings or messages are too wide for blocks");
}

/// As `solve_batch`, one graph and replica after the other.
inline void solve_chunks(const Posed& posed, const Options& options, const double* h0, int64_t threads,
                         double* h, int64_t* status, int64_t* iterations, double* residual) {
    const Plan& p = *posed.plan;
    const std::vector<double> used = effective_parameters(posed, nullptr);
    const int64_t one = (int64_t)posed.sizes->k() * p.nodes;
    for (int64_t g = 0; g < p.graphs; ++g) {
        const Parts parts(*p.of[g]);
        for (int64_t r = 0, at = g; r < posed.replicas; ++r, at += p.graphs)
            with_chunks(posed, g, r, used.data(), Refined{0.0, 0.1 * options.atol}, parts, threads,
                        [&](auto& chunks, int rank) {
                            long long count;
                            const double* const from = h0 ? h0 + r * one : nullptr;
                            const int ended = solve_one(chunks, options, from, h + r * one, count);
                            if (rank == 0)
                                status[at] = ended, iterations[at] = count, residual[at] = chunks.residual;
                        });
    }
}

/// As `gradient_batch`.
inline void gradient_chunks(const Posed& posed, const double* h, int64_t threads, double* gradient,
                            double* scale) {
    const Plan& p = *posed.plan;
    const std::vector<double> used = effective_parameters(posed, nullptr);
    const int64_t one = (int64_t)posed.sizes->k() * p.nodes;
    for (int64_t g = 0; g < p.graphs; ++g) {
        const Parts parts(*p.of[g]);
        for (int64_t r = 0; r < posed.replicas; ++r)
            with_chunks(posed, g, r, used.data(), Refined{}, parts, threads, [&](auto& chunks, int rank) {
                differentiate_one(chunks, h + r * one, gradient + r * one);
                if (rank == 0) scale[r * p.graphs + g] = chunks.scale;
            });
    }
}

/// As `adjoint_batch`.
inline void adjoint_chunks(const Posed& posed, const double* h, const double* gradient, double rtol,
                           int64_t threads, double* parameters, const Cotangents& out, int64_t* status) {
    const Plan& p = *posed.plan;
    const Sizes& s = *posed.sizes;
    std::vector<double> slopes;
    const std::vector<double> used = effective_parameters(posed, &slopes);
    const int64_t count = s.parameters(), one = (int64_t)s.k() * p.nodes;
    std::fill(parameters, parameters + posed.replicas * count, 0.0);
    for (int64_t g = 0; g < p.graphs; ++g) {
        const Parts parts(*p.of[g]);
        std::vector<double> sums((size_t)parts.count() * count);
        for (int64_t r = 0; r < posed.replicas; ++r) {
            with_chunks(posed, g, r, used.data(), Refined{rtol, 0.0}, parts, threads,
                        [&](auto& chunks, int rank) {
                            const bool sound = solve_dual(chunks, h + r * one, gradient + r * one);
                            if (rank == 0) status[r * p.graphs + g] = sound ? CONVERGED : NOT_FINITE;
                            chunks.reverse(replica_of(posed, out, r), sums.data());
                        });
            for (size_t i = 0; i < sums.size(); ++i) parameters[r * count + i % count] += sums[i];
        }
    }
    for (int64_t i = 0; i < posed.replicas * count; ++i) parameters[i] *= slopes[i];
}

}  // namespace hog

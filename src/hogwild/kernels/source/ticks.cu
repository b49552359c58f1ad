// A tick of gradient steps on a GPU, in one launch: it draws the packets that nodes hold, computes the
// updates and files what is sent. Nothing is read back. (With several replicas, the first launch files what
// is sent, and a second one computes the updates of all replicas.)
//
// hogwild/kernels/ticks_cuda.py compiles this file for one model. simulator.h and stars.h have the same
// arithmetic for a CPU, hogwild/asynchrony/history.py has the meaning of the arrays. A block of threads
// takes a range of nodes. It lists those whose turn it is, and works through the list in batches. A thread
// computes an edge, and the last threads compute a node each, at the same time as far as possible. They
// exchange what they found through shared memory. A node with more edges than there are threads for edges
// is a batch of its own, whose edges are computed in several rounds.
#include "turns_gpu.h"

namespace hog {

// Numbers of eight bytes in front of the rest of the shared memory: the weights, with several replicas.
#define HOG_KEPT (HOG_FEW ? 0 : (HOG_WEIGHTS + 1) / 2 * 2)
#define HOG_UNITS (HOG_HEADS * MessageNet::hidden())  // hidden units of all messages along an edge

/// The turns with the updates.
class Team : public Turns {
  public:
    HOG_METHOD Team(long long time_, int what_, int row, double* shared)
        : Turns(time_, what_, row, shared + HOG_KEPT), w(HOG_FEW ? hog_weights : (const Real*)shared) {}

    /// List the nodes whose turn it is; returns how many there are.
    HOG_METHOD int begin() {
        count_nothing();
        list();
        look_ahead(0);
        return listed;
    }

    /// The batch that begins at place `a` of the list; returns its nodes.
    HOG_METHOD int batch(int a, int listed_) {
        listed = listed_;
        seat(a);
        hear();
        if (what & UPDATE) {
            step();
            send();
        } else {
            look_ahead(seated + nodes);
            __syncthreads();  // before the next batch's ages are written
        }
        return nodes;
    }

    using Turns::report;

  private:
    const Real* w;
    Real now[HOG_K];

    // -- the updates -------------------------------------------------------------------------------

    /// The nodes make their steps, and tell them to the threads of their edges.
    HOG_METHOD void step() {
        if (has_node()) {
            Real* h = hog_ticks.h + replica * HOG_K * hog_ticks.nodes + i;
            Real* packet = hog_ticks.node + (mine * replicas + replica) * HOG_K;
            double g[HOG_K];
            HOG_EACH(c, HOG_K) g[c] = own[c] + heard[c];
#if HOG_STEP == 2
            Real *block_ = remembered() + HOG_K, *last = block_ + HOG_KK + 1;
            double trust = block_[HOG_KK], turned = 0.0, size = 0.0, before = 0.0, block[HOG_KK];
            HOG_EACH(c, HOG_K) {
                turned += g[c] * last[c], size += g[c] * g[c], before += (double)last[c] * last[c];
                last[c] = (Real)g[c];
            }
            trust = turned < 0.0 && size > before ? 0.5 * trust : 1.1 * trust;
            trust = smaller(larger(trust, 1e-3 * hog_ticks.damping), hog_ticks.damping);
            block_[HOG_KK] = (Real)trust;
            HOG_EACH(x, HOG_KK) block[x] = (double)block_[x] + heard[HOG_K + x];
            eliminate<HOG_K>(HOG_K, block, g, 1);
#endif
            HOG_EACH(c, HOG_K) {
#if HOG_STEP == 0
                const double rate = hog_ticks.rate;
#elif HOG_STEP == 1
                const double rate = hog_ticks.rates[(replica * HOG_K + c) * hog_ticks.nodes + i];
#else
                const double rate = trust;
#endif
                now[c] = (Real)(at[c] - rate * g[c]);
                h[c * hog_ticks.nodes] = now[c];
                packet[c] = now[c];
                tell[c * HOG_NODES + spot] = now[c];
            }
        }
        wait_for_copies();
        __syncthreads();
    }

    HOG_METHOD const Real* head(int hd) const { return w + hd * MessageNet::weights(); }
    HOG_METHOD const Real* context(int hd) const {
        return of_edges + me * HOG_STRIDE(HOG_ROW) + hd * MessageNet::context();
    }
    HOG_METHOD Real weight(int hd) const {
        return of_edges[me * HOG_STRIDE(HOG_ROW) + HOG_HEADS * MessageNet::context() + hd];
    }

    /// The message along this thread's edge, to be added up by its receiver.
    HOG_METHOD void message(Real* sums, Real* slopes, Real* units) const {
        Real y[HOG_D], value[HOG_CHANNELS];
        HOG_EACH(c, HOG_K) {
            const Real at = tell[c * HOG_NODES + edge.owner];
            if (HOG_ENDS == 2) y[2 * c] = at;
            y[HOG_ENDS * c + HOG_ENDS - 1] = edge.loop ? at : edge.view[c];
        }
        HOG_EACH(c, HOG_M) sums[c] = 0;
        HOG_EACH(hd, HOG_HEADS) {
            forward_from<MessageNet>(head(hd), context(hd), y, nullptr, slopes + hd * MessageNet::hidden(),
                                     units + hd * MessageNet::hidden(), value);
            HOG_EACH(c, HOG_CHANNELS) sums[(HOG_CONCAT ? hd * HOG_CHANNELS : 0) + c] += weight(hd) * value[c];
        }
    }

    /// Take the edges of a round again, with what their threads knew of them.
    HOG_METHOD void again(int round) {
        __syncthreads();
        take(round);
        fetch_edges(round);
        if (edge.on) listen(hog_ticks.records[edge.q], nullptr);
        wait_for_copies();
        __syncthreads();
    }

    /// What a thread knows of its node.
    struct Own {
        Real message[HOG_M], gradient[HOG_K], bar[HOG_UN];  // the self message; derivatives of the energy
#if HOG_STEP == 2
        Real block[HOG_KK], A[HOG_MK], U[HOG_UN * HOG_UN];
#endif
    };
    HOG_METHOD const Real* w_loop() const { return head(HOG_HEADS); }
    HOG_METHOD const Real* w_up() const { return w_loop() + LoopNet::weights(); }
    HOG_METHOD const Real* q_loop() const { return of_nodes + spot * HOG_STRIDE(HOG_NODE_ROW); }
    HOG_METHOD const Real* q_up() const { return q_loop() + LoopNet::context(); }
    HOG_METHOD Real loop_weight() const { return q_up()[UpdateNet::context()]; }

    /// The node's message to itself.
    HOG_METHOD void message_to_self(Own& own, Real* slopes, Real* units) const {
        forward_from<LoopNet>(w_loop(), q_loop(), now, nullptr, slopes, units, own.message);
        HOG_EACH(c, HOG_M) own.message[c] *= loop_weight();
    }

    /// The node's energy from the sum of all messages; its derivatives are told to the edges.
    HOG_METHOD void evaluate(const Real* sums, Own& own) const {
        Real y[HOG_UN], value[1], s[UpdateNet::hidden() + 1], a[UpdateNet::hidden() + 1];
        const Real one = 1;
        HOG_EACH(c, HOG_M) y[c] = sums[c] + own.message[c];
        HOG_EACH(c, HOG_K) y[HOG_M + c] = now[c];
        forward_from<UpdateNet>(w_up(), q_up(), y, nullptr, s, a, value);
        read_again();
#if HOG_STEP == 2
        Real J[HOG_UN];
        expand_majorised<UpdateNet>(w_up(), q_up(), s, a, &one, J, own.bar, own.U);
        HOG_EACH(r, HOG_UN) HOG_EACH(c, r) own.U[c * HOG_UN + r] = own.U[r * HOG_UN + c];
        HOG_EACH(r, HOG_M) HOG_EACH(c, HOG_M)
            tell[(HOG_K + HOG_M + r * HOG_M + c) * HOG_NODES + spot] = own.U[r * HOG_UN + c];
#else
        gradient_by<UpdateNet>(w_up(), q_up(), s, &one, own.bar);
#endif
        HOG_EACH(c, HOG_M) tell[(HOG_K + c) * HOG_NODES + spot] = own.bar[c];
    }

    /// The derivatives of the node's energy, without what comes from its edges.
    HOG_METHOD void reply_to_self(Own& own, const Real* slopes, const Real* units) const {
        Real p[HOG_M], g[HOG_K];
        HOG_EACH(c, HOG_M) p[c] = loop_weight() * own.bar[c];
#if HOG_STEP == 2
        expand_majorised<LoopNet>(w_loop(), q_loop(), slopes, units, p, own.A, g, own.block);
        HOG_EACH(r, HOG_K) HOG_EACH(c, r) own.block[c * HOG_K + r] = own.block[r * HOG_K + c];
        HOG_EACH(x, HOG_MK) own.A[x] *= loop_weight();
#else
        gradient_by<LoopNet>(w_loop(), q_loop(), slopes, p, g);
#endif
        HOG_EACH(c, HOG_K) own.gradient[c] = own.bar[HOG_M + c] + g[c] + (Real)HOG_BETA * now[c];
    }

    /// What this thread's edge adds to its receiver's sums, and the letter to its sender.
    HOG_METHOD void reply(const Real* all_slopes, const Real* all_units) const {
        Real p[HOG_CHANNELS], g[HOG_D], sums[HOG_SUMS], letter[HOG_LETTER];
        HOG_EACH(c, HOG_SUMS) sums[c] = 0;
        HOG_EACH(c, HOG_LETTER) letter[c] = 0;
#if HOG_STEP == 2
        Real far[HOG_MK];  // the Jacobian in the sender
        HOG_EACH(x, HOG_MK) far[x] = 0;
#endif
        HOG_EACH(hd, HOG_HEADS) {
            const int row = HOG_CONCAT ? hd * HOG_CHANNELS : 0, z = HOG_ENDS - 1;
            const Real* slopes = all_slopes + hd * MessageNet::hidden();
            HOG_EACH(c, HOG_CHANNELS) p[c] = weight(hd) * tell[(HOG_K + row + c) * HOG_NODES + edge.owner];
#if HOG_STEP == 2
            Real J[HOG_CHANNELS * HOG_D], curved[HOG_D * HOG_D];
            const Real* units = all_units + hd * MessageNet::hidden();
            expand_majorised<MessageNet>(head(hd), context(hd), slopes, units, p, J, g, curved);
            HOG_EACH(c, HOG_CHANNELS) HOG_EACH(x, HOG_K) {
                far[(row + c) * HOG_K + x] += weight(hd) * J[c * HOG_D + HOG_ENDS * x + z];
                if (z) sums[HOG_K + HOG_KK + (row + c) * HOG_K + x] += weight(hd) * J[c * HOG_D + 2 * x];
            }
            HOG_EACH(x, HOG_K) HOG_EACH(l, HOG_K) {
                const int r = x > l ? x : l, c = x > l ? l : x;  // the lower triangle is there
                letter[HOG_K + x * HOG_K + l] += curved[(HOG_ENDS * r + z) * HOG_D + HOG_ENDS * c + z];
                if (z) sums[HOG_K + x * HOG_K + l] += curved[2 * r * HOG_D + 2 * c];
            }
#else
            gradient_by<MessageNet>(head(hd), context(hd), slopes, p, g);
#endif
            HOG_EACH(c, HOG_K) {
                if (z) sums[c] += g[2 * c];
                letter[c] += g[HOG_ENDS * c + z];
            }
        }
#if HOG_STEP == 2
        HOG_EACH(l, HOG_K) {  // the sender's block: + J' U J
            Real half[HOG_M];
            HOG_EACH(c, HOG_M) {
                half[c] = 0;
                HOG_EACH(d, HOG_M)
                    half[c] += tell[(HOG_K + HOG_M + c * HOG_M + d) * HOG_NODES + edge.owner] * far[d * HOG_K + l];
            }
            HOG_EACH(x, HOG_K) HOG_EACH(c, HOG_M) letter[HOG_K + x * HOG_K + l] += far[c * HOG_K + x] * half[c];
        }
#endif
        const long long place = letters[edge.owner] + edge.number;
        Real* to = hog_ticks.edge + (place * replicas + replica) * HOG_LETTER;
        HOG_EACH(f, HOG_LETTER) {  // letters along self-loops arrive at once
            if (edge.loop) sums[f] += letter[f];
            to[f] = edge.loop ? (Real)0 : letter[f];
        }
        HOG_EACH(f, HOG_SUMS) gathered(f, me) = sums[f];
    }

    /// The nodes compute the gradients of their energies; their letters go out.
    HOG_METHOD void send() {
        constexpr int most_units = HOG_UNITS > LoopNet::hidden() ? HOG_UNITS : LoopNet::hidden();
        Real slopes[most_units + 1], units[most_units + 1];  // of the thread's edge, or of its node
        Real sums[HOG_M], added[HOG_SUMS];
        Own node;
        int round = 0;
        HOG_EACH(c, HOG_M) sums[c] = 0;
        HOG_EACH(c, HOG_SUMS) added[c] = 0;
        do {
            if (several) again(round);
            if (edge.on) {
                Real message_[HOG_M];
                message(message_, slopes, units);
                HOG_EACH(c, HOG_M) gathered(c, me) = message_[c];
            }
            if (has_node() && round == 0) message_to_self(node, slopes, units);
            __syncthreads();
            if (has_node()) add_gathered<HOG_M>(round, sums);
            round += HOG_THREADS;
        } while (several && round < edges);
        look_ahead(seated + nodes);  // while the threads of edges wait for their nodes
        if (has_node()) evaluate(sums, node);
        __syncthreads();
        round = 0;
        do {
            if (several) {
                again(round);
                Real ignored[HOG_M];
                if (edge.on) message(ignored, slopes, units);
            }
            if (edge.on) reply(slopes, units);
            if (has_node() && round == 0) reply_to_self(node, slopes, units);
            __syncthreads();
            if (has_node()) add_gathered<HOG_SUMS>(round, added);
            round += HOG_THREADS;
        } while (several && round < edges);
        if (has_node()) remember(node, added);
    }

    HOG_METHOD void remember(Own& own, Real* added) const {
        Real* memory = remembered();
        HOG_EACH(c, HOG_K) memory[c] = own.gradient[c] + added[c];
#if HOG_STEP == 2
        HOG_EACH(x, HOG_MK) own.A[x] += added[HOG_K + HOG_KK + x];
        HOG_EACH(l, HOG_K) {  // B + U_hh + A' (U_mm A + U_mh) + U_hm A + beta
            Real half[HOG_M];
            HOG_EACH(c, HOG_M) {
                half[c] = own.U[c * HOG_UN + HOG_M + l];
                HOG_EACH(d, HOG_M) half[c] += own.U[c * HOG_UN + d] * own.A[d * HOG_K + l];
            }
            HOG_EACH(x, HOG_K) {
                Real sum = own.block[x * HOG_K + l] + added[HOG_K + x * HOG_K + l] +
                             own.U[(HOG_M + x) * HOG_UN + HOG_M + l];
                HOG_EACH(c, HOG_M)
                    sum += own.A[c * HOG_K + x] * half[c] +
                           own.U[c * HOG_UN + HOG_M + x] * own.A[c * HOG_K + l];
                memory[HOG_K + x * HOG_K + l] = x == l ? sum + (Real)HOG_BETA : sum;
            }
        }
#endif
    }
};

/// A batch as a function of its own: in a loop the compiler would read all weights once, before the loop,
/// and keep them in registers.
HOG_LARGE int make_batch(long long time, int what, int row, int a, int listed) {
    HOG_SHARED(shared);
    return Team(time, what, row, shared).batch(a, listed);
}

}  // namespace hog

using namespace hog;

extern "C" __global__ void __launch_bounds__(HOG_ALL, HOG_RESIDENT) hog_tick(long long time, int what) {
    HOG_SHARED(shared);
#if !HOG_FEW
    const Real* from = hog_ticks.weights + (long long)blockIdx.y * HOG_WEIGHTS;
    for (int i = threadIdx.x; i < HOG_WEIGHTS; i += HOG_ALL) ((Real*)shared)[i] = from[i];
    __syncthreads();
#endif
    const int row = (int)(time % hog_ticks.rows);
    Team team(time, what, row, shared);
    const int listed = team.begin();
    for (int a = 0; a < listed;) a += make_batch(time, what, row, a, listed);
    if (what & FIND) team.report();
}

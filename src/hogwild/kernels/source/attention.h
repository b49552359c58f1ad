// Attention over neighbourhoods from features alone (hogwild/nn/attention.py), and its reverse pass.
//
// The weights take two dozen calls of torch otherwise, with as many in the reverse pass: on a batch of
// small graphs these take longer than the arithmetic.
#pragma once
#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <vector>

#include "dense.h"

namespace hog {

/// The parameter sets that share the features of one replica, on a batch of graphs. `T` is the type of the
/// parameters; all else is in double precision. The logit of an edge is linear in the features of its
/// receiver, of its sender and of the edge itself. Parts of theta_a [S, 2q or 3q] times theta_x [S, q, p] are
/// the coefficients of the receiver and of the sender, and the last part times theta_e [S, q, r] those of the
/// edge.
template <class T>
class Attention {
  public:
    int64_t sets, nodes, edges, q, p, r;
    const int64_t *src, *dst;
    double slope;                          // of the leaky ReLU
    Table<const double> x, heard, attr;    // heard.at == nullptr: senders have their features in x
    const T *theta_x, *theta_a, *theta_e;  // theta_e == nullptr: no features of edges

    /// z [S, E]: the logits before the leaky ReLU; weights [S, E].
    void forward(double* z, double* weights) const {
        const std::vector<double> vectors = times(theta_x, p, {0, 1});
        std::vector<double> ends(sets * (nodes + senders())), more(theta_e ? sets * edges : 0);
        const double *own = ends.data(), *sent = own + sets * nodes;
        if (heard.at) {
            project(sets, p, nodes, vectors.data(), nullptr, x, ends.data());
            project(sets, p, edges, vectors.data() + sets * p, nullptr, heard, ends.data() + sets * nodes);
        } else {
            project(2 * sets, p, nodes, vectors.data(), nullptr, x, ends.data());
        }
        if (theta_e) project(sets, r, edges, times(theta_e, r, {2}).data(), nullptr, attr, more.data());
        for (int64_t s = 0; s < sets; ++s, z += edges, weights += edges)
            one(own + s * nodes, sent + s * senders(), theta_e ? more.data() + s * edges : nullptr, z, weights);
    }

    /// The gradients of the parameters from those of the weights.
    void backward(const double* z, const double* weights, const double* gradient, T* to_x, T* to_a,
                  T* to_e) const {
        std::vector<double> ends(sets * (nodes + senders()), 0.0), at(sets * edges);
        double *own = ends.data(), *sent = own + sets * nodes;
        for (int64_t s = 0; s < sets; ++s) {
            const int64_t first = s * edges;
            std::vector<double> mean(nodes, 0.0);
            for (int64_t e = 0; e < edges; ++e) mean[dst[e]] += weights[first + e] * gradient[first + e];
            for (int64_t e = 0; e < edges; ++e) {
                const double more = weights[first + e] * (gradient[first + e] - mean[dst[e]]);
                at[first + e] = z[first + e] > 0 ? more : slope * more;
                own[s * nodes + dst[e]] += at[first + e];
                sent[s * senders() + sender(e)] += at[first + e];
            }
        }
        std::vector<double> vectors(2 * sets * p), more(sets * r);
        if (heard.at) {
            project_back(sets, p, nodes, own, x, vectors.data(), nullptr);
            project_back(sets, p, edges, sent, heard, vectors.data() + sets * p, nullptr);
        } else {
            project_back(2 * sets, p, nodes, own, x, vectors.data(), nullptr);
        }
        if (theta_e) project_back(sets, r, edges, at.data(), attr, more.data(), nullptr);
        std::fill_n(to_x, sets * q * p, (T)0);
        back(theta_x, p, 0, vectors.data(), to_x, to_a);
        back(theta_x, p, 1, vectors.data() + sets * p, to_x, to_a);
        if (!theta_e) return;
        std::fill_n(to_e, sets * q * r, (T)0);
        back(theta_e, r, 2, more.data(), to_e, to_a);
    }

  private:
    int64_t senders() const { return heard.at ? edges : nodes; }
    int64_t sender(int64_t e) const { return heard.at ? e : src[e]; }
    int64_t row() const { return (theta_e ? 3 : 2) * q; }

    /// Weights [E] of one parameter set.
    void one(const double* own, const double* sent, const double* more, double* z, double* weights) const {
        std::vector<double> top(nodes, -std::numeric_limits<double>::infinity()), sum(nodes, 0.0);
        for (int64_t e = 0; e < edges; ++e) {
            z[e] = own[dst[e]] + sent[sender(e)] + (more ? more[e] : 0.0);
            weights[e] = z[e] > 0 ? z[e] : slope * z[e];
            if (!(weights[e] <= top[dst[e]])) top[dst[e]] = weights[e];  // NaN reaches the sum
        }
        for (int64_t e = 0; e < edges; ++e) weights[e] -= top[dst[e]];
        for (int64_t e = 0; e < edges; e += LANES) {
            V some = wide(0.0);
            const int64_t here = std::min<int64_t>(LANES, edges - e);
            std::copy_n(weights + e, here, (double*)&some);
            some = exp_negative(some);
            std::copy_n((const double*)&some, here, weights + e);
        }
        for (int64_t e = 0; e < edges; ++e) sum[dst[e]] += weights[e];
        for (int64_t e = 0; e < edges; ++e) weights[e] /= sum[dst[e]];
    }

    /// Parts of theta_a times the matrices [S, q, width] of all sets: [parts, S, width].
    std::vector<double> times(const T* theta, int64_t width, std::initializer_list<int64_t> parts) const {
        std::vector<double> out(parts.size() * sets * width, 0.0);
        double* to = out.data();
        for (int64_t part : parts)
            for (int64_t s = 0; s < sets; ++s, to += width)
                for (int64_t k = 0; k < q; ++k)
                    for (int64_t i = 0; i < width; ++i)
                        to[i] += (double)theta_a[s * row() + part * q + k] *
                                 (double)theta[(s * q + k) * width + i];
        return out;
    }

    /// Gradients of both factors of a part of `times`; those of the matrices are added to `to`.
    void back(const T* theta, int64_t width, int64_t part, const double* gradient, T* to, T* to_a) const {
        for (int64_t s = 0; s < sets; ++s, gradient += width)
            for (int64_t k = 0; k < q; ++k) {
                const int64_t a = s * row() + part * q + k, first = (s * q + k) * width;
                double sum = 0;
                for (int64_t i = 0; i < width; ++i) {
                    sum += (double)theta[first + i] * gradient[i];
                    to[first + i] += (T)((double)theta_a[a] * gradient[i]);
                }
                to_a[a] = (T)sum;
            }
    }
};

}  // namespace hog

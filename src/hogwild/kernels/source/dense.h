// The small dense arithmetic around a solve: entries of many arrays in another order, affine maps, and
// multilayer perceptrons. For batches of small graphs each of them takes less time than a call of torch.
#pragma once
#include <cstdint>
#include <numeric>
#include <vector>

#include "arena.h"

namespace hog {

/// Write the entries number index[0], index[1], … of all arrays side by side into the arrays `outs`, one
/// behind the other. Behind the last array lies a zero.
template <class From, class To>
void gather_entries(int64_t count, const void* const* arrays, const int64_t* sizes, const int64_t* index,
                    int64_t into, void* const* outs, const int64_t* lengths) {
    int64_t all = 0;
    for (int64_t a = 0; a < count; ++a) all += sizes[a];
    std::vector<double> flat(all + 1, 0.0);
    double* to = flat.data();
    for (int64_t a = 0; a < count; ++a) to = std::copy_n((const From*)arrays[a], sizes[a], to);
    for (int64_t o = 0; o < into; index += lengths[o++])
        for (int64_t i = 0; i < lengths[o]; ++i) ((To*)outs[o])[i] = (To)flat[index[i]];
}

/// A matrix of features or embeddings anywhere in memory: entry c of row n lies at `at[c * column + n *
/// row]`.
template <class T>
struct Table {
    T* at;
    int64_t column, row;

    /// `width` entries of the rows from n on, eight rows side by side; rows behind `rows` are zero.
    void read(int64_t n, int64_t rows, int width, V* out) const {
        for (int c = 0; c < width; ++c) {
            const T* from = at + c * column + n * row;
            V x = wide(0.0);
            for (int l = 0; l < LANES && n + l < rows; ++l) x[l] = (double)from[l * row];
            out[c] = x;
        }
    }
    void write(int64_t n, int64_t rows, int width, const V* x) const {
        for (int c = 0; c < width; ++c)
            for (int l = 0; l < LANES && n + l < rows; ++l)
                at[c * column + (n + l) * row] = (T)x[c][l];
    }
};

/// Vectors that are zero.
class Zeros {
  public:
    explicit Zeros(size_t vectors) : at_(room_.room(vectors)) { std::fill_n(at_, vectors, wide(0.0)); }
    operator V*() const { return at_; }

  private:
    Arena room_;
    V* at_;
};

/// Packs of eight rows that an affine map reads at a time.
constexpr int PACKS = 4;

/// out [T, rows] = weight [T, p] x + shift [T] (nullptr: zero).
inline void project(int64_t T, int64_t p, int64_t rows, const double* weight, const double* shift,
                    const Table<const double>& x, double* out) {
    const Zeros read(p * PACKS);
    for (int64_t n = 0; n < rows; n += PACKS * LANES) {
        for (int b = 0; b < PACKS; ++b) x.read(n + b * LANES, rows, (int)p, read + b * p);
        for (int64_t t = 0; t < T; ++t) {
            V sum[PACKS];
            for (int b = 0; b < PACKS; ++b) sum[b] = wide(shift ? shift[t] : 0.0);
            for (int64_t c = 0; c < p; ++c)
                for (int b = 0; b < PACKS; ++b) sum[b] += weight[t * p + c] * read[b * p + c];
            std::copy_n((const double*)sum, std::min<int64_t>(rows - n, PACKS * LANES),
                        out + t * rows + n);
        }
    }
}

/// Gradients of weight [T, p] and shift [T] of `project`, from those of its result [T, rows].
inline void project_back(int64_t T, int64_t p, int64_t rows, const double* found,
                         const Table<const double>& x, double* weight, double* shift) {
    const Zeros read(p * PACKS), sums(T * (p + 1));
    for (int64_t n = 0; n < rows; n += PACKS * LANES) {
        const int64_t here = std::min<int64_t>(rows - n, PACKS * LANES);
        for (int b = 0; b < PACKS; ++b) x.read(n + b * LANES, rows, (int)p, read + b * p);
        for (int64_t t = 0; t < T; ++t) {
            V g[PACKS] = {};
            std::copy_n(found + t * rows + n, here, (double*)g);
            V* sum = sums + t * (p + 1);
            for (int64_t c = 0; c < p; ++c) {
                V more = g[0] * read[c];
                for (int b = 1; b < PACKS; ++b) more += g[b] * read[b * p + c];
                sum[c] += more;
            }
            for (int b = 0; b < PACKS; ++b) sum[p] += g[b];
        }
    }
    for (int64_t t = 0; t < T; ++t) {
        for (int64_t c = 0; c < p; ++c) weight[t * p + c] = sum_lanes(sums[t * (p + 1) + c]);
        if (shift) shift[t] = sum_lanes(sums[t * (p + 1) + p]);
    }
}

/// Affine layers with leaky ReLUs between them. `T` is the type of parameters, inputs and outputs; what
/// lies between is computed in double precision.
template <class T>
class Perceptron {
  public:
    /// `widths` [layers + 1], the input's first; `arrays` [2 layers]: all weights [R, out, in], then all
    /// biases [R, out].
    Perceptron(int64_t layers, const int64_t* widths, double slope, const void* const* arrays)
        : layers_((int)layers), widths_(widths), slope_(slope), arrays_(arrays),
          units_((size_t)std::accumulate(widths, widths + layers + 1, (int64_t)0)), z_(units_) {
        size_t numbers = 0, units = 0;
        for (int l = 0; l <= layers_; ++l) {
            unit_.push_back(units);
            units += (size_t)widths[l];
        }
        for (int a = 0; a < 2 * layers_; ++a) {
            first_.push_back(numbers);
            numbers += size(a);
        }
        parameters_.resize(numbers);
    }
    int arrays() const { return 2 * layers_; }
    /// Numbers of the parameters of one replica.
    int64_t numbers() const { return (int64_t)parameters_.size(); }
    int in() const { return (int)widths_[0]; }
    int out() const { return (int)widths_[layers_]; }

    /// Read the parameters of a replica.
    void load(int64_t replica) {
        for (int a = 0; a < arrays(); ++a)
            std::copy_n((const T*)arrays_[a] + replica * size(a), size(a),
                        parameters_.data() + first_[a]);
    }

    /// out [rows, out()] of x [rows, in()].
    void forward(int64_t rows, const Table<const T>& x, const Table<T>& out) {
        for (int64_t n = 0; n < rows; n += LANES) {
            evaluate(n, rows, x);
            out.write(n, rows, this->out(), z_ + unit_[layers_]);
        }
    }

    /// Gradients of x, unless `into.at` is null, and of the parameters: `sums` has the arrays of all R
    /// replicas, one array behind the other.
    void backward(int64_t rows, const Table<const T>& x, const Table<const T>& gradient,
                  const Table<T>& into, int64_t replica, int64_t replicas, T* sums) {
        const Zeros total(parameters_.size()), back(units_), next(units_);
        for (int64_t n = 0; n < rows; n += LANES) {
            evaluate(n, rows, x);
            gradient.read(n, rows, out(), back);
            for (int l = layers_ - 1; l >= 0; --l) {
                const int in = (int)widths_[l];
                const double* w = parameters_.data() + first_[l];
                const V* z = z_ + unit_[l];
                V *to = total + first_[l], *bias = total + first_[layers_ + l];
                for (int i = 0; i < in; ++i) next[i] = wide(0.0);
                for (int j = 0; j < widths_[l + 1]; ++j) {
                    bias[j] += back[j];
                    for (int i = 0; i < in; ++i) {
                        to[j * in + i] += back[j] * z[i];
                        next[i] += w[j * in + i] * back[j];
                    }
                }
                // A leaky ReLU is positive where its input is.
                for (int i = 0; i < in; ++i)
                    back[i] = l ? pick(z[i] > 0.0, next[i], slope_ * next[i]) : next[i];
            }
            if (into.at) into.write(n, rows, in(), back);
        }
        for (int a = 0; a < arrays(); ++a)
            for (int64_t i = 0; i < size(a); ++i)
                sums[replicas * first_[a] + replica * size(a) + i] = (T)sum_lanes(total[first_[a] + i]);
    }

  private:
    int layers_;
    const int64_t* widths_;
    double slope_;
    const void* const* arrays_;
    std::vector<size_t> unit_, first_;  // where inputs of layers begin in z_, arrays in parameters_
    std::vector<double> parameters_;
    size_t units_;
    Zeros z_;  // inputs of all layers, and the output

    int64_t size(int a) const {
        return a < layers_ ? widths_[a] * widths_[a + 1] : widths_[a - layers_ + 1];
    }
    void evaluate(int64_t n, int64_t rows, const Table<const T>& x) {
        x.read(n, rows, in(), z_);
        for (int l = 0; l < layers_; ++l) {
            const int in = (int)widths_[l];
            const double *w = parameters_.data() + first_[l],
                         *b = parameters_.data() + first_[layers_ + l];
            const V* z = z_ + unit_[l];
            V* to = z_ + unit_[l + 1];
            for (int j = 0; j < widths_[l + 1]; ++j) {
                V sum = wide(b[j]);
                for (int i = 0; i < in; ++i) sum += w[j * in + i] * z[i];
                to[j] = l + 1 == layers_ ? sum : pick(sum > 0.0, sum, slope_ * sum);
            }
        }
    }
};

/// A readout (hogwild/models/readout.py): a perceptron on every node and, for predictions of graphs, a
/// second one on the mean of the nodes of every graph.
template <class T>
struct Reading {
    int64_t replicas, rows, graphs;     // graphs: -1 where nodes are predicted
    int64_t h_replica, h_row, h_column; // strides of the embeddings
    const int64_t* batch;               // [rows], or nullptr: one graph
    Perceptron<T> node, graph;

    int64_t of(int64_t n) const { return batch ? batch[n] : 0; }
    Table<const T> embeddings(const void* h, int64_t r) const {
        return {(const T*)h + r * h_replica, h_column, h_row};
    }
    template <class Any>
    static Table<Any> plain(Any* at, int width) {
        return {at, 1, width};
    }
    /// One over the number of nodes of every graph.
    std::vector<double> shares() const {
        std::vector<double> out(graphs, 0.0);
        for (int64_t n = 0; n < rows; ++n) out[of(n)] += 1.0;
        for (double& each : out) each = 1.0 / std::max(each, 1.0);
        return out;
    }

    /// Predictions [R, rows or graphs, out]; `mean` [R, graphs, out] gets the means of the graphs.
    void forward(const void* h, T* mean, T* out) {
        const int width = node.out();
        std::vector<T> each(graphs < 0 ? 0 : rows * width);
        const std::vector<double> share = graphs < 0 ? std::vector<double>() : shares();
        for (int64_t r = 0; r < replicas; ++r) {
            node.load(r);
            T* to = graphs < 0 ? out + r * rows * width : each.data();
            node.forward(rows, embeddings(h, r), plain(to, width));
            if (graphs < 0) continue;
            std::vector<double> sum(graphs * width, 0.0);
            for (int64_t n = 0; n < rows; ++n)
                for (int c = 0; c < width; ++c) sum[of(n) * width + c] += (double)each[n * width + c];
            T* here = mean + r * graphs * width;
            for (int64_t i = 0; i < graphs * width; ++i) here[i] = (T)(sum[i] * share[i / width]);
            graph.load(r);
            graph.forward(graphs, plain((const T*)here, width),
                          plain(out + r * graphs * graph.out(), graph.out()));
        }
    }

    /// Gradients of the embeddings, laid out like them, unless `into` is null, and of all parameters.
    void backward(const void* h, const T* mean, const T* gradient, T* into, T* sums) {
        const int width = node.out();
        std::vector<T> of_mean(graphs < 0 ? 0 : graphs * width), each(graphs < 0 ? 0 : rows * width);
        const std::vector<double> share = graphs < 0 ? std::vector<double>() : shares();
        for (int64_t r = 0; r < replicas; ++r) {
            const T* from = gradient + r * rows * width;
            if (graphs >= 0) {
                graph.load(r);
                graph.backward(graphs, plain(mean + r * graphs * width, width),
                               plain(gradient + r * graphs * graph.out(), graph.out()),
                               plain(of_mean.data(), width), r, replicas,
                               sums + replicas * node.numbers());
                for (int64_t n = 0; n < rows; ++n)
                    for (int c = 0; c < width; ++c)
                        each[n * width + c] = (T)(of_mean[of(n) * width + c] * share[of(n)]);
                from = each.data();
            }
            node.load(r);
            node.backward(rows, embeddings(h, r), plain(from, width),
                          Table<T>{into ? into + r * h_replica : nullptr, h_column, h_row}, r,
                          replicas, sums);
        }
    }
};

}  // namespace hog

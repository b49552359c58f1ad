// Products with the Hessian of one graph and replica (energy.h), in double or in single precision, on a
// CPU: the linear map of conjugate gradients (krylov.h). A product costs as much as the networks.
#pragma once
#include "vectors.h"

namespace hog {

#if !HOG_GPU
/// 64 bytes of numbers of type T.
template <class T>
struct Wide {
    typedef typename Vector<T, 64>::type type;
    static constexpr int lanes = 64 / sizeof(T);
};

/// Rows of numbers in packs (Rows in shapes.h), in any precision.
template <class T>
struct Grid {
    typedef typename Wide<T>::type P;
    static constexpr int lanes = Wide<T>::lanes;
    P* data;
    int fields;
    P* pack(int b) const { return data + (size_t)b * fields; }
    T& at(int i, int f) const {
        const unsigned row = (unsigned)i;
        return ((T*)data)[((size_t)(row / lanes) * fields + f) * lanes + row % lanes];
    }
};

/// Eight numbers anywhere in memory.
template <class T>
using Eight = Vector<T, 8 * sizeof(T)>;

/// A pack from the eights of its rows.
inline Wide<double>::type row_of(const double* const* rows, int i, int c) {
    return Eight<double>::load(rows[i] + c);
}
inline Wide<float>::type row_of(const float* const* rows, int i, int c) {
    return joined<Wide<float>::type>(Eight<float>::load(rows[i] + c), Eight<float>::load(rows[8 + i] + c));
}
/// The reverse, for rows below `count`.
inline void part(const Wide<double>::type& x, double* const* rows, int i, int c, int count) {
    if (i < count) Eight<double>::store(x, rows[i] + c);
}
inline void part(const Wide<float>::type& x, float* const* rows, int i, int c, int count) {
    Eight<float>::type low, high;
    halves(x, low, high);
    if (i < count) Eight<float>::store(low, rows[i] + c);
    if (8 + i < count) Eight<float>::store(high, rows[8 + i] + c);
}

/// The numbers of a node in a vector of conjugate gradients: whole groups of eight.
inline int padded(int k) { return (k + 7) / 8 * 8; }

/// Products with the Hessian at the point of a task's last `differentiate`. Vectors have `stride`
/// numbers a node, of which those behind the first k are zero. In double precision everything but the
/// vectors is the task's; in single precision `memory` holds copies of contexts, slopes and curvatures.
template <class T, class Task>
class Hessian {
  public:
    typedef typename Wide<T>::type P;
    typedef typename Eight<T>::type E;
    static constexpr int lanes = Wide<T>::lanes;
    static constexpr bool copies = sizeof(T) < sizeof(double);
    const int stride;

    static int packs(int rows) { return (rows + lanes - 1) / lanes; }

    /// Vectors of memory for messages, in double precision.
    template <class S>
    static size_t rows(const S& s, int n, int e) {
        return (size_t)(n + e) * padded(s.merged()) / 8;
    }

    /// Vectors of memory for the copies.
    template <class S>
    static size_t vectors(const S& s, int n, int e) {
        const auto &me = s.message(), &lo = s.loop(), &up = s.update();
        return (size_t)packs(e) * s.heads() * (me.context() + 2 * me.hidden() + 1) +
               (size_t)packs(n) * (lo.context() + up.context() + 2 * (lo.hidden() + up.hidden()) + 1) +
               packs(s.parameters());
    }

    Hessian(Task& of, V* memory, V* rows)
        : stride(padded(of.s().k())), t(of), K(of.s().k()), C(of.s().channels()), H(of.s().heads()),
          M(of.s().merged()), ends(of.s().ends()), parameters((T*)of.at_.parameters),
          G((T*)of.G.data), across(padded(M)), sent((T*)rows), bent(sent + (size_t)of.v.e * across) {
        auto same = [&](Grid<T>& to, const Rows& from) { to = Grid<T>{(P*)from.data, from.fields}; };
        same(tm, t.tm), same(tl, t.tl), same(tu, t.tu);
        same(md, t.md), same(mt, t.mt);
        size_t used = 0;
        auto own = [&](Grid<T>& to, const Rows& from, int fields, int count) {
            to = Grid<T>{copies ? (P*)(memory + used) : (P*)from.data, copies ? fields : from.fields};
            used += (size_t)fields * count;
        };
        const auto &me = t.s().message(), &lo = t.s().loop(), &up = t.s().update();
        const int E = packs(t.v.e) * H, N = packs(t.v.n);
        own(qm, t.qm, me.context(), E), own(ql, t.ql, lo.context(), N), own(qu, t.qu, up.context(), N);
        own(sm, t.sm, me.hidden(), E), own(sl, t.sl, lo.hidden(), N), own(su, t.su, up.hidden(), N);
        own(bm, t.bm, me.hidden(), E), own(bl, t.bl, lo.hidden(), N), own(bu, t.bu, up.hidden(), N);
        own(wt, t.wt, 1, E), own(lw, t.lw, 1, N);
        if (copies) parameters = (T*)(memory + used);
    }

    /// The weight of all messages that a node hears, sends and tells itself.
    double mass(int i) const {
        auto weight = [&](int q) {
            double w = 0;
            for (int hd = 0; hd < H; ++hd)
                w += std::fabs(t.wt.at((q / LANES * H + hd) * LANES + q % LANES, 0));
            return w / H;
        };
        double mine = std::fabs(t.lw.at(i, 0));
        for (int q = t.v.ptr[i]; q < t.v.ptr[i + 1]; ++q) mine += weight(q);
        for (int o = t.v.out_ptr[i]; o < t.v.out_ptr[i + 1]; ++o) mine += weight(t.v.out_edge[o]);
        return mine;
    }
    /// The largest mass of a node, divided by the mean, and the mean.
    double spread(double& mean) const {
        const auto& team = t.team;
        double largest = 0, none = 0;
        mean = 0;
        HOG_PACKS(i, t.v.n) {
            const double mine = mass(i) / t.v.n;
            largest = std::fmax(largest, mine);
            mean += mine;
        }
        team.max(largest, none);
        team.sum(mean, none);
        return largest * t.v.n / mean;
    }

    /// Copy what no iteration changes.
    void copy_contexts() const {
        if constexpr (!copies) return;
        const auto& team = t.team;
        const int count = t.s().parameters();
        HOG_PACKS(i, count) const_cast<T*>(parameters)[i] = (T)t.at_.parameters[i];
        copy(t.qm, qm, H, t.v.e), copy(t.ql, ql, 1, t.v.n), copy(t.qu, qu, 1, t.v.n);
        copy(t.wt, wt, H, t.v.e), copy(t.lw, lw, 1, t.v.n);
    }

    /// Copy the slopes and curvatures of the point.
    void copy_point() const {
        if constexpr (!copies) return;
        copy(t.sm, sm, H, t.v.e), copy(t.sl, sl, 1, t.v.n), copy(t.su, su, 1, t.v.n);
        copy(t.bm, bm, H, t.v.e), copy(t.bl, bl, 1, t.v.n), copy(t.bu, bu, 1, t.v.n);
        t.team.sync();
    }

    /// Tangents md of the messages and mt = (U (md, x))_m along x; `out` gets what a node sends to
    /// itself, through its own message, through its update and through beta.
    void tangents(const T* x, T* out) const {
        const auto& team = t.team;
        const auto& s = t.s();
        HOG_PACKS(b, packs(t.v.e)) {
            P* pad = (P*)t.pad_;
            HOG_LOCAL_OF(P, y, ends * K);
            HOG_LOCAL_OF(P, one, C);
            HOG_LOCAL_OF(P, sum, M);
            const T *own[lanes], *other[lanes];
            for (int l = 0; l < lanes; ++l) {
                const int q = std::min(b * lanes + l, t.v.e - 1);
                own[l] = x + (size_t)t.v.dst[q] * stride;
                other[l] = x + (size_t)t.v.src[q] * stride;
            }
            if (ends == 2) read(own, K, y, 2);
            read(other, K, y + ends - 1, ends);
            for (int c = 0; c < M; ++c) sum[c] = P{};
            for (int hd = 0; hd < H; ++hd) {
                const int at = b * H + hd, first = s.concat() ? hd * C : 0;
                tangent(s.message(), head(hd), qm.pack(at), sm.pack(at), y, tm.pack(at), one, pad);
                const P w = wt.pack(at)[0];
                for (int c = 0; c < C; ++c) sum[first + c] += w * one[c];
            }
            T* to[lanes];
            for (int l = 0; l < lanes; ++l) to[l] = sent + (size_t)(b * lanes + l) * across;
            write(sum, M, 1, to, std::min(lanes, t.v.e - b * lanes));
        }
        team.sync();
        HOG_PACKS(b, packs(t.v.n)) {
            P* pad = (P*)t.pad_;
            HOG_LOCAL_OF(P, y, M + K);
            HOG_LOCAL_OF(P, one, M);
            HOG_LOCAL_OF(P, back, M + K);
            HOG_LOCAL_OF(P, more, K);
            HOG_LOCAL_OF(P, heard, M);
            const int some = std::min(lanes, t.v.n - b * lanes);
            const T* own[lanes];
            T* to[lanes];
            for (int l = 0; l < lanes; ++l) {
                const int i = std::min(b * lanes + l, t.v.n - 1);
                own[l] = x + (size_t)i * stride;
                to[l] = bent + (size_t)i * across;
            }
            read(own, K, y + M, 1);
            tangent(s.loop(), loop(), ql.pack(b), sl.pack(b), y + M, tl.pack(b), one, pad);
            const P w = lw.pack(b)[0];
            for (int l = 0; l < some; ++l) {
                const int i = b * lanes + l;
                for (int c = 0; c < across; c += 8) {
                    E sum = E{};
                    for (int q = t.v.ptr[i]; q < t.v.ptr[i + 1]; ++q)
                        sum += Eight<T>::load(sent + (size_t)q * across + c);
                    Eight<T>::store(sum, to[l] + c);
                }
            }
            read(to, M, heard, 1);
            for (int c = 0; c < M; ++c) y[c] = heard[c] + w * one[c];
            tangent(s.update(), update(), qu.pack(b), su.pack(b), y, tu.pack(b), one, pad);
            one[0] = P{};
            curve(s.update(), update(), qu.pack(b), su.pack(b), bu.pack(b), tu.pack(b), one, back, pad);
            write(back, M, 1, to, some);
            if (!copies)
                for (int c = 0; c < M; ++c) md.pack(b)[c] = y[c], mt.pack(b)[c] = back[c];
            for (int c = 0; c < M; ++c) one[c] = w * back[c];
            curve(s.loop(), loop(), ql.pack(b), sl.pack(b), bl.pack(b), tl.pack(b), one, more, pad);
            const T beta = (T)s.beta();
            for (int c = 0; c < K; ++c) more[c] += back[M + c] + beta * y[M + c];
            for (int l = 0; l < lanes; ++l) to[l] = out + (size_t)(b * lanes + l) * stride;
            write(more, K, 1, to, some);
        }
        team.sync();
    }

    /// out = H x.
    void product(const T* x, T* out) const {
        tangents(x, out);
        const auto& team = t.team;
        const auto& s = t.s();
        HOG_PACKS(b, packs(t.v.e)) {
            P* pad = (P*)t.pad_;
            HOG_LOCAL_OF(P, heard, M);
            HOG_LOCAL_OF(P, weights, C);
            HOG_LOCAL_OF(P, back, ends * K);
            HOG_LOCAL_OF(P, sum, ends * K);
            const T* from[lanes];
            for (int l = 0; l < lanes; ++l)
                from[l] = bent + (size_t)t.v.dst[std::min(b * lanes + l, t.v.e - 1)] * across;
            read(from, M, heard, 1);
            for (int hd = 0; hd < H; ++hd) {
                const int at = b * H + hd, first = s.concat() ? hd * C : 0;
                const P w = wt.pack(at)[0];
                for (int c = 0; c < C; ++c) weights[c] = w * heard[first + c];
                curve(s.message(), head(hd), qm.pack(at), sm.pack(at), bm.pack(at), tm.pack(at), weights,
                      hd ? back : sum, pad);
                if (hd)
                    for (int i = 0; i < ends * K; ++i) sum[i] += back[i];
            }
            T* to[lanes];
            for (int end = 0; end < ends; ++end) {
                for (int l = 0; l < lanes; ++l)
                    to[l] = G + ((size_t)(b * lanes + l) * ends + end) * stride;
                write(sum + end, K, ends, to, std::min(lanes, t.v.e - b * lanes));
            }
        }
        team.sync();
        HOG_PACKS(i, t.v.n) {
            T* to = out + (size_t)i * stride;
            if (t.held(i)) {
                std::memcpy(to, x + (size_t)i * stride, stride * sizeof(T));
                continue;
            }
            auto add = [&](int q, int end) {
                const T* from = G + ((size_t)q * ends + end) * stride;
                for (int c = 0; c < stride; c += 8)
                    Eight<T>::store(Eight<T>::load(to + c) + Eight<T>::load(from + c), to + c);
            };
            if (ends == 2)
                for (int q = t.v.ptr[i]; q < t.v.ptr[i + 1]; ++q) add(q, 0);
            for (int o = t.v.out_ptr[i]; o < t.v.out_ptr[i + 1]; ++o) add(t.v.out_edge[o], ends - 1);
        }
        team.sync();
    }

  private:
    Task& t;
    const int K, C, H, M, ends;
    const T* parameters;
    T* const G;         // what the edges send to their ends, [e, ends, stride]
    const int across;   // numbers of a message, padded
    T *const sent, *const bent;  // tangents of the edges' messages [e, across], and mt [n, across]
    Grid<T> qm, ql, qu, sm, sl, su, bm, bl, bu, tm, tl, tu, wt, lw, md, mt;

    const T* head(int hd) const { return parameters + hd * t.s().message().parameters(); }
    const T* loop() const { return head(H); }
    const T* update() const { return loop() + t.s().loop().parameters(); }

    /// `columns` columns of the rows of a pack; column c goes to y[c * step].
    static void read(const T* const* rows, int columns, P* y, int step) {
        for (int c0 = 0; c0 < columns; c0 += 8) {
            P a[8];
            for (int i = 0; i < 8; ++i) a[i] = row_of(rows, i, c0);
            turn<8>(a);
            if (c0 + 8 <= columns)
                for (int c = 0; c < 8; ++c) y[(c0 + c) * step] = a[c];
            else
                for (int c = 0; c0 + c < columns; ++c) y[(c0 + c) * step] = a[c];
        }
    }

    /// The reverse: `count` rows of the columns x[c * step]; numbers behind the columns are zero.
    static void write(const P* x, int columns, int step, T* const* rows, int count) {
        for (int c0 = 0; c0 < columns; c0 += 8) {
            P a[8];
            for (int c = 0; c < 8; ++c) a[c] = c0 + c < columns ? x[(c0 + c) * step] : P{};
            turn<8>(a);
            if (count >= lanes)
                for (int i = 0; i < 8; ++i) part(a[i], rows, i, c0, lanes);
            else
                for (int i = 0; i < 8; ++i) part(a[i], rows, i, c0, count);
        }
    }

    /// Two packs of eight rows become one of sixteen, for each of `sets` sets of fields.
    void copy(const Rows& from, const Grid<T>& to, int sets, int rows) const {
        const auto& team = t.team;
        const int last = (rows - 1) / LANES;
        HOG_PACKS(b, packs(rows))
        for (int set = 0; set < sets; ++set) {
            const double* low = (const double*)from.pack(2 * b * sets + set);
            const double* high = (const double*)from.pack(std::min(2 * b + 1, last) * sets + set);
            T* into = (T*)to.pack(b * sets + set);
            for (int f = 0; f < to.fields; ++f, into += 2 * LANES, low += LANES, high += LANES) {
                for (int l = 0; l < LANES; ++l) into[l] = (T)low[l];
                for (int l = 0; l < LANES; ++l) into[LANES + l] = (T)high[l];
            }
        }
    }
};
#endif

}  // namespace hog

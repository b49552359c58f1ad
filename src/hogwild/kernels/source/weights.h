// Part of picnn.h: products of weights with a pack of rows. On a CPU a few rows of a matrix share what is
// read, and their sums are in registers.
#pragma once

namespace hog {

// W [rows, cols] with numbers in(j), and W' with numbers c.
#if HOG_GPU
/// out[i] += sum over j of W[i, j] in(j).
template <class T, class P, class In>
HOG_FN void add_rows(const T* W, int rows, int cols, const In& in, P* out) {
    HOG_EACH(i, rows) HOG_EACH(j, cols) out[i] += W[i * cols + j] * in(j);
}
/// out(j, sum over i of W[i, j] c[i]).
template <class T, class P, class Out>
HOG_FN void each_column(const T* W, int rows, int cols, const P* c, const Out& out) {
    HOG_EACH(j, cols) {
        P sum = P{};
        HOG_EACH(i, rows) sum += W[i * cols + j] * c[i];
        out(j, sum);
    }
}
#else
/// A number that a template knows.
template <int I>
struct Int {
    static constexpr int value = I;
};

// Whether the registers hold eight sums of 64 bytes. AVX2 has 16 registers of 32 bytes: four sums.
#if defined(__AVX512F__)
constexpr bool MANY_REGISTERS = true;
#else
constexpr bool MANY_REGISTERS = false;
#endif

/// `some(Int<R>, i)` for blocks of R rows from row i on.
template <class Do>
HOG_FN void in_blocks(int rows, const Do& some) {
    int i = 0;
    if (MANY_REGISTERS)
        for (; i + 8 <= rows; i += 8) some(Int<8>{}, i);
    for (; i + 4 <= rows; i += 4) some(Int<4>{}, i);
    if (i + 2 <= rows) some(Int<2>{}, i), i += 2;
    if (i < rows) some(Int<1>{}, i);
}

template <int R, class T, class P, class In>
HOG_FN void add_some_rows(const T* W, int cols, const In& in, P* out) {
    P sum[R], more[R];  // two sums a row where there are few rows: additions wait for each other
    for (int r = 0; r < R; ++r) sum[r] = out[r], more[r] = P{};
    int j = 0;
    if (R < 4)
        for (; j + 2 <= cols; j += 2) {
            const P x = in(j), y = in(j + 1);
            for (int r = 0; r < R; ++r) {
                sum[r] += W[r * cols + j] * x;
                more[r] += W[r * cols + j + 1] * y;
            }
        }
    for (; j < cols; ++j) {
        const P x = in(j);
        for (int r = 0; r < R; ++r) sum[r] += W[r * cols + j] * x;
    }
    for (int r = 0; r < R; ++r) out[r] = R < 4 ? sum[r] + more[r] : sum[r];
}
template <int R, class T, class P, class Out>
HOG_FN void each_column_of(const T* W, int cols, const P* c, const Out& out) {
    P held[R];
    for (int r = 0; r < R; ++r) held[r] = c[r];
    for (int j = 0; j < cols; ++j) {
        P sum = W[j] * held[0];
        for (int r = 1; r < R; ++r) sum += W[r * cols + j] * held[r];
        out(j, sum);
    }
}
/// out[i] += sum over j of W[i, j] in(j).
template <class T, class P, class In>
HOG_FN void add_rows(const T* W, int rows, int cols, const In& in, P* out) {
    in_blocks(rows, [&](auto some, int i) {
        add_some_rows<some.value>(W + i * cols, cols, in, out + i);
    });
}
/// out(j, x) for parts x of the sum over i of W[i, j] c[i]: once for every block of rows.
template <class T, class P, class Out>
HOG_FN void each_column(const T* W, int rows, int cols, const P* c, const Out& out) {
    in_blocks(rows, [&](auto some, int i) {
        each_column_of<some.value>(W + i * cols, cols, c + i, out);
    });
}
#endif

// The weights on the inputs of a network, Wy_l of all layers l, are read in one of two ways. From plain
// weights every layer reads its own, where it needs them. From `Weights` one sweep over the inputs
// serves all layers: before the first layer, or, in a reverse pass, behind the last one.

/// Whether one sweep serves all layers.
template <class W>
struct ByColumns {
    static constexpr bool value = false;
};
template <class N, class T, class P, class In>
HOG_FN void sweep(HOG_NET, const T*, In, const P*, P*) {}
template <class N, class T, class P, class In>
HOG_FN void sweep_back(HOG_NET, const T*, In, const P*, P*) {}
/// x += Wy_l (gy_l * y); `swept` is what `sweep` found.
template <class N, class T, class P, class In>
HOG_FN void add_layer(HOG_NET net, const T* W, In q, int l, const P* y, const P*, P* x) {
    const int at = net.q(l);
    add_rows(W + net.p(l), net.w(l), net.D(), [&](int j) { return q[at + j] * y[j]; }, x);
}
/// out += gy_l * Wy_l' c, or `all` keeps c for `sweep_back`.
template <class N, class T, class P, class In>
HOG_FN void send_layer(HOG_NET net, const T* W, In q, int l, const P* c, P*, P* out) {
    const int at = net.q(l);
    if (l + 1 == net.L()) HOG_EACH(j, net.D()) out[j] = P{};
    each_column(W + net.p(l), net.w(l), net.D(), c,
                [&](int j, const P& x) { out[j] += q[at + j] * x; });
}

/// Cotangents of one layer's gates and weights on the inputs (`cotangents`), from those of its
/// pre-activations, `al`, and of their tangents, `ga`.
template <class N, class T, class P, class In, class Out, class Sum>
HOG_FN void layer_cotangents(HOG_NET net, const T* W, In q, int l, const P* y, const P* t, const P* al,
                             const P* ga, Out qb, Sum wb) {
    const int at = net.q(l), first = net.p(l), D = net.D();
    HOG_EACH(j, D) {
        P sum = P{}, sum_t = P{};
        HOG_EACH(i, net.w(l)) {
            sum += W[first + i * D + j] * al[i];
            sum_t += W[first + i * D + j] * ga[i];
        }
        qb[at + j] = sum * y[j] + sum_t * t[j];
        const P gy = q[at + j] * y[j], gt = q[at + j] * t[j];
        HOG_EACH(i, net.w(l)) wb.add(first + i * D + j, al[i] * gy + ga[i] * gt);
    }
}
/// Where the sums of a layer's weights Wz begin.
template <class N, class T>
HOG_FN int hidden_sums(HOG_NET net, const T*, int l) {
    return net.p(l) + net.w(l) * net.D();
}

#if HOG_GPU
/// o = F u + c with F [rows, cols].
template <class P>
HOG_FN void affine(const double* F, const double* c, int rows, int cols, const P* u, P* o) {
    HOG_EACH(i, rows) {
        P x = c[i];
        HOG_EACH(j, cols) x += F[i * cols + j] * u[j];
        o[i] = x;
    }
}
/// ub = F' ob, and ob u' is added to fb.
template <class P, class Sum>
HOG_FN void affine_reverse(const double* F, int rows, int cols, const P* u, const P* ob, P* ub, Sum fb) {
    HOG_EACH(j, cols) ub[j] = P{};
    HOG_EACH(i, rows) {
        HOG_EACH(j, cols) {
            fb.add(i * cols + j, ob[i] * u[j]);
            ub[j] += F[i * cols + j] * ob[i];
        }
    }
}
#endif

#if !HOG_GPU
/// The weights of a network, and once more those on its inputs, by columns: [D, hidden + out], with the
/// rows of all layers side by side.
template <class T>
struct Weights {
    const T *rows, *columns;
    operator const T*() const { return rows; }
};

template <class T>
struct ByColumns<Weights<T>> {
    static constexpr bool value = true;
};

/// x[r] = sum over j of W[j, r] gate[j] y[j], for R of the `rows` rows of W.
template <int R, class T, class P>
HOG_FN void sweep_some(const T* W, int rows, int D, const P* gate, const P* y, P* x) {
    P sum[R] = {}, more[R] = {};  // two sums a row where there are few rows
    int j = 0;
    if (R < 4)
        for (; j + 2 <= D; j += 2) {
            const P a = gate[j] * y[j], b = gate[j + 1] * y[j + 1];
            for (int r = 0; r < R; ++r) {
                sum[r] += W[j * rows + r] * a;
                more[r] += W[(j + 1) * rows + r] * b;
            }
        }
    for (; j < D; ++j) {
        const P a = gate[j] * y[j];
        for (int r = 0; r < R; ++r) sum[r] += W[j * rows + r] * a;
    }
    for (int r = 0; r < R; ++r) x[r] = R < 4 ? sum[r] + more[r] : sum[r];
}
/// The same for all rows of three layers of widths A, B and C.
template <int A, int B, int C, class T, class P>
HOG_FN void sweep_three(const T* W, int D, const P* first, const P* second, const P* third, const P* y,
                        P* x) {
    P sum[A + B + C] = {};
    for (int j = 0; j < D; ++j, W += A + B + C) {
        const P a = first[j] * y[j], b = second[j] * y[j], c = third[j] * y[j];
        for (int r = 0; r < A; ++r) sum[r] += W[r] * a;
        for (int r = 0; r < B; ++r) sum[A + r] += W[A + r] * b;
        for (int r = 0; r < C; ++r) sum[A + B + r] += W[A + B + r] * c;
    }
    for (int r = 0; r < A + B + C; ++r) x[r] = sum[r];
}
/// out[j] += gate[j] sum over R rows r of W[j, r] c[r]; `fresh`: = instead of +=.
template <int R, class T, class P>
HOG_FN void sweep_some_back(const T* W, int rows, int D, const P* gate, const P* c, bool fresh, P* out) {
    P held[R];
    for (int r = 0; r < R; ++r) held[r] = c[r];
    for (int j = 0; j < D; ++j) {
        P sum = W[j * rows] * held[0];
        for (int r = 1; r < R; ++r) sum += W[j * rows + r] * held[r];
        out[j] = fresh ? gate[j] * sum : out[j] + gate[j] * sum;
    }
}
template <int A, int B, int C, class T, class P>
HOG_FN void sweep_three_back(const T* W, int D, const P* first, const P* second, const P* third,
                             const P* c, P* out) {
    P held[A + B + C];
    for (int r = 0; r < A + B + C; ++r) held[r] = c[r];
    for (int j = 0; j < D; ++j, W += A + B + C) {
        P a = W[0] * held[0], b = W[A] * held[A], d = W[A + B] * held[A + B];
        for (int r = 1; r < A; ++r) a += W[r] * held[r];
        for (int r = 1; r < B; ++r) b += W[A + r] * held[A + r];
        for (int r = 1; r < C; ++r) d += W[A + B + r] * held[A + B + r];
        out[j] = first[j] * a + (second[j] * b + third[j] * d);
    }
}

/// `wide(A, B, C)` for the widths of three layers whose rows fit into the registers: those that a model
/// has by default. Otherwise false.
template <class N, class Do>
HOG_FN bool in_registers(HOG_NET net, const Do& wide) {
    if (!MANY_REGISTERS || net.L() != 3) return false;
    const int a = net.w(0), b = net.w(1), c = net.w(2);
#define HOG_SHAPE(A, B, C)                       \
    if (a == A && b == B && c == C) {            \
        wide(Int<A>{}, Int<B>{}, Int<C>{});      \
        return true;                             \
    }
    HOG_SHAPE(8, 8, 4)
    HOG_SHAPE(8, 8, 1)
    HOG_SHAPE(4, 4, 2)
    HOG_SHAPE(4, 4, 1)
#undef HOG_SHAPE
    return false;
}

/// x = Wy_l (gy_l * y) of all layers l, side by side.
template <class N, class T, class P>
HOG_FN void sweep(HOG_NET net, const Weights<T>& W, const P* q, const P* y, P* x) {
    const int D = net.D(), rows = net.hidden() + net.out();
    if (in_registers(net, [&](auto a, auto b, auto c) {
            sweep_three<a.value, b.value, c.value>(W.columns, D, q, q + net.q(1), q + net.q(2), y, x);
        }))
        return;
    for (int l = 0; l < net.L(); ++l)
        in_blocks(net.w(l), [&](auto some, int i) {
            const int row = net.unit(l) + i;
            sweep_some<some.value>(W.columns + row, rows, D, q + net.q(l), y, x + row);
        });
}
/// out = sum over layers l of gy_l * Wy_l' c_l, with the c_l side by side.
template <class N, class T, class P>
HOG_FN void sweep_back(HOG_NET net, const Weights<T>& W, const P* q, const P* c, P* out) {
    const int D = net.D(), rows = net.hidden() + net.out();
    if (in_registers(net, [&](auto a, auto b, auto d) {
            sweep_three_back<a.value, b.value, d.value>(W.columns, D, q, q + net.q(1), q + net.q(2), c,
                                                        out);
        }))
        return;
    for (int l = 0; l < net.L(); ++l)
        in_blocks(net.w(l), [&](auto some, int i) {
            const int row = net.unit(l) + i;
            sweep_some_back<some.value>(W.columns + row, rows, D, q + net.q(l), c + row, row == 0, out);
        });
}
template <class N, class T, class P, class In>
HOG_FN void add_layer(HOG_NET net, const Weights<T>&, In, int l, const P*, const P* swept, P* x) {
    for (int i = 0; i < net.w(l); ++i) x[i] += swept[net.unit(l) + i];
}
template <class N, class T, class P, class In>
HOG_FN void send_layer(HOG_NET net, const Weights<T>&, In, int l, const P* c, P* all, P*) {
    for (int i = 0; i < net.w(l); ++i) all[net.unit(l) + i] = c[i];
}

/// The sums of gradients lie as the columns of `Weights` do, and behind them are those of all Wz.
template <class N, class T>
HOG_FN int hidden_sums(HOG_NET net, const Weights<T>&, int l) {
    return net.columns() + net.p(l) - net.unit(l) * net.D();
}
/// Where the sum of weight i lies.
template <class N>
HOG_FN int sum_of(HOG_NET net, int i) {
    const int D = net.D(), all = net.hidden() + net.out();
    int l = 0;
    while (l + 1 < net.L() && net.p(l + 1) <= i) ++l;
    const int within = i - net.p(l);
    if (within >= net.w(l) * D)
        return net.columns() + net.p(l) - net.unit(l) * D + within - net.w(l) * D;
    return within % D * all + net.unit(l) + within / D;
}
template <int R, class T, class P>
HOG_FN void some_cotangents(const T* W, int rows, int D, const P* gate, const P* y, const P* t,
                            const P* al, const P* ga, bool fresh, P* qb, P* sums) {
    P a[R], g[R];
    for (int r = 0; r < R; ++r) a[r] = al[r], g[r] = ga[r];
    for (int j = 0; j < D; ++j, W += rows, sums += rows) {
        const P gy = gate[j] * y[j], gt = gate[j] * t[j];
        P sum = W[0] * a[0], sum_t = W[0] * g[0];
        sums[0] += a[0] * gy + g[0] * gt;
        for (int r = 1; r < R; ++r) {
            sum += W[r] * a[r];
            sum_t += W[r] * g[r];
            sums[r] += a[r] * gy + g[r] * gt;
        }
        const P x = sum * y[j] + sum_t * t[j];
        qb[j] = fresh ? x : qb[j] + x;
    }
}
template <class N, class T, class P, class Sum>
HOG_FN void layer_cotangents(HOG_NET net, const Weights<T>& W, const P* q, int l, const P* y, const P* t,
                             const P* al, const P* ga, P* qb, Sum wb) {
    in_blocks(net.w(l), [&](auto some, int i) {
        const int row = net.unit(l) + i;
        some_cotangents<some.value>(W.columns + row, net.hidden() + net.out(), net.D(), q + net.q(l), y,
                                    t, al + i, ga + i, i == 0, qb + net.q(l), wb.to + row);
    });
}

/// o = F u + c with F [rows, cols].
template <class P>
HOG_FN void affine(const double* F, const double* c, int rows, int cols, const P* u, P* o) {
    for (int i = 0; i < rows; ++i) o[i] = P{} + c[i];
    in_blocks(cols, [&](auto some, int first) {
        constexpr int R = some.value;
        P held[R];
        for (int r = 0; r < R; ++r) held[r] = u[first + r];
        for (int i = 0; i < rows; ++i) {
            P x = o[i];
            for (int r = 0; r < R; ++r) x += F[i * cols + first + r] * held[r];
            o[i] = x;
        }
    });
}
/// ub = F' ob, and ob u' is added to fb.
template <class P, class Sum>
HOG_FN void affine_reverse(const double* F, int rows, int cols, const P* u, const P* ob, P* ub, Sum fb) {
    in_blocks(cols, [&](auto some, int first) {
        constexpr int R = some.value;
        P held[R], sum[R] = {};
        for (int r = 0; r < R; ++r) held[r] = u[first + r];
        P* sums = fb.to + first;
        for (int i = 0; i < rows; ++i, sums += cols) {
            const P x = ob[i];
            for (int r = 0; r < R; ++r) {
                sums[r] += x * held[r];
                sum[r] += F[i * cols + first + r] * x;
            }
        }
        for (int r = 0; r < R; ++r) ub[first + r] = sum[r];
    });
}

/// The columns of `Weights` from the rows.
template <class N, class T>
HOG_FN void write_columns(HOG_NET net, const T* rows, T* columns) {
    const int D = net.D(), all = net.hidden() + net.out();
    for (int l = 0; l < net.L(); ++l)
        for (int i = 0; i < net.w(l); ++i)
            for (int j = 0; j < D; ++j)
                columns[j * all + net.unit(l) + i] = rows[net.p(l) + i * D + j];
}
#endif

}  // namespace hog

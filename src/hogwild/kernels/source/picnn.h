// Partially input-convex networks on rows of features, with derivatives in closed form.
//
// For fixed features a network is a convex function of y (hogwild_node/picnn.py has the proof):
//     a_l = Wz_l (z_l * gz_l) + Wy_l (y * gy_l) + b_l,    z_(l+1) = g(a_l),    f(y) = a_(L-1).
// The gates gy and gz and the biases b are affine in a feature path u (hogwild_node/networks.py):
//     o_l = F_l u_l + c_l = (before u_(l+1) | before gz_l | before gy_l | b_l).
// The caller computes o_0, which reads the features themselves; everything behind it is here.
//
// Every function works on one pack of rows. `q` holds the gates and biases of the pack (its
// context), `s` and `a` the slopes and the pre-activations of the hidden units.
#pragma once
#include "vectors.h"

namespace hog {

constexpr double FEATURE_SLOPE = 0.1;  // of the leaky ReLU on the feature path
constexpr int MOST_LAYERS = 12;

// A GPU's code is compiled for one model: sizes are constants, loops are unrolled and scratch memory
// is an array, mostly in registers. On a CPU, `pad` is scratch memory that the caller owns; what a
// function takes of it ends with the function.
#if HOG_GPU
#define HOG_LOCAL_OF(P, name, count) \
    P name[(count) > 0 ? (count) : 1]; \
    (void)pad
#define HOG_NET N
// Results that are computed in registers and written at the end: in between, writes would keep the
// compiler from reading ahead, and from computing units side by side.
#define HOG_RESULT(name, to, count) HOG_LOCAL(name, count)
#define HOG_WRITE(name, to, count) HOG_EACH(i, count) to[i] = name[i]
#else
#define HOG_LOCAL_OF(P, name, count) \
    P* name = pad;                   \
    pad += (count)
#define HOG_NET const N&
#define HOG_RESULT(name, to, count) V* const name = to
#define HOG_WRITE(name, to, count)
#endif
#if HOG_GPU
#define HOG_UNROLL _Pragma("unroll")
#else
#define HOG_UNROLL
#endif
#define HOG_LOCAL(name, count) HOG_LOCAL_OF(V, name, count)
#define HOG_EACH(i, n) HOG_UNROLL for (int i = 0; i < (n); ++i)

/// A network whose sizes are known when it runs; everything that follows from them is a table.
struct Net {
    int layers, inputs, act_, relu_;
    int w_[MOST_LAYERS], unit_[MOST_LAYERS + 1], q_[MOST_LAYERS + 1], p_[MOST_LAYERS + 1],
        f_[MOST_LAYERS + 1];
    int widest_;
    unsigned long long mono[4];  // the inputs in which f is nondecreasing

    HOG_METHOD int L() const { return layers; }
    HOG_METHOD int D() const { return inputs; }
    HOG_METHOD int w(int l) const { return w_[l]; }
    HOG_METHOD int act() const { return act_; }
    HOG_METHOD bool relu() const { return relu_; }
    HOG_METHOD bool rises(int j) const { return (mono[j >> 6] >> (j & 63)) & 1; }
    HOG_METHOD int before(int l) const { return l ? w_[l - 1] : 0; }
    HOG_METHOD int ahead(int l) const { return l + 1 < layers ? w_[l] : 0; }
    HOG_METHOD int rows(int l) const { return ahead(l) + before(l) + inputs + w_[l]; }
    HOG_METHOD int unit(int l) const { return unit_[l]; }
    HOG_METHOD int q(int l) const { return q_[l]; }
    HOG_METHOD int p(int l) const { return p_[l]; }
    HOG_METHOD int f(int l) const { return f_[l]; }
    HOG_METHOD int hidden() const { return unit_[layers - 1]; }
    HOG_METHOD int rows0() const { return rows(0); }
    HOG_METHOD int widest() const { return widest_; }
    HOG_METHOD int out() const { return w_[layers - 1]; }
    HOG_METHOD int context() const { return q_[layers]; }
    HOG_METHOD int weights() const { return p_[layers]; }
    HOG_METHOD int parameters() const { return p_[layers] + f_[layers]; }

    /// Fill the tables, which are zero, from the numbers of layers and inputs and the widths.
    HOG_METHOD void tabulate() {
        for (int l = 0; l < layers; ++l) {
            unit_[l + 1] = unit_[l] + w_[l];
            q_[l + 1] = q_[l] + inputs + w_[l] + before(l);
            p_[l + 1] = p_[l] + w_[l] * (inputs + before(l));
            f_[l + 1] = f_[l] + (l ? rows(l) * (before(l) + 1) : 0);
            widest_ = w_[l] > widest_ ? w_[l] : widest_;
        }
    }
};

}  // namespace hog

#include "weights.h"

namespace hog {

/// The positive part of a gate, and its slope.
template <class N>
HOG_FN V positive(HOG_NET net, V x, V& slope) {
    if (!net.relu()) return softplus(x, slope);
    slope = pick(x > 0.0, wide(1.0), wide(0.0));
    return pick(x > 0.0, x, wide(0.0));
}

/// The context q of a pack, from o_0 and the feature path `f` of the parameters.
template <class N, class Out>
HOG_FN void fill(HOG_NET net, const double* f, const V* o0, Out to, V* pad) {
    HOG_RESULT(q, to, net.context());
    HOG_LOCAL(u, net.widest());
    HOG_LOCAL(o, 2 * net.widest() + net.D() + net.widest());
    V ignored;
    HOG_EACH(l, net.L()) {
        const int rows = net.rows(l), before = net.before(l), ahead = net.ahead(l);
        const V* from = o0;
        if (l) {
            const double *F = f + net.f(l), *c = F + rows * before;
            affine(F, c, rows, before, u, o);
            from = o;
        }
        const int at = net.q(l);
        HOG_EACH(i, before) q[at + net.D() + net.w(l) + i] = positive(net, from[ahead + i], ignored);
        HOG_EACH(j, net.D()) {
            const V x = from[ahead + before + j];
            q[at + j] = net.rises(j) ? positive(net, x, ignored) : x;
        }
        HOG_EACH(i, net.w(l)) q[at + net.D() + i] = from[ahead + before + net.D() + i];
        HOG_EACH(i, ahead) {
            const V x = from[i];
            u[i] = pick(x > 0.0, x, FEATURE_SLOPE * x);
        }
    }
    HOG_WRITE(q, to, net.context());
}

/// f(y); the slopes and pre-activations of the hidden units go to `s` and `a`.
template <class N, class T, class In, class Out>
HOG_FN void forward(HOG_NET net, const T* W, In q, const V* y, Out s, Out a, V* value, V* pad) {
    HOG_LOCAL(v, net.widest());
    HOG_LOCAL(z, net.widest());
    HOG_LOCAL(x, net.widest());
    HOG_RESULT(slopes, s, net.hidden());
    HOG_RESULT(units, a, net.hidden());
    int unit = 0;
    HOG_EACH(l, net.L()) {
        const int at = net.q(l), width = net.w(l), before = net.before(l);
        const T *Wy = W + net.p(l), *Wz = Wy + width * net.D();
        HOG_EACH(j, before) v[j] = q[at + net.D() + width + j] * z[j];
        HOG_EACH(i, width) x[i] = q[at + net.D() + i];
        add_rows(Wy, width, net.D(), [&](int j) { return q[at + j] * y[j]; }, x);
        add_rows(Wz, width, before, [&](int j) { return v[j]; }, x);
        HOG_EACH(i, width) {
            if (l + 1 == net.L()) {
                value[i] = x[i];
            } else {
                z[i] = activate(net.act(), x[i], slopes[unit + i]);
                units[unit + i] = x[i];
            }
        }
        unit += width;
    }
    HOG_WRITE(slopes, s, net.hidden());
    HOG_WRITE(units, a, net.hidden());
}

/// c_m = s_m Wz' c of the layer above: the reverse pass through one layer. `felt` gets the
/// sensitivities before the slope.
template <class N, class T, class P, class In>
HOG_FN void descend(HOG_NET net, const T* W, In q, In s, int l, const P* above, P* felt, P* below) {
    const int width = net.w(l + 1), before = net.w(l), unit = net.unit(l);
    const T* Wz = W + net.p(l + 1) + width * net.D();
    const int gz = net.q(l + 1) + net.D() + width;
    HOG_EACH(m, before) felt[m] = P{};
    each_column(Wz, width, before, above, [&](int m, const P& x) { felt[m] += x; });
    HOG_EACH(m, before) {
        felt[m] = q[gz + m] * felt[m];
        below[m] = felt[m] * s[unit + m];
    }
}

/// The Jacobians of all hidden units, `every` [hidden, D], and J [out, D] of f.
template <class N, class In>
HOG_FN void jacobians(HOG_NET net, const double* W, In q, In s, V* every, V* J, V* pad) {
    const int D = net.D();
    HOG_LOCAL(x, net.widest());
    HOG_LOCAL(up, net.widest());
    int unit = 0;
    HOG_EACH(l, net.L()) {
        const int at = net.q(l), width = net.w(l), before = net.before(l);
        const double *Wy = W + net.p(l), *Wz = Wy + width * D;
        const V* lower = every + (unit - before) * D;
        V* mine = l + 1 == net.L() ? J : every + unit * D;
        HOG_EACH(m, before) up[m] = q[at + D + width + m] * s[unit - before + m];
#if !HOG_GPU
        if (width > 1 && D >= 16) {
            for (int j = 0; j < D; ++j) {
                for (int i = 0; i < width; ++i) x[i] = Wy[i * D + j] * q[at + j];
                add_rows(Wz, width, before, [&](int m) { return up[m] * lower[m * D + j]; }, x);
                for (int i = 0; i < width; ++i) mine[i * D + j] = x[i];
            }
            unit += width;
            continue;
        }
#endif
        HOG_EACH(i, width) {
            HOG_EACH(m, before) x[m] = Wz[i * before + m] * up[m];
            HOG_EACH(j, D) {
                V sum = Wy[i * D + j] * q[at + j];
                HOG_EACH(m, before) sum += x[m] * lower[m * D + j];
                mine[i * D + j] = sum;
            }
        }
        unit += width;
    }
}

/// The Jacobian J [out, D] of f, the gradient J' p and the curvature of p' f, the lower triangle of
/// [D, D]. `bend(unit)` is the curvature of a hidden unit's activation.
template <class N, class In, class Bend>
HOG_FN void expand(HOG_NET net, const double* W, In q, In s, const V* p, const Bend& bend, V* J,
                   V* gradient, V* H, V* pad) {
    const int D = net.D(), out = net.out();
    HOG_LOCAL(every, net.hidden() * net.D());
    HOG_LOCAL(up, net.widest());
    HOG_LOCAL(down, net.widest());
    HOG_LOCAL(felt, net.widest());
    HOG_LOCAL(bent, net.hidden());
    jacobians(net, W, q, s, every, J, pad);
    HOG_EACH(j, D) {
        V sum = wide(0.0);
        HOG_EACH(i, out) sum += J[i * D + j] * p[i];
        gradient[j] = sum;
    }
    HOG_EACH(i, out) up[i] = p[i];
    HOG_UNROLL for (int l = net.L() - 2; l >= 0; --l) {
        descend(net, W, q, s, l, up, felt, down);
        const int first = net.unit(l);
        HOG_EACH(m, net.w(l)) {
            bent[first + m] = felt[m] * bend(first + m);
            up[m] = down[m];
        }
    }
    HOG_EACH(i, D * D) H[i] = wide(0.0);
    HOG_EACH(m, net.hidden()) {
        const V* row = every + m * D;
        HOG_EACH(i, D) {
            const V share = bent[m] * row[i];
            HOG_EACH(j, i + 1) H[i * D + j] += share * row[j];
        }
    }
}

/// The curvature of a unit's activation; with reach > 0 that of `growth`.
template <class N>
HOG_FN V bending(HOG_NET net, V a, V slope, double reach) {
    return reach > 0.0 ? growth(net.act(), a, slope, wide(reach)) : curvature(net.act(), a, slope);
}

/// `expand` with the curvatures of the activations, or with those of `growth` where reach > 0.
template <class N, class In>
HOG_FN void jet(HOG_NET net, const double* W, In q, In s, In a, const V* p, double reach, V* J,
                V* gradient, V* H, V* pad) {
#if HOG_GPU  // one branch for all units, which are then computed side by side
    HOG_LOCAL(bends, net.hidden());
    if (reach > 0.0) {
        HOG_EACH(m, net.hidden()) bends[m] = growth(net.act(), a[m], s[m], wide(reach));
    } else {
        HOG_EACH(m, net.hidden()) bends[m] = curvature(net.act(), a[m], s[m]);
    }
    const auto bend = [&](int m) { return bends[m]; };
#else
    const auto bend = [&](int m) { return bending(net, a[m], s[m], reach); };
#endif
    expand(net, W, q, s, p, bend, J, gradient, H, pad);
}

/// A reverse pass from weights `top` [out] on f to y. `visit(unit, felt, below)` gets the sensitivity
/// of every hidden unit, before and behind its slope, and returns what goes on to the layer below.
template <class N, class T, class P, class In, class Visit>
HOG_FN void pull(HOG_NET net, const T* W, In q, In s, const P* top, const Visit& visit, P* out, P* pad) {
    HOG_LOCAL_OF(P, up, net.widest());
    HOG_LOCAL_OF(P, down, net.widest());
    HOG_LOCAL_OF(P, felt, net.widest());
    HOG_EACH(i, net.out()) up[i] = top[i];
    HOG_EACH(j, net.D()) out[j] = P{};
    HOG_UNROLL for (int l = net.L() - 1; l >= 0; --l) {
        const int at = net.q(l);
        each_column(W + net.p(l), net.w(l), net.D(), up,
                    [&](int j, const P& x) { out[j] += q[at + j] * x; });
        if (!l) break;
        descend(net, W, q, s, l - 1, up, felt, down);
        const int first = net.unit(l - 1);
        HOG_EACH(m, net.w(l - 1)) up[m] = visit(first + m, felt[m], down[m]);
    }
}

/// The gradient J' p without Jacobians. `bent` gets the curvature of every hidden unit times its
/// sensitivity, so that the curvature of p' f is the sum over units of J_m' bent_m J_m.
template <class N, class In, class Out>
HOG_FN void pullback(HOG_NET net, const double* W, In q, In s, In a, const V* p, double reach,
                     Out bent, V* gradient, V* pad) {
    pull(
        net, W, q, s, p,
        [&](int m, V felt, V below) {
            bent[m] = felt * bending(net, a[m], s[m], reach);
            return below;
        },
        gradient, pad);
}

/// Df(y)[t]; the tangents of the hidden units' pre-activations go to `moving`.
template <class N, class T, class P, class In, class Out>
HOG_FN void tangent(HOG_NET net, const T* W, In q, In s, const P* t, Out moving, P* moved, P* pad) {
    HOG_LOCAL_OF(P, v, net.widest());
    HOG_LOCAL_OF(P, x, net.widest());
    int unit = 0;
    HOG_EACH(l, net.L()) {
        const int at = net.q(l), width = net.w(l), before = net.before(l), low = unit - before;
        const T *Wy = W + net.p(l), *Wz = Wy + width * net.D();
        HOG_EACH(j, before) v[j] = q[at + net.D() + width + j] * (s[low + j] * moving[low + j]);
        HOG_EACH(i, width) x[i] = P{};
        add_rows(Wy, width, net.D(), [&](int j) { return q[at + j] * t[j]; }, x);
        add_rows(Wz, width, before, [&](int j) { return v[j]; }, x);
        HOG_EACH(i, width) {
            if (l + 1 == net.L()) moved[i] = x[i];
            else moving[unit + i] = x[i];
        }
        unit += width;
    }
}

/// J' r + sum over units of J_m' bent_m moving_m: the curvature along a tangent, and what the rest
/// of the energy sends back.
template <class N, class T, class P, class In>
HOG_FN void curve(HOG_NET net, const T* W, In q, In s, In bent, In moving, const P* r, P* out, P* pad) {
    pull(
        net, W, q, s, r,
        [&](int m, const P&, const P& below) { return below + bent[m] * moving[m]; }, out, pad);
}

/// Cotangents of phi = p . Df(y)[t] + r . f(y): of the context into `qb`, of the weights added to
/// `wb`. Also gives f(y) and Df(y)[t].
template <class N, class In, class Out, class Sum>
HOG_FN void cotangents(HOG_NET net, const double* W, In q, In s, In a, const V* y, const V* t,
                       const V* p, const V* r, V* value, V* moved, Out qb, Sum wb, V* pad) {
    const int D = net.D();
    HOG_LOCAL(z, net.hidden());
    HOG_LOCAL(zt, net.hidden());
    HOG_LOCAL(at_, net.hidden());  // tangents of the pre-activations
    HOG_LOCAL(v, net.widest());
    HOG_LOCAL(vt, net.widest());
    HOG_LOCAL(al, net.widest());
    HOG_LOCAL(ga, net.widest());
    int unit = 0;
    HOG_EACH(l, net.L()) {
        const int at = net.q(l), width = net.w(l), before = net.before(l), low = unit - before;
        const double *Wy = W + net.p(l), *Wz = Wy + width * D;
        HOG_EACH(j, before) {
            const V gate = q[at + D + width + j];
            v[j] = gate * z[low + j];
            vt[j] = gate * zt[low + j];
        }
        HOG_EACH(i, width) ga[i] = wide(0.0);
        add_rows(Wy, width, D, [&](int j) { return q[at + j] * t[j]; }, ga);
        add_rows(Wz, width, before, [&](int j) { return vt[j]; }, ga);
        if (l + 1 == net.L()) {
            HOG_EACH(i, width) {
                al[i] = q[at + D + i];
                moved[i] = ga[i];
            }
            add_rows(Wy, width, D, [&](int j) { return q[at + j] * y[j]; }, al);
            add_rows(Wz, width, before, [&](int j) { return v[j]; }, al);
            HOG_EACH(i, width) value[i] = al[i];
        } else {
            HOG_EACH(i, width) {
                V slope;
                z[unit + i] = activate(net.act(), a[unit + i], slope);
                zt[unit + i] = slope * ga[i];
                at_[unit + i] = ga[i];
            }
        }
        unit += width;
    }
    const int out = net.out();
    HOG_EACH(i, out) {
        al[i] = r[i];
        ga[i] = p[i];
    }
    HOG_UNROLL for (int l = net.L() - 1; l >= 0; --l) {
        const int at = net.q(l), width = net.w(l), before = net.before(l);
        const double *Wy = W + net.p(l), *Wz = Wy + width * D;
        const int first = net.p(l) + width * D, low = net.unit(l) - before;
        HOG_EACH(i, width) qb[at + D + i] = al[i];
        HOG_EACH(j, D) {
            V sum = wide(0.0), sum_t = wide(0.0);
            const V gy = q[at + j] * y[j], gt = q[at + j] * t[j];
            HOG_EACH(i, width) {
                wb.add(net.p(l) + i * D + j, al[i] * gy + ga[i] * gt);
                sum += Wy[i * D + j] * al[i];
                sum_t += Wy[i * D + j] * ga[i];
            }
            qb[at + j] = sum * y[j] + sum_t * t[j];
        }
        HOG_EACH(m, before) {
            const V gate = q[at + D + width + m], slope = s[low + m];
            V ca = wide(0.0), cg = wide(0.0);
            const V gz = gate * z[low + m], gzt = gate * zt[low + m];
            HOG_EACH(i, width) {
                wb.add(first + i * before + m, al[i] * gz + ga[i] * gzt);
                ca += Wz[i * before + m] * al[i];
                cg += Wz[i * before + m] * ga[i];
            }
            qb[at + D + width + m] = ca * z[low + m] + cg * zt[low + m];
            v[m] = slope * gate * ca +
                   curvature(net.act(), a[low + m], slope) * at_[low + m] * gate * cg;
            vt[m] = slope * gate * cg;
        }
        HOG_EACH(m, before) {
            al[m] = v[m];
            ga[m] = vt[m];
        }
    }
}

/// The reverse of `fill`: cotangents of o_0 from those of the context; those of the feature path
/// are added to `fb`.
template <class N, class In, class Sum>
HOG_FN void fill_reverse(HOG_NET net, const double* f, const V* o0, In qb, V* o0b, Sum fb,
                         V* pad) {
    HOG_LOCAL(u, net.hidden());                    // the feature path of every layer but the first
    HOG_LOCAL(o, 3 * net.widest() + net.D());
    HOG_LOCAL(ob, 3 * net.widest() + net.D());
    HOG_LOCAL(ub, net.widest());
    HOG_LOCAL(cut, net.hidden());                  // slopes of the leaky ReLU
    int unit = 0;
    HOG_EACH(l, net.L() - 1) {  // u_(l+1)
        const int before = net.before(l);
        const double *F = f + net.f(l), *c = F + net.rows(l) * before;
        HOG_EACH(i, net.w(l)) {
            V x = l ? wide(c[i]) : o0[i];
            HOG_EACH(j, before) x += F[i * before + j] * u[unit - before + j];
            const V slope = pick(x > 0.0, wide(1.0), wide(FEATURE_SLOPE));
            u[unit + i] = slope * x;
            cut[unit + i] = slope;
        }
        unit += net.w(l);
    }
    HOG_UNROLL for (int l = net.L() - 1; l >= 0; --l) {
        const int rows = net.rows(l), before = net.before(l), ahead = net.ahead(l), at = net.q(l);
        const double *F = f + net.f(l), *c = F + rows * before;
        const V* in = u + net.unit(l) - before;
        const V* from = o0;
        V* to = l ? ob : o0b;
        if (l) {
            affine(F + ahead * before, c + ahead, before + net.D(), before, in, o + ahead);
            from = o;
        }
        V slope;
        HOG_EACH(i, ahead) to[i] = cut[net.unit(l) + i] * ub[i];
        HOG_EACH(i, before) {
            positive(net, from[ahead + i], slope);
            to[ahead + i] = slope * qb[at + net.D() + net.w(l) + i];
        }
        HOG_EACH(j, net.D()) {
            slope = wide(1.0);
            if (net.rises(j)) positive(net, from[ahead + before + j], slope);
            to[ahead + before + j] = slope * qb[at + j];
        }
        HOG_EACH(i, net.w(l)) to[ahead + before + net.D() + i] = qb[at + net.D() + i];
        if (!l) break;
        affine_reverse(F, rows, before, in, ob, ub, fb.from(net.f(l)));
        HOG_EACH(i, rows) fb.add(net.f(l) + rows * before + i, ob[i]);
    }
}

}  // namespace hog

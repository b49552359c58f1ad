// Part of energy.h: the Hessian as blocks of nodes, for factorisations.
#pragma once

namespace hog {

/// Gradient and local quadratic models at the point of the last `evaluate`. With reach > 0 the
/// curvatures bound the growth of the activations that far (`growth` in vectors.h).
template <class S, class F, class T>
HOG_LARGE void Task<S, F, T>::differentiate(const double* x, double reach) {
    if constexpr (F::matrix_free) {
        pull_back(x, reach);
        return;
    }
    HOG_PACKS(b, packs(v.n)) {
        HOG_PAD;
        HOG_LOCAL(p, M());
        HOG_LOCAL(own, K());
        HOG_LOCAL(size, K());
        V* const rest = pad;
        (void)rest;
        {
            HOG_PAD_FROM(rest);
            HOG_LOCAL(J, U());
            HOG_LOCAL(gr, U());
            HOG_LOCAL(Hs, U() * U());
            p[0] = wide(1.0);
            jet(s().update(), update(), qu.pack(b), su.pack(b), au.pack(b), p, reach, J, gr, Hs, pad);
            const Fields u = Um.pack(b), to = mb.pack(b);
            HOG_EACH(i, U()) {
                HOG_EACH(j, U()) u[i * U() + j] = Hs[i >= j ? i * U() + j : j * U() + i];
            }
            const V w = lw.pack(b)[0];
            HOG_EACH(c, M()) {
                to[c] = gr[c];
                p[c] = w * gr[c];
            }
            HOG_EACH(c, K()) {
                own[c] = gr[M() + c];
                size[c] = absolute(own[c]);
            }
        }
        {
            HOG_PAD_FROM(rest);
            HOG_LOCAL(J, M() * K());
            HOG_LOCAL(gr, K());
            HOG_LOCAL(Hs, K() * K());
            jet(s().loop(), loop(), ql.pack(b), sl.pack(b), al.pack(b), p, reach, J, gr, Hs, pad);
            const Fields a = A.pack(b), block = B.pack(b);
            const V w = lw.pack(b)[0];
            HOG_EACH(i, M() * K()) a[i] = w * J[i];
            HOG_EACH(i, K()) {
                HOG_EACH(j, K()) block[i * K() + j] = Hs[i >= j ? i * K() + j : j * K() + i];
            }
            HOG_EACH(c, K()) {
                own[c] += gr[c];
                size[c] += absolute(gr[c]);
            }
        }
        for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
            HOG_EACH(c, K()) {
                const int at = (b * LANES + l) * K() + c;
                const double pull = s().beta() * x[at];
                g[at] = pull + get(own[c], l);
                sc[at] = fabs(pull) + get(size[c], l);
            }
    }
    team.sync();
    HOG_PACKS(b, packs(v.e)) {
        HOG_PAD;
        HOG_LOCAL(p, C());
        HOG_LOCAL(J, C() * D());
        HOG_LOCAL(gr, D());
        HOG_LOCAL(Hs, D() * D());
        const Fields ji = Ji.pack(b), jj = Jj.pack(b), hii = Hii.pack(b), hjj = Hjj.pack(b),
                     xx = X.pack(b), gb = G.pack(b);
        for (int hd = 0; hd < H(); ++hd) {
            const int at = b * H() + hd, first = s().concat() ? hd * C() : 0;
            const bool fresh = hd == 0;  // later heads are added
            const V w = wt.pack(at)[0];
            read_receivers(mb, first, C(), b, p);
            HOG_EACH(c, C()) p[c] *= w;
            jet(s().message(), head(hd), qm.pack(at), sm.pack(at), am.pack(at), p, reach, J, gr, Hs,
                pad);
            // The inputs are ordered (channel, end).
            const int two = s().ends() - 1;
            const bool begin = fresh || s().concat();
            HOG_EACH(c, C()) HOG_EACH(a, K()) {
                const int to = (first + c) * K() + a, from = c * D() + s().ends() * a;
                jj[to] = w * J[from + two] + (begin ? wide(0.0) : jj[to]);
                if (two) ji[to] = w * J[from] + (begin ? wide(0.0) : ji[to]);
            }
            HOG_EACH(a, K()) HOG_EACH(c, K()) {
                const int to = a * K() + c, i = s().ends() * a, j = s().ends() * c;
                hjj[to] = lower(Hs, i + two, j + two) + (fresh ? wide(0.0) : hjj[to]);
                if (!two) continue;
                hii[to] = lower(Hs, i, j) + (fresh ? wide(0.0) : hii[to]);
                xx[to] = lower(Hs, i, j + 1) + (fresh ? wide(0.0) : xx[to]);
            }
            if (!two && fresh) HOG_EACH(a, K() * K()) xx[a] = wide(0.0);
            HOG_EACH(i, D()) gb[i] = gr[i] + (fresh ? wide(0.0) : gb[i]);
        }
    }
    team.sync();
    HOG_PACKS(i, v.n) {
        if (s().ends() == 2) {
            const int from = v.ptr[i], to = v.ptr[i + 1];
            HOG_EACH(c, M() * K()) A.at(i, c) += total(Ji, from, to, c);
            HOG_EACH(c, K() * K()) B.at(i, c) += total(Hii, from, to, c);
        }
    }
    gather_gradient();
}

/// The blocks of the Hessian, from the local quadratic models: half = Umm A + Umh,
/// B += Uhh + A' half + Uhm A + beta, UJ = Umm Jj, X += half' Jj, Hjj += Jj' UJ.
template <class S, class F, class T>
HOG_LARGE void Task<S, F, T>::assemble() {
    HOG_PACKS(b, packs(v.n)) {
        const Fields u = Um.pack(b), a = A.pack(b), hf = half.pack(b), block = B.pack(b);
        HOG_EACH(c, M()) HOG_EACH(x, K()) {
            V sum = u[c * U() + M() + x];
            HOG_EACH(q, M()) sum += u[c * U() + q] * a[q * K() + x];
            hf[c * K() + x] = sum;
        }
        HOG_EACH(x, K()) HOG_EACH(y, K()) {
            V sum = block[x * K() + y] + u[(M() + x) * U() + M() + y];
            HOG_EACH(c, M())
            sum += a[c * K() + x] * hf[c * K() + y] + u[c * U() + M() + x] * a[c * K() + y];
            block[x * K() + y] = x == y ? sum + s().beta() : sum;
        }
    }
    team.sync();
    HOG_PACKS(b, packs(v.e)) {
        HOG_PAD;
        HOG_LOCAL(hf, M() * K());
        HOG_LOCAL(uu, M() * M());
        read_receivers(half, 0, M() * K(), b, hf);
        HOG_EACH(c, M()) read_receivers(Um, c * U(), M(), b, uu + c * M());
        const Fields jj = Jj.pack(b), uj = UJ.pack(b), xx = X.pack(b), cc = Hjj.pack(b);
        HOG_EACH(c, M()) HOG_EACH(x, K()) {
            V sum = wide(0.0);
            HOG_EACH(q, M()) sum += uu[c * M() + q] * jj[q * K() + x];
            uj[c * K() + x] = sum;
        }
        HOG_EACH(x, K()) HOG_EACH(y, K()) {
            V sum = xx[x * K() + y], own = cc[x * K() + y];
            HOG_EACH(c, M()) {
                sum += hf[c * K() + x] * jj[c * K() + y];
                own += jj[c * K() + x] * uj[c * K() + y];
            }
            xx[x * K() + y] = sum;
            cc[x * K() + y] = own;
        }
    }
    team.sync();
}

/// Blocks of the identity at the nodes that are held, and no couplings with them.
template <class S, class F, class T>
HOG_METHOD void Task<S, F, T>::hold_blocks() {
#if !HOG_GPU
    if (!at_.held) return;
    for (int i = 0; i < v.n; ++i)
        if (held(i))
            for (int c = 0; c < K() * K(); ++c) B.at(i, c) = c % (K() + 1) ? 0.0 : 1.0;
    for (int q = 0; q < v.e; ++q) {
        const bool there = held(v.src[q]);
        if (there || held(v.dst[q]))
            for (int c = 0; c < K() * K(); ++c) X.at(q, c) = 0.0;
        if (!there) continue;
        for (int c = 0; c < K() * K(); ++c) Hjj.at(q, c) = 0.0;
        for (int c = 0; c < M() * K(); ++c) Jj.at(q, c) = UJ.at(q, c) = 0.0;
    }
#endif
}

}  // namespace hog

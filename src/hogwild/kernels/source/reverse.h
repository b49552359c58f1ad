// Part of energy.h: the adjoint, from the solution of the dual system to the gradients of everything.
#pragma once

namespace hog {

/// The gradient of a loss in all that the problem is made of, from lambda = H^-1 dL/dh in d. The
/// state must be that of `solve_linear` at the solution h. `sums` gets the gradients of the
/// parameters as the networks use them.
template <class S, class F, class T>
template <class Sum>
HOG_METHOD void Task<S, F, T>::reverse(const Cotangents& out, Sum sums) {
    const double* lambda = d;
    if constexpr (F::matrix_free) {
        fronts_.tangents(*this, lambda);  // md and mt
        HOG_PACKS(i, v.n)
        HOG_EACH(c, M()) {
            md.at(i, c) = -md.at(i, c);
            mt.at(i, c) = -mt.at(i, c);
        }
    } else {
        HOG_PACKS(i, v.n)
        HOG_EACH(c, M()) {
            double z = 0;
            HOG_EACH(a, K()) z -= A.at(i, c * K() + a) * lambda[i * K() + a];
            for (int q = v.ptr[i]; q < v.ptr[i + 1]; ++q)
                HOG_EACH(a, K()) z -= Jj.at(q, c * K() + a) * lambda[v.src[q] * K() + a];
            md.at(i, c) = z;
        }
        team.sync();
        HOG_PACKS(i, v.n)
        HOG_EACH(c, M()) {
            double z = 0;
            HOG_EACH(q, M()) z += Um.at(i, c * U() + q) * md.at(i, q);
            HOG_EACH(a, K()) z -= Um.at(i, c * U() + M() + a) * lambda[i * K() + a];
            mt.at(i, c) = z;
        }
    }
    team.sync();
    const Sum loop_sums = sums.from(H() * s().message().parameters());
    const Sum update_sums = loop_sums.from(s().loop().parameters());
    HOG_ALL_PACKS(b, packs(v.n)) {
        HOG_PAD;
        HOG_LOCAL(y, U());
        HOG_LOCAL(t, U());
        HOG_LOCAL(p, M());
        HOG_LOCAL(r, M());
        HOG_LOCAL(val, M());
        HOG_LOCAL(mov, M());
        HOG_LOCAL(o0, s().loop().rows0() + s().update().rows0());
        V on = wide(0.0);
        for (int l = 0; l < LANES && b * LANES + l < v.n; ++l) lane(on, l) = 1.0;
        const int here = team.inside(b, packs(v.n));  // threads behind the last row repeat it
        const Fields fm = m.pack(here), fd = md.pack(here), fb = mb.pack(here), ft = mt.pack(here);
        HOG_EACH(c, M()) {
            y[c] = fm[c];
            t[c] = pick(on > 0.0, fd[c], wide(0.0));  // nothing was written behind the last row
        }
        read_own(h, here, y + M());
        read_own(lambda, here, t + M());
        HOG_EACH(a, K()) t[M() + a] = -on * t[M() + a];
        read_nodes(s().loop_row(), s().loop().rows0() + s().update().rows0(), here, o0);
        p[0] = on;
        r[0] = wide(0.0);
        V* const rest = pad;
        (void)rest;
        {
            HOG_PAD_FROM(rest);
            HOG_LOCAL(qb, s().update().context());
            HOG_LOCAL(o0b, s().update().rows0());
            cotangents(s().update(), update(), qu.pack(here), su.pack(here), au.pack(here), y, t, p,
                       r, val, mov, qb, update_sums, pad);
            fill_reverse(s().update(), update() + s().update().weights(), o0 + s().loop().rows0(), qb,
                         o0b, update_sums.from(s().update().weights()), pad);
            write_nodes(out.nodes, s().loop_row() + s().loop().rows0(), s().update().rows0(), b, o0b);
        }
        const V w = on * lw.pack(here)[0];
        HOG_EACH(c, M()) {
            p[c] = w * fb[c];
            r[c] = pick(on > 0.0, w * ft[c], wide(0.0));
        }
        {
            HOG_PAD_FROM(rest);
            HOG_LOCAL(qb, s().loop().context());
            HOG_LOCAL(o0b, s().loop().rows0());
            cotangents(s().loop(), loop(), ql.pack(here), sl.pack(here), al.pack(here), y + M(),
                       t + M(), p, r, val, mov, qb, loop_sums, pad);
            fill_reverse(s().loop(), loop() + s().loop().weights(), o0, qb, o0b,
                         loop_sums.from(s().loop().weights()), pad);
            write_nodes(out.nodes, s().loop_row(), s().loop().rows0(), b, o0b);
        }
        if (out.loop_weight) {
            V felt = wide(0.0);
            HOG_EACH(c, M()) felt += fb[c] * mov[c] + ft[c] * val[c];
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
                out.loop_weight[at_.n0 + b * LANES + l] = get(felt, l);
        }
    }
    HOG_ALL_PACKS(b, packs(v.e)) {
        const int here = team.inside(b, packs(v.e));
        for (int hd = 0; hd < H(); ++hd) {
            HOG_PAD;
            HOG_LOCAL(y, D());
            HOG_LOCAL(t, D());
            HOG_LOCAL(p, C());
            HOG_LOCAL(r, C());
            HOG_LOCAL(val, C());
            HOG_LOCAL(mov, C());
            HOG_LOCAL(pw, C());
            HOG_LOCAL(rw, C());
            HOG_LOCAL(qb, s().message().context());
            HOG_LOCAL(o0, s().message().rows0());
            HOG_LOCAL(o0b, s().message().rows0());
            const int at = here * H() + hd, first = s().concat() ? hd * C() : 0;
            read_ends(h, here, y);
            read_ends(lambda, here, t);
            HOG_EACH(i, D()) t[i] = -t[i];
            read_receivers(mb, first, C(), here, p);
            read_receivers(mt, first, C(), here, r);
            V w = wt.pack(at)[0];
            if (here != b) w = wide(0.0);
            HOG_EACH(c, C()) {
                pw[c] = w * p[c];
                rw[c] = w * r[c];
            }
            const Sum mine = sums.from(hd * s().message().parameters());
            cotangents(s().message(), head(hd), qm.pack(at), sm.pack(at), am.pack(at), y, t, pw, rw,
                       val, mov, qb, mine, pad);
            if (out.weight) {
                V felt = wide(0.0);
                HOG_EACH(c, C()) felt += p[c] * mov[c] + r[c] * val[c];
                felt *= s().concat() ? 1.0 : 1.0 / H();
                for (int l = 0; l < LANES && b * LANES + l < v.e; ++l)
                    out.weight[hd * at_.E + at_.edge[b * LANES + l]] = get(felt, l);
            }
            read_edges(here, hd, o0);
            fill_reverse(s().message(), head(hd) + s().message().weights(), o0, qb, o0b,
                         mine.from(s().message().weights()), pad);
            // Nodes gather what their edges send back; the contexts are not needed any more.
            if (here != b) continue;
            const Fields to = qm.pack(at);
#if HOG_GPU
            HOG_EACH(x, s().message().rows0()) to[x] = o0b[x];
#else
            double* rows[LANES];
            for (int l = 0; l < LANES; ++l) rows[l] = (double*)to + l * qm.fields;
            rows_of(o0b, s().message().rows0(), 1, rows, LANES);
#endif
            if (out.edges)
                for (int l = 0; l < LANES && b * LANES + l < v.e; ++l)
                    HOG_EACH(x, s().message().rows0())
                    out.edges[(hd * s().message().rows0() + x) * at_.E + at_.edge[b * LANES + l]] =
                        get(o0b[x], l);
        }
    }
    team.sync();
#if !HOG_GPU
    const int width = s().loop_row(), some = s().message().rows0();
    HOG_PACKS(b, packs(v.n)) {
        HOG_PAD;
        HOG_LOCAL(node, LANES * ((width + LANES - 1) / LANES));
        const double* rows[LANES];
        for (int l = 0; l < LANES; ++l) {
            const int i = std::min(b * LANES + l, v.n - 1);
            double* const to = gathered_ + (size_t)i * width;
            rows[l] = to;
            if (b * LANES + l > i) continue;
            for (int x = 0; x < width; ++x) to[x] = 0;
            for (int hd = 0; hd < H(); ++hd) {
                if (s().ends() == 2)
                    for (int q = v.ptr[i]; q < v.ptr[i + 1]; ++q)
                        add_to(to + hd * some, back(q, hd), some);
                if (s().sent())
                    for (int o = v.out_ptr[i]; o < v.out_ptr[i + 1]; ++o)
                        add_to(to + s().own_rows() + hd * some, back(v.out_edge[o], hd), some);
            }
        }
        packs_of(rows, width, node, 1);
        write_nodes(out.nodes, 0, width, b, node);
    }
#else
    for (int hd = 0; hd < H(); ++hd)
        for (int x = 0; x < s().message().rows0(); ++x) {
            const int row = hd * s().message().rows0() + x;
            HOG_PACKS(i, v.n) {
                double own = 0, sent = 0;
                for (int q = v.ptr[i]; q < v.ptr[i + 1]; ++q) own += back(q, hd, x);
                for (int o = v.out_ptr[i]; o < v.out_ptr[i + 1]; ++o)
                    sent += back(v.out_edge[o], hd, x);
                if (s().ends() == 2) out.nodes[row * at_.N + at_.n0 + i] = own;
                if (s().sent()) out.nodes[(s().own_rows() + row) * at_.N + at_.n0 + i] = sent;
            }
        }
#endif
}

}  // namespace hog

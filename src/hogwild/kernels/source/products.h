// Part of energy.h: the Hessian as a linear map, which costs as much as the networks.
#pragma once

#if !HOG_GPU
namespace hog {

/// Gradient and curvatures of the hidden units, without blocks of the Hessian. What an edge sends to its
/// ends lies in rows, [e, ends, k].
template <class S, class F, class T>
HOG_METHOD void Task<S, F, T>::pull_back(const double* x, double reach) {
    HOG_PACKS(b, packs(v.n)) {
        HOG_PAD;
        HOG_LOCAL(p, M());
        HOG_LOCAL(gu, U());
        HOG_LOCAL(gl, K());
        HOG_LOCAL(own, K());
        HOG_LOCAL(size, K());
        p[0] = wide(1.0);
        pullback(s().update(), update(), qu.pack(b), su.pack(b), au.pack(b), p, reach, bu.pack(b),
                 gu, pad);
        const Fields to = mb.pack(b);
        const V w = lw.pack(b)[0];
        HOG_EACH(c, M()) {
            to[c] = gu[c];
            p[c] = w * gu[c];
        }
        pullback(s().loop(), loop(), ql.pack(b), sl.pack(b), al.pack(b), p, reach, bl.pack(b), gl,
                 pad);
        read_own(x, b, own);
        HOG_EACH(c, K()) {
            const V pull = s().beta() * own[c], from = gu[M() + c];
            own[c] = pull + from + gl[c];
            size[c] = absolute(pull) + absolute(from) + absolute(gl[c]);
        }
        double *sum[LANES], *sizes[LANES];
        for (int l = 0; l < LANES; ++l) {
            sum[l] = g + (size_t)(b * LANES + l) * K();
            sizes[l] = sc + (size_t)(b * LANES + l) * K();
        }
        rows_of(own, K(), 1, sum, v.n - b * LANES);
        rows_of(size, K(), 1, sizes, v.n - b * LANES);
    }
    team.sync();
    HOG_PACKS(b, packs(v.e)) {
        HOG_PAD;
        HOG_LOCAL(weights, C());
        HOG_LOCAL(back, D());
        HOG_LOCAL(sum, D());
        for (int hd = 0; hd < H(); ++hd) {
            const int at = b * H() + hd, first = s().concat() ? hd * C() : 0;
            const V w = wt.pack(at)[0];
            read_receivers(mb, first, C(), b, weights);
            HOG_EACH(c, C()) weights[c] *= w;
            pullback(s().message(), head(hd), qm.pack(at), sm.pack(at), am.pack(at), weights, reach,
                     bm.pack(at), hd ? back : sum, pad);
            if (hd) HOG_EACH(i, D()) sum[i] += back[i];
        }
        for (int end = 0; end < s().ends(); ++end) {
            double* rows[LANES];
            for (int l = 0; l < LANES; ++l)
                rows[l] = (double*)G.data + ((size_t)(b * LANES + l) * s().ends() + end) * K();
            rows_of(sum + end, K(), s().ends(), rows, v.e - b * LANES);
        }
    }
    team.sync();
    residual = scale = 0;
    HOG_PACKS(i, v.n) {
        double *const sum = g + (size_t)i * K(), *const size = sc + (size_t)i * K();
        if (held(i)) {
            HOG_EACH(c, K()) sum[c] = 0.0;
            continue;
        }
        auto add = [&](int q, int end) {
            const double* from = (const double*)G.data + ((size_t)q * s().ends() + end) * K();
            HOG_EACH(c, K()) {
                sum[c] += from[c];
                size[c] += fabs(from[c]);
            }
        };
        if (s().ends() == 2)
            for (int q = v.ptr[i]; q < v.ptr[i + 1]; ++q) add(q, 0);
        for (int o = v.out_ptr[i]; o < v.out_ptr[i + 1]; ++o) add(v.out_edge[o], s().ends() - 1);
        HOG_EACH(c, K()) {
            if (fabs(sum[c]) > residual || sum[c] != sum[c]) residual = fabs(sum[c]);  // NaN stays
            if (size[c] > scale) scale = size[c];
        }
    }
    team.max(residual, scale);
}

/// The diagonal of the Hessian, [n, k]; terms of two parallel edges are left out.
template <class S, class F, class T>
HOG_METHOD void Task<S, F, T>::diagonal(double* out) {
    HOG_PACKS(b, packs(v.n)) {  // A = dm/dh of the self message, and its curvature
        HOG_PAD;
        HOG_LOCAL(rows, s().loop().hidden() * K());
        HOG_LOCAL(J, M() * K());
        HOG_LOCAL(diag, K());
        HOG_EACH(c, K()) diag[c] = wide(s().beta());
        diagonal_of(s().loop(), loop(), ql.pack(b), sl.pack(b), bl.pack(b), rows, J, diag, pad);
        const V w = lw.pack(b)[0];
        const Fields a = A.pack(b);
        HOG_EACH(i, M() * K()) a[i] = w * J[i];
        for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
            HOG_EACH(c, K()) out[(b * LANES + l) * K() + c] = get(diag[c], l);
    }
    HOG_PACKS(b, packs(v.e)) {
        HOG_PAD;
        HOG_LOCAL(rows, s().message().hidden() * D());
        HOG_LOCAL(J, C() * D());
        HOG_LOCAL(diag, D());
        const Fields gb = G.pack(b), jj = Jj.pack(b), ji = Ji.pack(b);
        HOG_EACH(i, D()) diag[i] = wide(0.0);
        for (int hd = 0; hd < H(); ++hd) {
            const int at = b * H() + hd, first = s().concat() ? hd * C() : 0, two = s().ends() - 1;
            diagonal_of(s().message(), head(hd), qm.pack(at), sm.pack(at), bm.pack(at), rows, J, diag,
                     pad);
            const V w = wt.pack(at)[0];
            const bool begin = hd == 0 || s().concat();
            HOG_EACH(c, C()) HOG_EACH(a, K()) {
                const int to = (first + c) * K() + a, from = c * D() + s().ends() * a;
                jj[to] = w * J[from + two] + (begin ? wide(0.0) : jj[to]);
                if (two) ji[to] = w * J[from] + (begin ? wide(0.0) : ji[to]);
            }
        }
        HOG_EACH(i, D()) gb[i] = diag[i];
    }
    team.sync();
    // The update's curvature along A and Jj: sum over its units of bent (J_h + J_m A)^2.
    HOG_PACKS(b, packs(v.n)) {
        HOG_PAD;
        HOG_LOCAL(rows, s().update().hidden() * U());
        HOG_LOCAL(J, U());
        HOG_LOCAL(diag, U());
        HOG_LOCAL(own, K());
        HOG_EACH(i, U()) diag[i] = wide(0.0);
        diagonal_of(s().update(), update(), qu.pack(b), su.pack(b), bu.pack(b), rows, J, diag, pad);
        const Fields bent = bu.pack(b), a = A.pack(b);
        if (s().ends() == 2)
            for (int l = 0; l < LANES && b * LANES + l < v.n; ++l) {
                const int i = b * LANES + l;
                HOG_EACH(c, M() * K()) A.at(i, c) += total(Ji, v.ptr[i], v.ptr[i + 1], c);
            }
        HOG_EACH(c, K()) own[c] = wide(0.0);
        for (int m = 0; m < s().update().hidden(); ++m) {
            const V* row = rows + m * U();
            HOG_EACH(c, K()) {
                V x = row[M() + c];
                HOG_EACH(q, M()) x += row[q] * a[q * K() + c];
                own[c] += bent[m] * x * x;
            }
        }
        for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
            HOG_EACH(c, K()) out[(b * LANES + l) * K() + c] += get(own[c], l);
        const Fields u = Um.pack(b);
        HOG_EACH(x, M()) HOG_EACH(y, M()) {
            V sum = wide(0.0);
            for (int m = 0; m < s().update().hidden(); ++m)
                sum += bent[m] * rows[m * U() + x] * rows[m * U() + y];
            u[x * M() + y] = sum;
        }
    }
    team.sync();
    HOG_PACKS(b, packs(v.e)) {
        HOG_PAD;
        HOG_LOCAL(u, M() * M());
        read_receivers(Um, 0, M() * M(), b, u);
        const Fields gb = G.pack(b), jj = Jj.pack(b);
        HOG_EACH(c, K()) {
            V sum = wide(0.0);
            HOG_EACH(x, M()) HOG_EACH(y, M())
            sum += u[x * M() + y] * jj[x * K() + c] * jj[y * K() + c];
            gb[s().ends() * c + s().ends() - 1] += sum;
        }
    }
    team.sync();
    HOG_PACKS(i, v.n)
    HOG_EACH(c, K()) {
        double sum = out[i * K() + c];
        if (s().ends() == 2) sum += total(G, v.ptr[i], v.ptr[i + 1], 2 * c);
        for (int o = v.out_ptr[i]; o < v.out_ptr[i + 1]; ++o)
            sum += G.at(v.out_edge[o], s().ends() * c + s().ends() - 1);
        out[i * K() + c] = sum;
    }
    team.sync();
}

}  // namespace hog
#endif

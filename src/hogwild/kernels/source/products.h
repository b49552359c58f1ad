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

}  // namespace hog
#endif

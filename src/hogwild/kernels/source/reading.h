// Part of energy.h: how a task reads what poses its energy, and embeddings, in packs of rows.
#pragma once

namespace hog {

/// Rows of o_0 for a pack of nodes. Lanes behind the last node repeat it.
template <class S, class F, class T>
HOG_METHOD void Task<S, F, T>::read_nodes(int row, int rows, int b, V* o0) const {
    const double* from = at_.nodes + row * at_.N + at_.n0;
#if !HOG_GPU
    if ((b + 1) * LANES <= v.n) {
        for (int x = 0; x < rows; ++x) o0[x] = eight(from + x * at_.N + b * LANES);
        return;
    }
#endif
    HOG_EACH(x, rows)  // lanes within rows: the nodes of a row lie side by side
        for (int l = 0; l < LANES; ++l)
            lane(o0[x], l) = from[x * at_.N + (b * LANES + l < v.n ? b * LANES + l : v.n - 1)];
}

template <class S, class F, class T>
HOG_METHOD void Task<S, F, T>::write_nodes(double* nodes, int row, int rows, int b, const V* o0b) const {
#if !HOG_GPU
    if ((b + 1) * LANES <= v.n) {
        for (int x = 0; x < rows; ++x)
            put_eight(o0b[x], nodes + (row + x) * at_.N + at_.n0 + b * LANES);
        return;
    }
#endif
    HOG_EACH(x, rows)
    for (int l = 0; l < LANES && b * LANES + l < v.n; ++l)
        nodes[(row + x) * at_.N + at_.n0 + b * LANES + l] = get(o0b[x], l);
}

/// The same for a pack of edges and one head.
template <class S, class F, class T>
HOG_METHOD void Task<S, F, T>::read_edges(int b, int hd, V* o0) const {
    const int own = hd * s().message().rows0(), sent = s().own_rows() + own;
    int i[LANES], j[LANES];
    for (int l = 0; l < LANES; ++l) {
        const int q = b * LANES + l < v.e ? b * LANES + l : v.e - 1;
        i[l] = v.dst[q], j[l] = v.src[q];
    }
#if !HOG_GPU
    const bool two = s().ends() == 2, more = s().sent();
    const double *mine[LANES], *theirs[LANES];
    for (int l = 0; l < LANES; ++l) {
        mine[l] = first_ + (ptrdiff_t)i[l] * s().loop_row() + own;
        theirs[l] = first_ + (ptrdiff_t)j[l] * s().loop_row() + sent;
    }
    if (two && more)
        packs_of(
            s().message().rows0(), o0, 1,
            [&](int l, int c) { return eight(mine[l] + c) + eight(theirs[l] + c); },
            [&](int l, int c) { return mine[l][c] + theirs[l][c]; });
    else if (two || more)
        packs_of(two ? mine : theirs, s().message().rows0(), o0, 1);
    else
        HOG_EACH(x, s().message().rows0()) o0[x] = wide(0.0);
#else
    HOG_EACH(x, s().message().rows0()) {
        const double *mine = at_.nodes + (own + x) * at_.N + at_.n0,
                     *theirs = at_.nodes + (sent + x) * at_.N + at_.n0;
        V z = wide(0.0);
        for (int l = 0; l < LANES; ++l) {
            if (s().ends() == 2) lane(z, l) += mine[i[l]];
            if (s().sent()) lane(z, l) += theirs[j[l]];
        }
        o0[x] = z;
    }
#endif
    if (!at_.edges) return;
    for (int l = 0; l < LANES; ++l) {
        const int q = b * LANES + l < v.e ? b * LANES + l : v.e - 1;
        HOG_EACH(x, s().message().rows0())
        lane(o0[x], l) += at_.edges[(own + x) * at_.E + at_.edge[q]];
    }
}

/// `count` fields of the receivers of a pack of edges, from the field `first` on.
template <class S, class F, class T>
HOG_METHOD void Task<S, F, T>::read_receivers(const Rows& rows, int first, int count, int b, V* out) const {
    for (int l = 0; l < LANES; ++l) {
        const int i = v.dst[b * LANES + l < v.e ? b * LANES + l : v.e - 1];
        HOG_EACH(c, count) lane(out[c], l) = rows.at(i, first + c);
    }
}

template <class S, class F, class T>
HOG_METHOD void Task<S, F, T>::read_own(const double* x, int b, V* y) const {
#if !HOG_GPU
    const double* rows[LANES];
    for (int l = 0; l < LANES; ++l)
        rows[l] = x + (b * LANES + l < v.n ? b * LANES + l : v.n - 1) * K();
    packs_of(rows, K(), y, 1);
#else
    for (int l = 0; l < LANES; ++l) {
        const double* row = x + (b * LANES + l < v.n ? b * LANES + l : v.n - 1) * K();
        HOG_EACH(c, K()) lane(y[c], l) = row[c];
    }
#endif
}

template <class S, class F, class T>
HOG_METHOD void Task<S, F, T>::read_ends(const double* x, int b, V* y) const {
#if !HOG_GPU
    const double *mine[LANES], *theirs[LANES];
    for (int l = 0; l < LANES; ++l) {
        const int q = b * LANES + l < v.e ? b * LANES + l : v.e - 1;
        mine[l] = x + v.dst[q] * K(), theirs[l] = x + v.src[q] * K();
    }
    if (s().ends() == 2) packs_of(mine, K(), y, 2);
    packs_of(theirs, K(), y + s().ends() - 1, s().ends());
#else
    for (int l = 0; l < LANES; ++l) {
        const int q = b * LANES + l < v.e ? b * LANES + l : v.e - 1;
        const double *own = x + v.dst[q] * K(), *other = x + v.src[q] * K();
        HOG_EACH(c, K()) {
            if (s().ends() == 2) lane(y[2 * c], l) = own[c];
            lane(y[s().ends() * c + s().ends() - 1], l) = other[c];
        }
    }
#endif
}

}  // namespace hog

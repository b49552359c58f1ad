// Numbers side by side on a CPU: vectors of up to 64 bytes, with the operators of numbers.
//
// gcc has vectors of any length. But it keeps one that is longer than a register in memory, copies it
// there with every use, and compares, chooses and shuffles its numbers one by one: four times the
// instructions and more. `Pack` is two halves instead, which are registers, or packs themselves. clang
// splits long vectors well.
#pragma once
#include <cstddef>
#include <cstring>
#include <utility>

#define HOG_PART inline __attribute__((always_inline))
#if defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define HOG_SHUFFLE 1
#endif
#endif

namespace hog {

/// Bytes of the longest vector that the compiler keeps in registers.
#if defined(__AVX512F__) || defined(__clang__)
constexpr int REGISTER = 64;
#elif defined(__AVX__)
constexpr int REGISTER = 32;
#else
constexpr int REGISTER = 16;
#endif

template <class T, int BYTES>
struct Pack;

/// `BYTES` bytes of numbers of type T, as a register or as a pack. Numbers that are all the same; number l
/// from `get(l)`; and numbers that are read from memory or written there, at any address.
template <class T, int BYTES, bool FITS = BYTES <= REGISTER>
struct Vector {
    typedef T type __attribute__((vector_size(BYTES), aligned(BYTES)));
    typedef T loose __attribute__((vector_size(BYTES), aligned(sizeof(T)), may_alias));
    static HOG_PART type all(T x) { return x - type{}; }
    template <class Get>
    static HOG_PART type of(const Get& get, int from = 0) {
        return of(get, from, std::make_index_sequence<BYTES / sizeof(T)>());
    }
    template <class Get, size_t... L>
    static HOG_PART type of(const Get& get, int from, std::index_sequence<L...>) {
        return type{get(from + (int)L)...};
    }
    static HOG_PART type load(const T* from) { return (type) * (const loose*)from; }
    static HOG_PART void store(const type& x, T* to) { *(loose*)to = (loose)x; }
};
template <class T, int BYTES>
struct Vector<T, BYTES, false> {
    typedef Pack<T, BYTES> type;
    typedef Vector<T, BYTES / 2> Half;
    static constexpr int half = BYTES / 2 / sizeof(T);
    static HOG_PART type all(T x) { return {Half::all(x), Half::all(x)}; }
    template <class Get>
    static HOG_PART type of(const Get& get, int from = 0) {
        return {Half::of(get, from), Half::of(get, from + half)};
    }
    static HOG_PART type load(const T* from) { return {Half::load(from), Half::load(from + half)}; }
    static HOG_PART void store(const type& x, T* to) {
        Half::store(x.low, to);
        Half::store(x.high, to + half);
    }
};

/// The integers that a comparison gives: 0 and -1.
template <int BYTES>
struct Truth {
    typedef long long type;
};
template <>
struct Truth<4> {
    typedef int type;
};

/// Numbers of type T in two halves.
template <class T, int BYTES>
struct alignas(BYTES) Pack {
    typedef typename Vector<T, BYTES / 2>::type Half;
    typedef Pack<typename Truth<sizeof(T)>::type, BYTES> Mask;
    Half low, high;

    // A copy goes by halves. The compiler's own goes by shorter pieces, and the next one to read a whole
    // register waits until all of them are written.
    Pack() = default;
    HOG_PART Pack(const Half& a, const Half& b) : low(a), high(b) {}
    HOG_PART Pack(const Pack& x) : low(x.low), high(x.high) {}
    HOG_PART Pack& operator=(const Pack& x) {
        low = x.low;
        high = x.high;
        return *this;
    }
    /// The same bits as other numbers.
    template <class U>
    HOG_PART explicit operator Pack<U, BYTES>() const {
        typedef typename Pack<U, BYTES>::Half To;
        return {(To)low, (To)high};
    }
    HOG_PART T& operator[](int l) { return reinterpret_cast<T*>(this)[l]; }
    HOG_PART T operator[](int l) const { return reinterpret_cast<const T*>(this)[l]; }
    HOG_PART Pack operator-() const { return {-low, -high}; }
    HOG_PART Pack operator~() const { return {~low, ~high}; }

#define HOG_OPERATOR(op, To, Cast)                                 \
    friend HOG_PART To operator op(const Pack& a, const Pack& b) { \
        return {Cast(a.low op b.low), Cast(a.high op b.high)};     \
    }                                                              \
    friend HOG_PART To operator op(const Pack& a, T b) {           \
        return {Cast(a.low op b), Cast(a.high op b)};              \
    }                                                              \
    friend HOG_PART To operator op(T a, const Pack& b) {           \
        return {Cast(a op b.low), Cast(a op b.high)};              \
    }
#define HOG_ARITHMETIC(op)                                                      \
    HOG_OPERATOR(op, Pack, Half)                                                \
    HOG_PART Pack& operator op##=(const Pack& b) { return *this = *this op b; } \
    HOG_PART Pack& operator op##=(T b) { return *this = *this op b; }
#define HOG_COMPARISON(op) HOG_OPERATOR(op, Mask, typename Mask::Half)
    HOG_ARITHMETIC(+)
    HOG_ARITHMETIC(-)
    HOG_ARITHMETIC(*)
    HOG_ARITHMETIC(/)
    HOG_ARITHMETIC(&)
    HOG_ARITHMETIC(|)
    HOG_ARITHMETIC(<<)
    HOG_COMPARISON(<)
    HOG_COMPARISON(<=)
    HOG_COMPARISON(>)
    HOG_COMPARISON(>=)
    HOG_COMPARISON(==)
    HOG_COMPARISON(!=)
#undef HOG_COMPARISON
#undef HOG_ARITHMETIC
#undef HOG_OPERATOR
};

/// `yes` where a mask is set, and `no` elsewhere: ? : chooses between a compiler's own vectors only.
template <class M, class X>
HOG_PART X pick(const M& m, const X& yes, const X& no) {
    return m ? yes : no;
}
template <class I, class T, int BYTES>
HOG_PART Pack<T, BYTES> pick(const Pack<I, BYTES>& m, const Pack<T, BYTES>& yes,
                             const Pack<T, BYTES>& no) {
    return {pick(m.low, yes.low, no.low), pick(m.high, yes.high, no.high)};
}

/// A vector of type X, whose number l is number AT(l) of those of a and b side by side.
template <class X, int (*AT)(int), class Y, size_t... L>
HOG_PART X in_order(const Y& a, const Y& b, std::index_sequence<L...>) {
#ifdef HOG_SHUFFLE
    return __builtin_shufflevector(a, b, AT(L)...);
#else
    constexpr int lanes = sizeof(Y) / sizeof(a[0]);
    return X{(AT(L) < lanes ? a[AT(L) % lanes] : b[AT(L) % lanes])...};
#endif
}
/// One vector of two halves, and its halves.
template <int FROM>
constexpr int following(int l) {
    return FROM + l;
}
template <class X, class H>
HOG_PART X joined(const H& low, const H& high) {
    if constexpr (sizeof(X) > REGISTER) {
        return X(low, high);
    } else {
        return in_order<X, following<0>>(low, high,
                                         std::make_index_sequence<sizeof(X) / sizeof(low[0])>());
    }
}
template <class X, class H>
HOG_PART void halves(const X& x, H& low, H& high) {
    if constexpr (sizeof(X) > REGISTER) {
        low = x.low, high = x.high;
    } else {
        constexpr int half = sizeof(H) / sizeof(x[0]);
        low = in_order<H, following<0>>(x, x, std::make_index_sequence<half>());
        high = in_order<H, following<half>>(x, x, std::make_index_sequence<half>());
    }
}
/// a and b get numbers of both in these orders.
template <int (*FIRST)(int), int (*SECOND)(int), class X>
HOG_PART void shuffle(X& a, X& b) {
    const X x = a, y = b;
    const auto all = std::make_index_sequence<sizeof(X) / sizeof(a[0])>();
    a = in_order<X, FIRST>(x, y, all);
    b = in_order<X, SECOND>(x, y, all);
}

/// Of every 2 S numbers, the last S of a and the first S of b change places.
template <int S, int LANES>
struct Exchange {
    static constexpr int first(int l) { return l & S ? LANES + l - S : l; }
    static constexpr int second(int l) { return l & S ? LANES + l : l + S; }
};
template <int S, class X>
HOG_PART void exchange(X& a, X& b) {
    typedef Exchange<S, sizeof(X) / sizeof(a[0])> In;
    shuffle<In::first, In::second>(a, b);
}
template <int S, class T, int BYTES>
HOG_PART void exchange(Pack<T, BYTES>& a, Pack<T, BYTES>& b) {
    if constexpr (2 * S * sizeof(T) == BYTES) {
        std::swap(a.high, b.low);
    } else {
        exchange<S>(a.low, b.low);
        exchange<S>(a.high, b.high);
    }
}
/// The square matrix of N rows with N numbers, transposed; every N numbers of longer rows for themselves.
template <int N, class X>
HOG_PART void turn(X* a) {
    for (int i = 0; i < N; i += 2) exchange<1>(a[i], a[i + 1]);
    if constexpr (N > 2)
        for (int i = 0; i < N; ++i)
            if (!(i & 2)) exchange<2>(a[i], a[i + 2]);
    if constexpr (N > 4)
        for (int i = 0; i < 4; ++i) exchange<4>(a[i], a[i + 4]);
}

/// a and b side by side are pairs of numbers: the first ones go to a, and the second ones to b.
constexpr int even(int l) { return 2 * l; }
constexpr int odd(int l) { return 2 * l + 1; }
template <class X>
HOG_PART void unzip(X& a, X& b) {
    shuffle<even, odd>(a, b);
}
template <class T, int BYTES>
HOG_PART void unzip(Pack<T, BYTES>& a, Pack<T, BYTES>& b) {
    unzip(a.low, a.high);
    unzip(b.low, b.high);
    std::swap(a.high, b.low);
}
/// The reverse.
template <int LANES>
struct Zip {
    static constexpr int first(int l) { return l / 2 + l % 2 * LANES; }
    static constexpr int second(int l) { return first(l) + LANES / 2; }
};
template <class X>
HOG_PART void zip(X& a, X& b) {
    typedef Zip<sizeof(X) / sizeof(a[0])> In;
    shuffle<In::first, In::second>(a, b);
}
template <class T, int BYTES>
HOG_PART void zip(Pack<T, BYTES>& a, Pack<T, BYTES>& b) {
    std::swap(a.high, b.low);
    zip(a.low, a.high);
    zip(b.low, b.high);
}

}  // namespace hog

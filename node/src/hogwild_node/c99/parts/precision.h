#if defined(__GNUC__)
#define HOG_INLINE static inline __attribute__((unused))
#else
#define HOG_INLINE static inline
#endif
#define HOG_TABLE static const

#if HOG_SINGLE
#define HOG_EXP expf
#define HOG_LOG1P log1pf
#define HOG_ABS fabsf
#define HOG_SQRT sqrtf
#define HOG_TANH tanhf
#else
#define HOG_EXP exp
#define HOG_LOG1P log1p
#define HOG_ABS fabs
#define HOG_SQRT sqrt
#define HOG_TANH tanh
#endif

/* How loops over numbers are compiled, and how a thread computes with floating-point ones.
 *
 * TensorFlow's threads, and PyTorch's on demand, take numbers near 0 for 0. Sums must not depend on
 * the thread that makes them: else ranks have different bits. */
#ifndef HVDLITE_BASE_FLOATS_H
#define HVDLITE_BASE_FLOATS_H

/* SIMD: compiles a kernel once for each generation of processors. The loader picks the widest clone
 * that the processor runs. Off under sanitizers: their run-time is not ready when it picks. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&   \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SIMD
#endif

#if defined __x86_64__ || defined __i386__
#include <xmmintrin.h>

typedef unsigned floats_mode;

/* Takes the default mode; returns the one before, for floats_restore. */
static inline floats_mode floats_exact(void) {
    enum { DEFAULT = 0x1f80 }; /* to nearest, no number flushed to 0, no trap */
    floats_mode before = _mm_getcsr();
    _mm_setcsr(DEFAULT);
    return before;
}
static inline void floats_restore(floats_mode mode) { _mm_setcsr(mode); }

#else
#include <fenv.h>

typedef fenv_t floats_mode;

static inline floats_mode floats_exact(void) {
    floats_mode before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    return before;
}
static inline void floats_restore(floats_mode mode) { fesetenv(&mode); }
#endif

#endif

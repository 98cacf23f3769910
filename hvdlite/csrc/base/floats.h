/* How the processor runs loops over numbers.
 *
 * SIMD selects the instructions; floats_exact sets the floating-point mode of the thread. Threads
 * of TensorFlow flush subnormal numbers to 0; threads of PyTorch do so if the user asks. If such a
 * thread computed a sum, the result could differ from the results of other ranks. */
#ifndef HVDLITE_BASE_FLOATS_H
#define HVDLITE_BASE_FLOATS_H

/* SIMD compiles a kernel for several generations of processors; when the library is loaded, the
 * loader picks the newest version that this processor can run. SIMD is empty under sanitizers,
 * because their run-time library is not initialized yet when the loader picks. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&   \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SIMD
#endif

#if defined __x86_64__ || defined __i386__
#include <xmmintrin.h>

typedef unsigned floats_mode;

/* Sets the default mode; returns the previous mode, which the caller passes to floats_restore. */
static inline floats_mode floats_exact(void) {
    enum { DEFAULT = 0x1f80 }; /* rounds to nearest, flushes no number to 0, traps nothing */
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

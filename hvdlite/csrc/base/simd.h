/* SIMD: kernels that are compiled once for each generation of processors.
 *
 * One binary serves old and new processors: the loader picks the widest clone that runs here.
 * Not under sanitizers, whose run-time is not there yet when the loader asks. */
#ifndef HVDLITE_BASE_SIMD_H
#define HVDLITE_BASE_SIMD_H

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&   \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SIMD
#endif

#endif

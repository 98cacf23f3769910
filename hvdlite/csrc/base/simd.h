/* SIMD: compiles a kernel once for each generation of processors.
 *
 * One binary serves old and new processors: the loader picks the widest clone that the processor
 * runs. Off under sanitizers: their run-time is not ready when the loader picks. */
#ifndef HVDLITE_BASE_SIMD_H
#define HVDLITE_BASE_SIMD_H

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&   \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define SIMD
#endif

#endif

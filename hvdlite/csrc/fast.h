/* What the compiler must be told for speed.
 *
 * Layer 0. FAST: kernels that are compiled once for each generation of processors. One binary serves old and new processors: the loader picks the widest clone that runs here.
 * Not under sanitizers, whose run-time is not there yet when the loader asks. */
#ifndef HVDLITE_FAST_H
#define HVDLITE_FAST_H

#include <stddef.h>
#include <string.h>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) &&   \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define FAST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FAST
#endif

/* The C library's memcpy. Where GCC knows that there are few bytes it puts `rep movs` in its place, which
 * some processors run at a quarter of the speed, as the addresses happen to lie: it must not know. */
static inline void copy_bytes(void *to, const void *from, size_t bytes) {
    __asm__("" : "+r"(bytes));
    if (bytes) memcpy(to, from, bytes);
}

#endif

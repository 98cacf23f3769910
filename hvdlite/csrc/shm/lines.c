/* Copies of whole cache lines to and from shared memory. */
#include "shm/window.h"

#include "base/floats.h"

#include <stdint.h>
#include <string.h>

/* LINE: bytes of a cache line. BLOCK: bytes that stay in the L1 cache until they are rewritten. */
enum { LINE = 64, BLOCK = 1024 };

typedef char line __attribute__((vector_size(LINE), aligned(1), may_alias));

/* Copies line by line. memcpy may use string instructions, which take twice as long to read lines
 * from another core's cache if `to` and `from` have different offsets within their cache lines. */
SIMD static void copy(char *to, const char *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i += LINE) {
        *(line *)(void *)(to + i) = *(const line *)(const void *)(from + i);
        /* keeps the compiler from replacing the loop by memcpy */
        __asm__ volatile("" ::: "memory");
    }
}

void lines_copy(void *to, const void *from, size_t bytes) {
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    if (head > bytes) head = bytes;
    size_t lines = (bytes - head) / LINE * LINE, done = head + lines;
    if (head) memcpy(to, from, head);
    copy((char *)to + head, (const char *)from + head, lines);
    if (bytes > done) memcpy((char *)to + done, (const char *)from + done, bytes - done);
}

void lines_take_over(void *lines, size_t bytes) {
    volatile char *at = lines;
    for (size_t i = 0; i < bytes; i += LINE) at[i] = at[i];
}

void lines_copy_over(void *to, void *from, size_t bytes) {
    for (size_t done = 0, block; done < bytes; done += block) {
        block = bytes - done < BLOCK ? bytes - done : BLOCK;
        lines_copy((char *)to + done, (char *)from + done, block);
        lines_take_over((char *)from + done, block);
    }
}

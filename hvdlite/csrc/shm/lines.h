/* Copies of memory that two cores write in turn, cache line by cache line.
 *
 * A core that stores to a line which another core has read must wait until that core drops the
 * line. But a line that a core reads and then writes is handed over with the right to write it. So
 * the only reader of another rank's data also writes to it: sums, or the same bytes. Two cores of
 * an AMD EPYC that share only the last cache pass on 64 KB in 10 us this way, and in 34 us
 * otherwise. */
#ifndef HVDLITE_SHM_LINES_H
#define HVDLITE_SHM_LINES_H

#include <stddef.h>

/* A rank that sees a flag that was raised (release) after the copy sees the copy. */
void lines_copy(void *to, const void *from, size_t bytes);
/* Writes the lines that this rank has just read, unchanged. */
void lines_take_over(void *lines, size_t bytes);
/* Copies lines, and takes them over. */
void lines_copy_over(void *to, void *from, size_t bytes);

#endif

/* Copies of memory that two cores write in turn, cache line by cache line.
 *
 * A core that stores to a line which another core has read waits until that one drops it. Caches
 * hand over a line that is read and then written with the right to write it. So whoever alone reads
 * what another rank wrote writes to it, too: sums, or what lies there. Two cores of an AMD EPYC
 * that share no cache but the last pass 64 KB on in 10 us in this way, and in 34 us otherwise. */
#ifndef HVDLITE_SHM_LINES_H
#define HVDLITE_SHM_LINES_H

#include <stddef.h>

/* A rank that sees a flag raised (release) after the copy sees the copy. */
void lines_copy(void *to, const void *from, size_t bytes);
/* Writes lines back that this rank has just read, as they are. */
void lines_take_over(void *lines, size_t bytes);
/* Copies lines, and takes them over. */
void lines_copy_over(void *to, void *from, size_t bytes);

#endif

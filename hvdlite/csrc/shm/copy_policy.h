/* Copy policy: chooses the faster of two ways to write what another core reads next.
 *
 * A store through the caches, to a line that the other core has read, first fetches the line from
 * that core's cache. A non-temporal store drops the other copies and fetches nothing. Where cores
 * share a cache the first way is faster; where they are far apart the second, up to four times (two
 * cores of an AMD EPYC, 64 MiB: 32 and 9 ms). A hypervisor also moves virtual cores. So both ways
 * are tried first, and the slower one again now and then.
 *
 * The way is chosen for a stretch of a pass. All ranks take the leader's choice: they wait for each
 * other, so no rank's clock would show what its own way costs. The leader chooses one stretch
 * ahead, on a board that all ranks map: a rank that begins a stretch has received data from the
 * leader since it began the last one. One thread a rank. */
#ifndef HVDLITE_SHM_COPY_POLICY_H
#define HVDLITE_SHM_COPY_POLICY_H

#include <stdbool.h>
#include <stddef.h>

enum copy_way { COPY_CACHED, COPY_NONTEMPORAL, COPY_WAYS };

enum { COPY_SIZES = 48 };

/* The ways of this stretch and the next: by size, and by the lowest bit of the stretch's number. */
struct copy_board {
    unsigned char ways[COPY_SIZES][2];
};

/* About passes of similar size: only their times compare. */
struct copy_record {
    double seconds[COPY_WAYS]; /* a byte, lately; 0: not known */
    unsigned long stretches;   /* begun so far; the same on all ranks */
    enum copy_way best;
    unsigned long tried; /* the last stretch that tried the other way */
    unsigned long pause; /* stretches until it is tried again */
};

struct copy_policy {
    struct copy_board *board; /* zeroed before the first stretch; the leader writes it */
    bool leads;
    struct copy_record of_size[COPY_SIZES]; /* by log of the pass's bytes; the leader's counts */
};

/* Begins a stretch of a pass of `pass` bytes, at most one ahead of other ranks; returns the way. */
enum copy_way copy_policy_begin(struct copy_policy *s, size_t pass);
/* Ends the stretch, which took so many seconds a byte. */
void copy_policy_end(struct copy_policy *s, size_t pass, enum copy_way way, double seconds);

/* Copies. A rank that sees a flag raised (release) after the copy sees the copy. */
typedef void copy_function(void *to, const void *from, size_t bytes);
copy_function copy_cached;
copy_function *copy_function_of(enum copy_way way);

#endif

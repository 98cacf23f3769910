/* Copy policy: two ways to write what another core reads next. Which is the faster one here is found out.
 *
 * Through the caches, a store to a line that the other core has read fetches the line from
 * its cache first; a non-temporal store drops the copies without fetching them. Where cores share
 * a cache the first is faster, where they are far apart the second, up to four times (two cores of an
 * AMD EPYC, 64 MiB: 32 and 9 ms); and a hypervisor moves virtual cores about. So each way is tried
 * first, and the slower one now and then again.
 *
 * The way is chosen for a stretch of a pass. All ranks take the same one, the leader's choice: they wait
 * for each other, so that none would see by its own clock what its way alone is worth. The leader
 * chooses a stretch ahead, on a board that all map: whoever begins a stretch has heard from it since it began
 * the one before. One thread a rank. */
#ifndef HVDLITE_SHM_COPY_POLICY_H
#define HVDLITE_SHM_COPY_POLICY_H

#include <stdbool.h>
#include <stddef.h>

enum copy_way { COPY_CACHED, COPY_NONTEMPORAL, COPY_WAYS };

enum { COPY_SIZES = 48 };

/* The ways of this stretch and the next, by size and by whether the number of the stretch is even. */
struct copy_board {
    unsigned char ways[COPY_SIZES][2];
};

/* Of passes of about the same size: only those compare. */
struct copy_record {
    double seconds[COPY_WAYS]; /* a byte, lately; 0: not known yet */
    unsigned long stretches;   /* begun; the same on all ranks */
    enum copy_way best;
    unsigned long tried; /* the stretch that took the other way last */
    unsigned long pause; /* stretches from there to the next one */
};

struct copy_policy {
    struct copy_board *board; /* zeroed before the first stretch; the leader writes it */
    bool leads;
    struct copy_record of_size[COPY_SIZES]; /* by the logarithm of the bytes; the leader's */
};

/* A stretch of a pass over so many bytes begins, of which no rank is two ahead of another: the way to take. */
enum copy_way copy_policy_begin(struct copy_policy *s, size_t pass);
/* It has taken so many seconds a byte. */
void copy_policy_end(struct copy_policy *s, size_t pass, enum copy_way way, double seconds);

/* Copies; what has been written is there for whoever sees a flag that is raised (release) after it. */
typedef void copy_function(void *to, const void *from, size_t bytes);
copy_function copy_cached;
copy_function *copy_function_of(enum copy_way way);

#endif

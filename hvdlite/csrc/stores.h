/* Stores: two ways to write what another core reads next. Which is the faster one here is found out.
 *
 * Layer 0. Through the caches, a store to a line that the other core has read fetches the line from
 * its cache first; a non-temporal store drops the copies without fetching them. Where cores share
 * a cache the first is faster, where they are far apart the second, up to twice (two cores of an AMD
 * EPYC, 64 MiB: 33 and 20 ms); and a hypervisor moves virtual cores about. So each way is tried first,
 * and the slower one now and then again. One thread. */
#ifndef HVDLITE_STORES_H
#define HVDLITE_STORES_H

#include <stddef.h>

enum store_way { STORE_CACHED, STORE_PAST_CACHES, STORE_WAYS };

enum { STORE_SIZES = 48 };

/* Of passes of about the same size: only those compare. */
struct store_record {
    double seconds[STORE_WAYS]; /* a byte, lately */
    unsigned long passes;
};

/* Zeroed: nothing is known yet. */
struct stores {
    struct store_record of_size[STORE_SIZES]; /* by the logarithm of the bytes */
};

/* The way to take in the next pass over `bytes`. Ranks that make the same passes try at the same time. */
enum store_way stores_choose(const struct stores *s, size_t bytes);
/* A pass over `bytes` by that way has taken `seconds`. */
void stores_note(struct stores *s, size_t bytes, enum store_way way, double seconds);

/* Copies; what has been written is there for whoever sees a flag that is raised (release) after it. */
typedef void store_copy(void *to, const void *from, size_t bytes);
store_copy store_cached;
store_copy *stores_copy(enum store_way way);

#endif

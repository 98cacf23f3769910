/* Spare memory: blocks of one size, kept to be used again.
 *
 * Layer 0, any thread. What one thread allocates and another frees makes malloc slow, as it has both
 * wait for each other: a tenth of the time of pushing a small gradient. */
#ifndef HVDLITE_SPARE_H
#define HVDLITE_SPARE_H

#include "sync.h"

#include <stddef.h>

struct spare {
    struct monitor monitor; /* guards: */
    void *first;            /* each block begins with the address of the next */
};

void spare_init(struct spare *s);
void spare_destroy(struct spare *s); /* frees what was given back */

/* `bytes`, the same in every call and at least a pointer's, not zeroed. NULL: no memory. */
void *spare_take(struct spare *s, size_t bytes);
void spare_give(struct spare *s, void *block);

#endif

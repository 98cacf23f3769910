/* Free list: blocks of one size, kept to be used again.
 *
 * Any thread. What one thread allocates and another frees makes malloc slow, as it has both
 * wait for each other: a tenth of the time of pushing a small gradient. */
#ifndef HVDLITE_BASE_FREE_LIST_H
#define HVDLITE_BASE_FREE_LIST_H

#include "base/sync.h"

#include <stddef.h>

struct free_list {
    struct monitor monitor; /* guards: */
    void *first;            /* each block begins with the address of the next */
};

void free_list_init(struct free_list *s);
void free_list_destroy(struct free_list *s); /* frees what was given back */

/* `bytes`, the same in every call and at least a pointer's, not zeroed. NULL: no memory. */
void *free_list_take(struct free_list *s, size_t bytes);
void free_list_give(struct free_list *s, void *block);

#endif

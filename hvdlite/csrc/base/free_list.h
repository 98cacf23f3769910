/* Free list: blocks of one size, kept for reuse. Any thread.
 *
 * malloc is slow for a block that one thread allocates and another frees, because the threads wait
 * for each other: a tenth of the time of pushing a small gradient. */
#ifndef HVDLITE_BASE_FREE_LIST_H
#define HVDLITE_BASE_FREE_LIST_H

#include "base/sync.h"

struct free_list {
    struct mutex mutex; /* guards `first` */
    void *first;        /* each block starts with the address of the next */
};

void free_list_init(struct free_list *s);

/* A block, not zeroed; `bytes`: at least sizeof(void *), always the same. NULL: no memory. */
void *free_list_take(struct free_list *s, size_t bytes);
void free_list_give(struct free_list *s, void *block);

#endif

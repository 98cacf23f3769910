#include "shm/regions.h"

void regions_init(struct regions *t) {
    t->first = NULL;
    mutex_init(&t->mutex);
}

void regions_free(struct regions *t) { mutex_destroy(&t->mutex); }

void regions_add(struct regions *t, struct region *region) {
    mutex_lock(&t->mutex);
    region->next = t->first;
    t->first = region;
    mutex_unlock(&t->mutex);
}

void regions_remove(struct regions *t, struct region *region) {
    mutex_lock(&t->mutex);
    struct region **at = &t->first;
    while (*at && *at != region) at = &(*at)->next;
    if (*at) *at = region->next;
    mutex_unlock(&t->mutex);
}

const struct region *regions_find(struct regions *t, const void *memory, size_t bytes,
                                  int64_t *offset) {
    uintptr_t begin = (uintptr_t)memory;
    mutex_lock(&t->mutex);
    struct region *r = t->first;
    for (; r; r = r->next) {
        uintptr_t part = (uintptr_t)region_part(r, r->self);
        if (begin < part || begin - part > r->stride || bytes > r->stride - (begin - part))
            continue;
        *offset = (int64_t)(begin - part);
        break;
    }
    mutex_unlock(&t->mutex);
    return r;
}

#include "shm/regions.h"

void regions_init(struct regions *t) {
    t->first = NULL;
    monitor_init(&t->monitor);
}

void regions_free(struct regions *t) { monitor_destroy(&t->monitor); }

void regions_add(struct regions *t, struct region *region) {
    monitor_lock(&t->monitor);
    region->next = t->first;
    t->first = region;
    monitor_unlock(&t->monitor);
}

void regions_remove(struct regions *t, struct region *region) {
    monitor_lock(&t->monitor);
    struct region **at = &t->first;
    while (*at && *at != region) at = &(*at)->next;
    if (*at) *at = region->next;
    monitor_unlock(&t->monitor);
}

const struct region *regions_find(struct regions *t, const void *memory, size_t bytes,
                                  int64_t *offset) {
    uintptr_t begin = (uintptr_t)memory;
    monitor_lock(&t->monitor);
    struct region *r = t->first;
    for (; r; r = r->next) {
        uintptr_t part = (uintptr_t)region_part(r, r->self);
        if (begin < part || begin - part > r->stride || bytes > r->stride - (begin - part))
            continue;
        *offset = (int64_t)(begin - part);
        break;
    }
    monitor_unlock(&t->monitor);
    return r;
}

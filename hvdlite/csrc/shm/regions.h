/* Regions: memory in which the ranks of a host keep tensors, so that collectives need no copies.
 *
 * A region is shared memory with one part for each rank. All parts have the same size, and a tensor
 * has the same offset in every part. The table finds the region of a pointer. Any thread. */
#ifndef HVDLITE_SHM_REGIONS_H
#define HVDLITE_SHM_REGIONS_H

#include "base/error.h"
#include "base/os.h"

/* Bytes between parts. If the distance between parts were a power of two, reads and writes would
 * run at half speed: the L1 cache of some processors predicts the way of a line from a few bits of
 * the address (Lipp et al., "Take A Way: Exploring the Security Implications of AMD's Cache Way
 * Predictors", 2020). The gap need not fill large pages, so parts begin and end inside them. */
enum { REGION_GAP = 64 * 1024 };

struct region {
    struct region *next;
    int32_t id;   /* equal on all ranks; not 0 */
    char *memory; /* the n parts, `stride` bytes apart, in the order of local ranks */
    size_t stride;
    int n, self;
};

struct regions {
    struct mutex mutex; /* guards the list; regions themselves do not change */
    struct region *first;
};

void regions_init(struct regions *t);
void regions_free(struct regions *t); /* does not free the regions */

void regions_add(struct regions *t, struct region *region);
void regions_remove(struct regions *t, struct region *region);

/* Finds the region in which this rank's part contains [memory, memory + bytes). *offset: offset of
 * the memory in the part. NULL: no such region. */
const struct region *regions_find(struct regions *t, const void *memory, size_t bytes,
                                  int64_t *offset);

static inline char *region_part(const struct region *r, int local_rank) {
    return r->memory + (size_t)local_rank * r->stride;
}

#endif

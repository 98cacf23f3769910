/* Regions: memory in which ranks of this host keep tensors, so that a collective needs no copy.
 *
 * A region is shared memory with a part for each rank, all of one size: a tensor has the same
 * offset in every part. The table finds the region of a pointer; any thread. */
#ifndef HVDLITE_SHM_REGIONS_H
#define HVDLITE_SHM_REGIONS_H

#include "base/error.h"
#include "base/sync.h"

/* Bytes between parts. If the parts' distance is a power of two, reads and writes run at half
 * the speed: the first cache of some processors predicts a line's way from a few address bits
 * (Lipp et al., "Take A Way: Exploring the Security Implications of AMD's Cache Way Predictors",
 * 2020). The gap is a multiple of small pages only, so parts begin and end inside large pages. */
enum { REGION_GAP = 64 * 1024 };

struct region {
    struct region *next;
    int32_t id;   /* the same on every rank; not 0 */
    char *memory; /* n parts, `stride` bytes apart, in the order of local ranks */
    size_t stride;
    int n, self;
};

struct regions {
    struct mutex mutex; /* guards the list; the members of a region do not change */
    struct region *first;
};

void regions_init(struct regions *t);
void regions_free(struct regions *t); /* leaves the regions themselves alone */

void regions_add(struct regions *t, struct region *region);
void regions_remove(struct regions *t, struct region *region);

/* Returns the region whose own part contains [memory, memory + bytes), and the offset; NULL:
 * none. */
const struct region *regions_find(struct regions *t, const void *memory, size_t bytes,
                                  int64_t *offset);

static inline char *region_part(const struct region *r, int local_rank) {
    return r->memory + (size_t)local_rank * r->stride;
}

#endif

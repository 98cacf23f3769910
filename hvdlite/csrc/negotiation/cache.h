/* The response cache: what the ranks have agreed on for a name, so that later requests need only an
 * id.
 *
 * A rank caches its own requests; the coordinator has one cache for all ranks. The coordinator
 * never gives an id twice. So two caches that dropped different entries can miss, but never take
 * one tensor for another. A full cache drops the least recently used entry. Not thread-safe. */
#ifndef HVDLITE_NEGOTIATION_CACHE_H
#define HVDLITE_NEGOTIATION_CACHE_H

#include "base/map.h"
#include "negotiation/request.h"

struct cache;

struct cache_entry {
    uint64_t id;          /* counted from 1 */
    struct map_node node; /* by name */
    struct map_node by_id;
    /* list in order of use; like the nodes it is private to the cache */
    struct cache_entry *newer, *older;
    /* length of `rows`: the number of ranks if their rows may differ, else 0 */
    uint32_t nrows;
    int64_t *rows; /* rows of every rank, owned by the cache */
    /* for the engine: number of uses in which this rank's caller waited and another rank's did
     * not */
    unsigned waited_alone;
    struct request request; /* last, so that the fields that each hit reads lie together */
};

/* capacity in tensors; 0 keeps nothing. NULL: no memory. */
struct cache *cache_new(size_t capacity);
void cache_free(struct cache *c);

/* NULL: no entry. A hit counts as a use. The entry lives until the next cache_put. */
struct cache_entry *cache_by_name(struct cache *c, const struct map_node *like);
struct cache_entry *cache_by_id(struct cache *c, uint64_t id);

/* Replaces the entry of the request's name. Copies `rows`. */
int cache_put(struct cache *c, uint64_t id, const struct request *request, const int64_t *rows,
              uint32_t nrows, hvd_error *err);

#endif

/* The response cache: what was agreed on for a name, so that the next time an id is enough.
 *
 * Used twice: a rank keeps its own requests, the coordinator keeps one of all ranks.
 * The coordinator gives ids and never gives one twice, so two caches that have dropped different
 * entries can only miss, never mistake one tensor for another. When full, the entry unused for
 * longest goes. Not thread-safe. */
#ifndef HVDLITE_NEGOTIATION_CACHE_H
#define HVDLITE_NEGOTIATION_CACHE_H

#include "base/map.h"
#include "negotiation/request.h"

struct cache;

struct cache_entry {
    uint64_t id;          /* from 1 */
    struct map_node node; /* by its name */
    struct map_node by_id;
    uint32_t nrows;         /* where rows vary: number of ranks; else 0 */
    int64_t *rows;          /* rows of every rank, owned by the cache */
    struct request request; /* last, so that what each hit reads lies together */
};

/* capacity in tensors; 0 keeps nothing. NULL when memory is short. */
struct cache *cache_new(size_t capacity);
void cache_free(struct cache *c);

/* NULL: not there. A hit counts as use. The entry lives until the next cache_put. */
const struct cache_entry *cache_by_name(struct cache *c, const struct map_node *like);
const struct cache_entry *cache_by_id(struct cache *c, uint64_t id);

/* Replaces what was kept for the request's name. `rows` is copied. */
int cache_put(struct cache *c, uint64_t id, const struct request *request, const int64_t *rows,
              uint32_t nrows, hvd_error *err);

#endif

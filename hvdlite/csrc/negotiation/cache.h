/* The response cache: what the ranks have agreed on for each name, so that later requests send only
 * an id.
 *
 * A rank caches its own requests; the coordinator has one cache for all ranks. The coordinator
 * never reuses an id. So if two caches have dropped different entries, a look-up can fail, but
 * never finds another tensor. A full cache drops the least recently used entry. Not thread-safe. */
#ifndef HVDLITE_NEGOTIATION_CACHE_H
#define HVDLITE_NEGOTIATION_CACHE_H

#include "base/map.h"
#include "negotiation/request.h"

struct cache;

struct cache_entry {
    uint64_t id;          /* the first entry has 1 */
    struct map_node node; /* by name */
    struct map_node by_id;
    /* neighbors in the list of entries in order of use; only cache.c uses them and the nodes */
    struct cache_entry *newer, *older;
    /* length of `rows`: the number of ranks if their rows may differ, else 0 */
    uint32_t nrows;
    int64_t *rows; /* rows of every rank, owned by the cache */
    /* The engine counts here how often this rank's caller waited for the tensor while another
     * rank's caller did not wait. */
    unsigned waited_alone;
    /* long, so it is the last field: the fields that every look-up reads are close to each other */
    struct request request;
};

/* capacity: the largest number of tensors; 0 keeps nothing. Returns NULL if memory is short. */
struct cache *cache_new(size_t capacity);
void cache_free(struct cache *c);

/* Return the entry; NULL: there is none. A look-up counts as a use. The entry is valid until the
 * next cache_put. */
struct cache_entry *cache_by_name(struct cache *c, const struct map_node *like);
struct cache_entry *cache_by_id(struct cache *c, uint64_t id);

/* Stores the request, in place of an entry with the same name. Copies `rows`. */
int cache_put(struct cache *c, uint64_t id, const struct request *request, const int64_t *rows,
              uint32_t nrows, hvd_error *err);

#endif

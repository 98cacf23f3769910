/* A hash map from names to values.
 *
 * Layer 0. The key is not copied: it must live in the value or as long as it. Not thread-safe. */
#ifndef HVDLITE_MAP_H
#define HVDLITE_MAP_H

#include "error.h"

#include <stddef.h>

struct map_node;

struct map {
    struct map_node **buckets;
    size_t nbuckets, count;
    struct map_node *spare; /* to use again */
};

/* A zeroed struct is an empty map. map_clear frees the nodes, never the values. */
void map_clear(struct map *map);

void *map_get(const struct map *map, const char *key); /* NULL: not there */
int map_put(struct map *map, const char *key, void *value,
            hvd_error *err);                                     /* the key must be new */
void map_replace(struct map *map, const char *key, void *value); /* the key must be there */
void *map_remove(struct map *map, const char *key); /* the value that was there, or NULL */

#endif

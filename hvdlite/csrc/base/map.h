/* A hash map. Its keys are names or numbers.
 *
 * Values contain their own nodes, so adding an entry allocates nothing. A node keeps the hash of
 * its name, so the name is hashed once for any number of look-ups. Not thread-safe. */
#ifndef HVDLITE_BASE_MAP_H
#define HVDLITE_BASE_MAP_H

#include "base/error.h"

struct map_node {
    struct map_node *next;
    uint64_t hash;   /* hash of the key */
    const char *key; /* NULL: the key is a number, and equal hashes mean equal numbers */
    void *value;
};

struct map {
    struct map_node **buckets;
    size_t nbuckets, count;
};

/* Does not copy the key: the key must outlive the node. */
struct map_node map_node_of(const char *key, void *value);
/* A map may contain names or numbers, not both. */
struct map_node map_node_of_number(uint64_t number, void *value);
/* Returns a node for `key`, which must equal the key of `like`: the node copies like->hash. */
struct map_node map_node_like(const struct map_node *like, const char *key, void *value);

/* A zeroed struct is an empty map. map_clear leaves nodes and values as they are. */
void map_clear(struct map *map);

void *map_get(const struct map *map, const char *key);              /* NULL: not found */
void *map_get_number(const struct map *map, uint64_t number);       /* NULL: not found */
void *map_find(const struct map *map, const struct map_node *like); /* looks up the key of `like` */
/* the key must not be in the map yet */
int map_put(struct map *map, struct map_node *node, hvd_error *err);
/* the node must be in the map */
void map_remove(struct map *map, struct map_node *node);

#endif

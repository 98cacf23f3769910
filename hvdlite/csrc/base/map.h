/* A hash map from names, or from numbers, to values.
 *
 * The nodes live in the values, so an entry costs no allocation. A name is hashed once, however
 * often it is looked up. Not thread-safe. */
#ifndef HVDLITE_BASE_MAP_H
#define HVDLITE_BASE_MAP_H

#include "base/error.h"

struct map_node {
    struct map_node *next;
    uint64_t hash;   /* hash of the key */
    const char *key; /* NULL: the key is a number, which the hash determines */
    void *value;
};

struct map {
    struct map_node **buckets;
    size_t nbuckets, count;
};

/* The key is not copied: it must outlive the node. */
struct map_node map_node_of(const char *key, void *value);
/* A map holds only names or only numbers. */
struct map_node map_node_of_number(uint64_t number, void *value);
/* A node for `key`, an equal copy of the key of `like`: takes the hash of `like` instead of
 * computing it. */
struct map_node map_node_like(const struct map_node *like, const char *key, void *value);

/* A zeroed struct is an empty map. map_clear touches neither nodes nor values. */
void map_clear(struct map *map);

void *map_get(const struct map *map, const char *key);        /* NULL: not there */
void *map_get_number(const struct map *map, uint64_t number); /* NULL: not there */
void *map_find(const struct map *map,
               const struct map_node *like); /* the value under the key of `like` */
int map_put(struct map *map, struct map_node *node, hvd_error *err); /* the key must be new */
void map_remove(struct map *map, struct map_node *node);             /* the node must be there */

#endif

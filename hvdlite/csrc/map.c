#include "map.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct map_node {
    struct map_node *next;
    uint64_t hash;
    const char *key;
    void *value;
};

/* FNV-1a, 64 bits. */
static uint64_t hash_of(const char *key) {
    uint64_t hash = 14695981039346656037u;
    for (; *key; key++) hash = (hash ^ (unsigned char)*key) * 1099511628211u;
    return hash;
}

static struct map_node **find(const struct map *map, const char *key) {
    uint64_t hash = hash_of(key);
    struct map_node **at = &map->buckets[hash % map->nbuckets];
    while (*at && ((*at)->hash != hash || strcmp((*at)->key, key) != 0)) at = &(*at)->next;
    return at;
}

static int grow(struct map *map, hvd_error *err) {
    size_t n = map->nbuckets ? 2 * map->nbuckets : 64;
    struct map_node **buckets = calloc(n, sizeof *buckets);
    if (!buckets) return error_set(err, HVD_NO_MEMORY, "no memory for a table of %zu names", n);
    for (size_t i = 0; i < map->nbuckets; i++) {
        for (struct map_node *node = map->buckets[i], *next; node; node = next) {
            next = node->next;
            node->next = buckets[node->hash % n];
            buckets[node->hash % n] = node;
        }
    }
    free(map->buckets);
    map->buckets = buckets;
    map->nbuckets = n;
    return HVD_OK;
}

void map_clear(struct map *map) {
    for (size_t i = 0; i < map->nbuckets; i++) {
        for (struct map_node *node = map->buckets[i], *next; node; node = next) {
            next = node->next;
            free(node);
        }
    }
    free(map->buckets);
    *map = (struct map){0};
}

void *map_get(const struct map *map, const char *key) {
    if (!map->count) return NULL;
    struct map_node *node = *find(map, key);
    return node ? node->value : NULL;
}

int map_put(struct map *map, const char *key, void *value, hvd_error *err) {
    if (map->count >= map->nbuckets) HVD_TRY(grow(map, err));
    struct map_node *node = malloc(sizeof *node);
    if (!node) return error_set(err, HVD_NO_MEMORY, "no memory for the name '%s'", key);
    struct map_node **at = find(map, key);
    *node = (struct map_node){.next = *at, .hash = hash_of(key), .key = key, .value = value};
    *at = node;
    map->count++;
    return HVD_OK;
}

void map_replace(struct map *map, const char *key, void *value) {
    struct map_node *node = *find(map, key);
    node->key = key;
    node->value = value;
}

void *map_remove(struct map *map, const char *key) {
    if (!map->count) return NULL;
    struct map_node **at = find(map, key), *node = *at;
    if (!node) return NULL;
    void *value = node->value;
    *at = node->next;
    free(node);
    map->count--;
    return value;
}

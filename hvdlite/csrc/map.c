#include "map.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct map_node {
    struct map_node *next;
    uint64_t hash;
    const char *key;
    void *value;
};

/* By 2^64 over the golden ratio, and the high bits, which depend on all, to the low ones: Knuth, "The
 * Art of Computer Programming", 6.4. */
static uint64_t mixed(uint64_t x) {
    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}

/* Eight characters at a time: names are long, and each is looked up several times a step. */
static uint64_t hash_of(const char *key) {
    size_t left = strlen(key);
    uint64_t hash = left, word;
    for (; left >= sizeof word; left -= sizeof word, key += sizeof word) {
        memcpy(&word, key, sizeof word);
        hash = mixed(hash ^ word);
    }
    word = 0;
    memcpy(&word, key, left);
    return mixed(hash ^ word);
}

static struct map_node **bucket_of(struct map_node **buckets, size_t n, uint64_t hash) {
    return &buckets[hash & (n - 1)]; /* n: a power of two */
}

/* What is removed is mostly given with the very key that was put in. */
static bool has_key(const struct map_node *node, const char *key, uint64_t hash) {
    return node->key == key || (node->hash == hash && strcmp(node->key, key) == 0);
}

static struct map_node **find(const struct map *map, const char *key, uint64_t hash) {
    struct map_node **at = bucket_of(map->buckets, map->nbuckets, hash);
    while (*at && !has_key(*at, key, hash)) at = &(*at)->next;
    return at;
}

static int grow(struct map *map, hvd_error *err) {
    size_t n = map->nbuckets ? 2 * map->nbuckets : 64;
    struct map_node **buckets = calloc(n, sizeof *buckets);
    if (!buckets) return error_set(err, HVD_NO_MEMORY, "no memory for a table of %zu names", n);
    for (size_t i = 0; i < map->nbuckets; i++) {
        for (struct map_node *node = map->buckets[i], *next; node; node = next) {
            next = node->next;
            struct map_node **at = bucket_of(buckets, n, node->hash);
            node->next = *at;
            *at = node;
        }
    }
    free(map->buckets);
    map->buckets = buckets;
    map->nbuckets = n;
    return HVD_OK;
}

static void free_list(struct map_node *node) {
    for (struct map_node *next; node; node = next) {
        next = node->next;
        free(node);
    }
}

void map_clear(struct map *map) {
    for (size_t i = 0; i < map->nbuckets; i++) free_list(map->buckets[i]);
    free_list(map->spare);
    free(map->buckets);
    *map = (struct map){0};
}

void *map_get(const struct map *map, const char *key) {
    if (!map->count) return NULL;
    struct map_node *node = *find(map, key, hash_of(key));
    return node ? node->value : NULL;
}

int map_put(struct map *map, const char *key, void *value, hvd_error *err) {
    if (map->count >= map->nbuckets) HVD_TRY(grow(map, err));
    struct map_node *node = map->spare ? map->spare : malloc(sizeof *node);
    if (!node) return error_set(err, HVD_NO_MEMORY, "no memory for the name '%s'", key);
    if (node == map->spare) map->spare = node->next;
    uint64_t hash = hash_of(key);
    struct map_node **at = bucket_of(map->buckets, map->nbuckets, hash);
    *node = (struct map_node){.next = *at, .hash = hash, .key = key, .value = value};
    *at = node;
    map->count++;
    return HVD_OK;
}

void map_replace(struct map *map, const char *key, void *value) {
    struct map_node *node = *find(map, key, hash_of(key));
    node->key = key;
    node->value = value;
}

void *map_remove(struct map *map, const char *key) {
    if (!map->count) return NULL;
    struct map_node **at = find(map, key, hash_of(key)), *node = *at;
    if (!node) return NULL;
    void *value = node->value;
    *at = node->next;
    node->next = map->spare;
    map->spare = node;
    map->count--;
    return value;
}

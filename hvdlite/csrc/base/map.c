#include "base/map.h"

#include <stdlib.h>
#include <string.h>

/* Multiplies by 2^64 divided by the golden ratio (Knuth, "The Art of Computer Programming", 6.4).
 * The high bits of the product depend on all bits of x, so they are folded into the low bits.
 * Different numbers get different hashes. */
static uint64_t mixed(uint64_t x) {
    x *= 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}

/* Hashes eight characters at a time, because names are long and each name is looked up several
 * times per step. */
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
    return &buckets[hash & (n - 1)]; /* n is a power of two */
}

static bool alike(const struct map_node *a, const struct map_node *b) {
    return a->hash == b->hash && (a->key == b->key || strcmp(a->key, b->key) == 0);
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

struct map_node map_node_of(const char *key, void *value) {
    return (struct map_node){.hash = hash_of(key), .key = key, .value = value};
}

struct map_node map_node_of_number(uint64_t number, void *value) {
    return (struct map_node){.hash = mixed(number), .value = value};
}

struct map_node map_node_like(const struct map_node *like, const char *key, void *value) {
    return (struct map_node){.hash = like->hash, .key = key, .value = value};
}

void map_clear(struct map *map) {
    free(map->buckets);
    *map = (struct map){0};
}

void *map_find(const struct map *map, const struct map_node *like) {
    if (!map->count) return NULL;
    struct map_node *node = *bucket_of(map->buckets, map->nbuckets, like->hash);
    while (node && !alike(node, like)) node = node->next;
    return node ? node->value : NULL;
}

void *map_get(const struct map *map, const char *key) {
    struct map_node like = map_node_of(key, NULL);
    return map_find(map, &like);
}

void *map_get_number(const struct map *map, uint64_t number) {
    struct map_node like = map_node_of_number(number, NULL);
    return map_find(map, &like);
}

int map_put(struct map *map, struct map_node *node, hvd_error *err) {
    if (map->count >= map->nbuckets) HVD_TRY(grow(map, err));
    struct map_node **at = bucket_of(map->buckets, map->nbuckets, node->hash);
    node->next = *at;
    *at = node;
    map->count++;
    return HVD_OK;
}

void map_remove(struct map *map, struct map_node *node) {
    struct map_node **at = bucket_of(map->buckets, map->nbuckets, node->hash);
    while (*at != node) at = &(*at)->next;
    *at = node->next;
    map->count--;
}

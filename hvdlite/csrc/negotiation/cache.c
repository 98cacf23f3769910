#include "negotiation/cache.h"

#include <stdlib.h>
#include <string.h>

struct slot {
    struct slot *newer, *older; /* in order of use */
    struct cache_entry entry;
};

struct cache {
    size_t capacity;
    struct map names, ids;
    struct slot *newest, *oldest;
};

struct cache *cache_new(size_t capacity) {
    struct cache *c = calloc(1, sizeof *c);
    if (c) c->capacity = capacity;
    return c;
}

static void unlink_use(struct cache *c, struct slot *s) {
    *(s->newer ? &s->newer->older : &c->newest) = s->older;
    *(s->older ? &s->older->newer : &c->oldest) = s->newer;
    s->newer = s->older = NULL;
}

static void link_newest(struct cache *c, struct slot *s) {
    s->older = c->newest;
    if (c->newest) c->newest->newer = s;
    c->newest = s;
    if (!c->oldest) c->oldest = s;
}

static void slot_free(struct slot *s) {
    free(s->entry.rows);
    free(s);
}

static void drop(struct cache *c, struct slot *s) {
    map_remove(&c->names, &s->entry.node);
    map_remove(&c->ids, &s->entry.by_id);
    unlink_use(c, s);
    slot_free(s);
}

void cache_free(struct cache *c) {
    if (!c) return;
    while (c->oldest) drop(c, c->oldest);
    map_clear(&c->names);
    map_clear(&c->ids);
    free(c);
}

static struct cache_entry *used(struct cache *c, struct slot *s) {
    if (!s) return NULL;
    unlink_use(c, s);
    link_newest(c, s);
    return &s->entry;
}

struct cache_entry *cache_by_name(struct cache *c, const struct map_node *like) {
    return used(c, map_find(&c->names, like));
}

struct cache_entry *cache_by_id(struct cache *c, uint64_t id) {
    return used(c, map_get_number(&c->ids, id));
}

static struct slot *slot_new(uint64_t id, const struct request *request, const int64_t *rows,
                             uint32_t nrows) {
    struct slot *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->entry.id = id;
    s->entry.request = *request;
    s->entry.node = map_node_of(s->entry.request.name, s);
    s->entry.by_id = map_node_of_number(id, s);
    s->entry.nrows = nrows;
    if (!nrows) return s;
    s->entry.rows = malloc(nrows * sizeof *rows);
    if (!s->entry.rows) {
        free(s);
        return NULL;
    }
    memcpy(s->entry.rows, rows, nrows * sizeof *rows);
    return s;
}

int cache_put(struct cache *c, uint64_t id, const struct request *request, const int64_t *rows,
              uint32_t nrows, hvd_error *err) {
    if (!c->capacity) return HVD_OK;
    struct slot *s = slot_new(id, request, rows, nrows), *old;
    if (!s) return error_set(err, HVD_NO_MEMORY, "no memory to cache tensor '%s'", request->name);
    if ((old = map_find(&c->names, &s->entry.node))) drop(c, old);
    if (c->names.count == c->capacity) drop(c, c->oldest);
    int code = map_put(&c->names, &s->entry.node, err);
    if (!code && (code = map_put(&c->ids, &s->entry.by_id, err)))
        map_remove(&c->names, &s->entry.node);
    if (code)
        slot_free(s);
    else
        link_newest(c, s);
    return code;
}

#include "negotiation/cache.h"

#include <stdlib.h>
#include <string.h>

struct cache {
    size_t capacity;
    struct map names, ids;
    struct cache_entry *newest, *oldest;
};

struct cache *cache_new(size_t capacity) {
    struct cache *c = calloc(1, sizeof *c);
    if (c) c->capacity = capacity;
    return c;
}

static void unlink_use(struct cache *c, struct cache_entry *e) {
    *(e->newer ? &e->newer->older : &c->newest) = e->older;
    *(e->older ? &e->older->newer : &c->oldest) = e->newer;
    e->newer = e->older = NULL;
}

static void link_newest(struct cache *c, struct cache_entry *e) {
    e->older = c->newest;
    if (c->newest) c->newest->newer = e;
    c->newest = e;
    if (!c->oldest) c->oldest = e;
}

static void entry_free(struct cache_entry *e) {
    free(e->rows);
    free(e);
}

static void drop(struct cache *c, struct cache_entry *e) {
    map_remove(&c->names, &e->node);
    map_remove(&c->ids, &e->by_id);
    unlink_use(c, e);
    entry_free(e);
}

void cache_free(struct cache *c) {
    if (!c) return;
    while (c->oldest) drop(c, c->oldest);
    map_clear(&c->names);
    map_clear(&c->ids);
    free(c);
}

static struct cache_entry *mark_used(struct cache *c, struct cache_entry *e) {
    if (e) unlink_use(c, e);
    if (e) link_newest(c, e);
    return e;
}

struct cache_entry *cache_by_name(struct cache *c, const struct map_node *like) {
    return mark_used(c, map_find(&c->names, like));
}

struct cache_entry *cache_by_id(struct cache *c, uint64_t id) {
    return mark_used(c, map_get_number(&c->ids, id));
}

static struct cache_entry *entry_new(uint64_t id, const struct request *request,
                                     const int64_t *rows, uint32_t nrows) {
    struct cache_entry *e = calloc(1, sizeof *e);
    if (!e) return NULL;
    e->id = id;
    e->request = *request;
    e->node = map_node_of(e->request.name, e);
    e->by_id = map_node_of_number(id, e);
    e->nrows = nrows;
    if (!nrows) return e;
    e->rows = malloc(nrows * sizeof *rows);
    if (!e->rows) {
        free(e);
        return NULL;
    }
    memcpy(e->rows, rows, nrows * sizeof *rows);
    return e;
}

int cache_put(struct cache *c, uint64_t id, const struct request *request, const int64_t *rows,
              uint32_t nrows, hvd_error *err) {
    if (!c->capacity) return HVD_OK;
    struct cache_entry *e = entry_new(id, request, rows, nrows), *old;
    if (!e) return error_set(err, HVD_NO_MEMORY, "no memory to cache tensor '%s'", request->name);
    if ((old = map_find(&c->names, &e->node))) drop(c, old);
    if (c->names.count == c->capacity) drop(c, c->oldest);
    int code = map_put(&c->names, &e->node, err);
    if (!code && (code = map_put(&c->ids, &e->by_id, err))) map_remove(&c->names, &e->node);
    if (code)
        entry_free(e);
    else
        link_newest(c, e);
    return code;
}

#include "negotiation/gather.h"

#include <math.h>
#include <stdlib.h>

/* A cached tensor that some rank of this branch has submitted. */
struct gathered {
    struct gathered *newer, *older;
    struct map_node by_id;
    uint64_t id;
    double since;
    bool open; /* nothing waits: what comes goes up at once */
    int n;
    int tops[]; /* [n]: whose branches wait here: children, or this rank without them */
};

void gather_open(struct gather *g, const struct tree *tree) {
    *g = (struct gather){.tree = tree, .since = INFINITY};
}

static void drop(struct gather *g, struct gathered *e) {
    map_remove(&g->ids, &e->by_id);
    *(e->newer ? &e->newer->older : &g->newest) = e->older;
    if (e->older) e->older->newer = e->newer;
    free(e);
}

void gather_close(struct gather *g) {
    while (g->newest) drop(g, g->newest);
    map_clear(&g->ids);
    *g = (struct gather){0};
}

static int add(struct gather *g, uint64_t id, double now, struct gathered **out, hvd_error *err) {
    size_t most = (size_t)g->tree->nchildren + 1;
    struct gathered *e = malloc(sizeof *e + most * sizeof *e->tops);
    if (!e) return error_set(err, HVD_NO_MEMORY, "no memory to gather from %zu ranks", most);
    *e = (struct gathered){
        .older = g->newest, .id = id, .since = now, .by_id = map_node_of_number(id, e)};
    int code = map_put(&g->ids, &e->by_id, err);
    if (code) {
        free(e);
        return code;
    }
    if (g->newest) g->newest->newer = e;
    g->newest = *out = e;
    if (now < g->since) g->since = now;
    return HVD_OK;
}

static bool has_branch(const struct gather *g, int rank) {
    return rank != g->tree->rank && g->tree->many[rank] > 1;
}

static int let_go(const struct gather *g, struct gathered *e, struct wire_writer *out,
                  hvd_error *err) {
    for (int i = 0; i < e->n; i++) {
        enum wire_type type = has_branch(g, e->tops[i]) ? WIRE_HITS : WIRE_HIT;
        HVD_TRY(
            wire_put(out, &(struct wire_item){.type = type, .id = e->id, .rank = e->tops[i]}, err));
    }
    e->n = 0;
    e->open = true;
    return HVD_OK;
}

int gather_late(struct gather *g, double now, struct wire_writer *out, hvd_error *err) {
    if (now < g->since + GATHER_SECONDS) return HVD_OK;
    g->since = INFINITY;
    for (struct gathered *e = g->newest; e; e = e->older) {
        if (e->open) continue;
        if (now >= e->since + GATHER_SECONDS)
            HVD_TRY(let_go(g, e, out, err));
        else if (e->since < g->since)
            g->since = e->since;
    }
    return HVD_OK;
}

double gather_sleep(const struct gather *g, double now, double longest) {
    double left = g->since + GATHER_SECONDS - now;
    return left < longest ? fmax(left, 0) : longest;
}

static int hold(struct gather *g, struct gathered *e, const struct wire_item *item,
                struct wire_writer *out, hvd_error *err) {
    for (int i = 0; i < e->n; i++)
        if (e->tops[i] == item->rank)
            return error_set(err, HVD_INTERNAL, "rank %d has submitted tensor %llu twice",
                             item->rank, (unsigned long long)item->id);
    e->tops[e->n++] = item->rank;
    if (e->n <= g->tree->nchildren) return HVD_OK;
    drop(g, e);
    struct wire_item all = {.type = WIRE_HITS, .id = item->id, .rank = g->tree->rank};
    return wire_put(out, &all, err);
}

/* It is of all of a child's branch, or of this rank. A child that has let a tensor go sends it for
 * one rank after the other. */
static bool is_whole(const struct gather *g, const struct wire_item *item) {
    if (item->rank == g->tree->rank) return true;
    return g->tree->parents[item->rank] == g->tree->rank &&
           (item->type == WIRE_HITS || !has_branch(g, item->rank));
}

static int take_hit(struct gather *g, const struct wire_item *item, double now,
                    struct wire_writer *out, hvd_error *err) {
    if (g->tree->rank == 0 || !g->tree->nchildren || g->passes) return wire_put(out, item, err);
    struct gathered *e = map_get_number(&g->ids, item->id);
    if (!e) HVD_TRY(add(g, item->id, now, &e, err));
    if (!e->open && is_whole(g, item)) return hold(g, e, item, out, err);
    if (!e->open) HVD_TRY(let_go(g, e, out, err));
    return wire_put(out, item, err);
}

/* In order: what its rank has submitted before must not come later. */
static int take_end(struct gather *g, const struct wire_item *item, struct wire_writer *out,
                    hvd_error *err) {
    g->passes = true;
    HVD_TRY(gather_late(g, INFINITY, out, err));
    return wire_put(out, item, err);
}

static int stray(int from, const struct wire_item *item, hvd_error *err) {
    return error_set(err, HVD_INTERNAL, "rank %d submits an item of type %d here", from,
                     item->type);
}

int gather_take(struct gather *g, int from, const struct wire_item *item, double now,
                struct wire_writer *out, hvd_error *err) {
    if (from != g->tree->rank && g->tree->parents[from] != g->tree->rank)
        return stray(from, item, err);
    HVD_TRY(tree_check(g->tree, from, item->rank, err));
    switch (item->type) {
    case WIRE_HIT:
    case WIRE_HITS: return take_hit(g, item, now, out, err);
    case WIRE_REQUEST:
        if (item->request.kind == HVD_JOIN) return take_end(g, item, out, err);
        return wire_put(out, item, err);
    case WIRE_LEAVE: return take_end(g, item, out, err);
    default: return stray(from, item, err);
    }
}

void gather_decided(struct gather *g, uint64_t id) {
    struct gathered *e = g->newest ? map_get_number(&g->ids, id) : NULL;
    if (e && e->open) drop(g, e);
}

void gather_joined(struct gather *g) { g->passes = false; }

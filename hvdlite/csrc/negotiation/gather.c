#include "negotiation/gather.h"

#include <math.h>
#include <stdlib.h>

/* A cached tensor that some rank of this branch has submitted. */
struct gathered {
    struct gathered *newer, *older;
    struct map_node by_id;
    uint64_t id;
    bool open;  /* nothing waits: what comes goes up at once */
    double due; /* when it is let go; open: when it is forgotten */
    int n;
    int tops[]; /* [n]: whose branches wait here: children, or this rank without them */
};

void gather_open(struct gather *g, const struct tree *tree) {
    *g = (struct gather){.tree = tree, .due = INFINITY};
}

static void set_due(struct gather *g, struct gathered *e, double due) {
    e->due = due;
    if (due < g->due) g->due = due;
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
    *e = (struct gathered){.older = g->newest, .id = id, .by_id = map_node_of_number(id, e)};
    int code = map_put(&g->ids, &e->by_id, err);
    if (code) {
        free(e);
        return code;
    }
    if (g->newest) g->newest->newer = e;
    g->newest = *out = e;
    set_due(g, e, now + GATHER_SECONDS);
    return HVD_OK;
}

static bool has_branch(const struct gather *g, int rank) {
    return rank != g->tree->rank && g->tree->many[rank] > 1;
}

static int let_go(struct gather *g, struct gathered *e, double now, struct wire_writer *out,
                  hvd_error *err) {
    for (int i = 0; i < e->n; i++) {
        enum wire_type type = has_branch(g, e->tops[i]) ? WIRE_HITS : WIRE_HIT;
        HVD_TRY(
            wire_put(out, &(struct wire_item){.type = type, .id = e->id, .rank = e->tops[i]}, err));
    }
    e->n = 0;
    e->open = true;
    set_due(g, e, now + GATHER_FORGETS);
    return HVD_OK;
}

int gather_late(struct gather *g, double now, struct wire_writer *out, hvd_error *err) {
    if (now < g->due) return HVD_OK;
    g->due = INFINITY;
    for (struct gathered *e = g->newest, *older; e; e = older) {
        older = e->older;
        if (now < e->due)
            set_due(g, e, e->due);
        else if (e->open)
            drop(g, e);
        else
            HVD_TRY(let_go(g, e, now, out, err));
    }
    return HVD_OK;
}

double gather_sleep(const struct gather *g, double now, double longest) {
    return g->due - now < longest ? fmax(g->due - now, 0) : longest;
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

static bool gathers(const struct gather *g) {
    return g->tree->rank != 0 && g->tree->nchildren && !g->passes;
}

static int find(struct gather *g, uint64_t id, double now, struct gathered **out, hvd_error *err) {
    *out = map_get_number(&g->ids, id);
    return *out ? HVD_OK : add(g, id, now, out, err);
}

static int take_hit(struct gather *g, const struct wire_item *item, double now,
                    struct wire_writer *out, hvd_error *err) {
    struct gathered *e;
    if (!gathers(g)) return wire_put(out, item, err);
    HVD_TRY(find(g, item->id, now, &e, err));
    if (!e->open && is_whole(g, item)) return hold(g, e, item, out, err);
    if (!e->open) HVD_TRY(let_go(g, e, now, out, err));
    return wire_put(out, item, err);
}

/* In order: what its rank has submitted before must not come later. */
static int take_end(struct gather *g, const struct wire_item *item, double now,
                    struct wire_writer *out, hvd_error *err) {
    g->passes = true;
    for (struct gathered *e = g->newest; e; e = e->older)
        if (!e->open) HVD_TRY(let_go(g, e, now, out, err));
    return wire_put(out, item, err);
}

/* This rank's tensor has changed: passes on at once what other ranks have reported of it. */
static int take_request(struct gather *g, const struct wire_item *item, double now,
                        struct wire_writer *out, hvd_error *err) {
    struct gathered *e;
    if (item->request.kind == HVD_JOIN) return take_end(g, item, now, out, err);
    if (item->instead && gathers(g)) {
        HVD_TRY(find(g, item->instead, now, &e, err));
        if (!e->open) HVD_TRY(let_go(g, e, now, out, err));
    }
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
    case WIRE_REQUEST: return take_request(g, item, now, out, err);
    case WIRE_LEAVE: return take_end(g, item, now, out, err);
    default: return stray(from, item, err);
    }
}

void gather_decided(struct gather *g, uint64_t id) {
    struct gathered *e = g->newest ? map_get_number(&g->ids, id) : NULL;
    if (e && e->open) drop(g, e);
}

void gather_joined(struct gather *g) { g->passes = false; }

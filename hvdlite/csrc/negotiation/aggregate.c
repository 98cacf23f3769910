#include "negotiation/aggregate.h"

#include <math.h>
#include <stdlib.h>

/* A cached tensor that a rank of this branch has submitted. */
struct aggregated {
    struct aggregated *newer, *older;
    struct map_node by_id;
    uint64_t id;
    bool open; /* true: reports are sent immediately, so no report waits here */
    /* if open: time when this struct is freed; else time when the waiting reports are sent */
    double due;
    int n;
    /* n ranks whose reports wait: children (each for its whole branch), perhaps also this rank */
    int tops[];
};

void aggregate_open(struct aggregate *a, const struct tree *tree) {
    *a = (struct aggregate){.tree = tree, .due = INFINITY};
}

static void set_due(struct aggregate *a, struct aggregated *e, double due) {
    e->due = due;
    if (due < a->due) a->due = due;
}

static void drop_entry(struct aggregate *a, struct aggregated *e) {
    map_remove(&a->ids, &e->by_id);
    *(e->newer ? &e->newer->older : &a->newest) = e->older;
    if (e->older) e->older->newer = e->newer;
    free(e);
}

void aggregate_close(struct aggregate *a) {
    while (a->newest) drop_entry(a, a->newest);
    map_clear(&a->ids);
    *a = (struct aggregate){0};
}

static int add_entry(struct aggregate *a, uint64_t id, double now, struct aggregated **out,
                     hvd_error *err) {
    size_t most = (size_t)a->tree->nchildren + 1;
    struct aggregated *e = malloc(sizeof *e + most * sizeof *e->tops);
    if (!e) return error_set(err, HVD_NO_MEMORY, "no memory to aggregate from %zu ranks", most);
    *e = (struct aggregated){.older = a->newest, .id = id, .by_id = map_node_of_number(id, e)};
    int code = map_put(&a->ids, &e->by_id, err);
    if (code) {
        free(e);
        return code;
    }
    if (a->newest) a->newest->newer = e;
    a->newest = *out = e;
    set_due(a, e, now + AGGREGATE_SECONDS);
    return HVD_OK;
}

static bool has_branch(const struct aggregate *a, int rank) {
    return rank != a->tree->rank && a->tree->many[rank] > 1;
}

static int send_on(struct aggregate *a, struct aggregated *e, double now, struct wire_writer *out,
                   hvd_error *err) {
    for (int i = 0; i < e->n; i++) {
        enum wire_type type = has_branch(a, e->tops[i]) ? WIRE_HITS : WIRE_HIT;
        HVD_TRY(
            wire_put(out, &(struct wire_item){.type = type, .id = e->id, .rank = e->tops[i]}, err));
    }
    e->n = 0;
    e->open = true;
    set_due(a, e, now + AGGREGATE_FORGETS);
    return HVD_OK;
}

int aggregate_late(struct aggregate *a, double now, struct wire_writer *out, hvd_error *err) {
    if (now < a->due) return HVD_OK;
    a->due = INFINITY;
    for (struct aggregated *e = a->newest, *older; e; e = older) {
        older = e->older;
        if (now < e->due)
            set_due(a, e, e->due);
        else if (e->open)
            drop_entry(a, e);
        else
            HVD_TRY(send_on(a, e, now, out, err));
    }
    return HVD_OK;
}

double aggregate_sleep(const struct aggregate *a, double now, double longest) {
    return a->due - now < longest ? fmax(a->due - now, 0) : longest;
}

static int hold_report(struct aggregate *a, struct aggregated *e, const struct wire_item *item,
                       struct wire_writer *out, hvd_error *err) {
    for (int i = 0; i < e->n; i++)
        if (e->tops[i] == item->rank)
            return error_set(err, HVD_INTERNAL,
                             "rank %d requested the tensor with id %llu twice: report this bug",
                             item->rank, (unsigned long long)item->id);
    e->tops[e->n++] = item->rank;
    if (e->n <= a->tree->nchildren) return HVD_OK;
    drop_entry(a, e);
    struct wire_item all = {.type = WIRE_HITS, .id = item->id, .rank = a->tree->rank};
    return wire_put(out, &all, err);
}

/* Returns true if the item reports for this rank, or for the whole branch of a child. (A child that
 * has waited AGGREGATE_SECONDS reports the ranks of its branch one by one.) */
static bool is_whole(const struct aggregate *a, const struct wire_item *item) {
    if (item->rank == a->tree->rank) return true;
    return a->tree->parents[item->rank] == a->tree->rank &&
           (item->type == WIRE_HITS || !has_branch(a, item->rank));
}

static bool aggregates(const struct aggregate *a) {
    return a->tree->rank != 0 && a->tree->nchildren && !a->passes;
}

static int find_or_add(struct aggregate *a, uint64_t id, double now, struct aggregated **out,
                       hvd_error *err) {
    *out = map_get_number(&a->ids, id);
    return *out ? HVD_OK : add_entry(a, id, now, out, err);
}

static int take_hit(struct aggregate *a, const struct wire_item *item, double now,
                    struct wire_writer *out, hvd_error *err) {
    struct aggregated *e;
    if (!aggregates(a)) return wire_put(out, item, err);
    HVD_TRY(find_or_add(a, item->id, now, &e, err));
    if (!e->open && is_whole(a, item)) return hold_report(a, e, item, out, err);
    if (!e->open) HVD_TRY(send_on(a, e, now, out, err));
    return wire_put(out, item, err);
}

/* Sends all waiting reports to the parent, then the report that a rank joins or leaves. */
static int take_end(struct aggregate *a, const struct wire_item *item, double now,
                    struct wire_writer *out, hvd_error *err) {
    a->passes = true;
    for (struct aggregated *e = a->newest; e; e = e->older)
        if (!e->open) HVD_TRY(send_on(a, e, now, out, err));
    return wire_put(out, item, err);
}

/* Sends the waiting reports of the tensor's old, cached version, then the new, whole request. */
static int take_request(struct aggregate *a, const struct wire_item *item, double now,
                        struct wire_writer *out, hvd_error *err) {
    struct aggregated *e;
    if (item->request.kind == HVD_JOIN) return take_end(a, item, now, out, err);
    if (item->instead && aggregates(a)) {
        HVD_TRY(find_or_add(a, item->instead, now, &e, err));
        if (!e->open) HVD_TRY(send_on(a, e, now, out, err));
    }
    return wire_put(out, item, err);
}

static int refuse_item(int from, const struct wire_item *item, hvd_error *err) {
    return error_set(err, HVD_INTERNAL,
                     "rank %d sent an unexpected message of type %d: report this bug", from,
                     item->type);
}

int aggregate_take(struct aggregate *a, int from, const struct wire_item *item, double now,
                   struct wire_writer *out, hvd_error *err) {
    if (from != a->tree->rank && a->tree->parents[from] != a->tree->rank)
        return refuse_item(from, item, err);
    HVD_TRY(tree_check(a->tree, from, item->rank, err));
    switch (item->type) {
    case WIRE_HIT:
    case WIRE_HITS: return take_hit(a, item, now, out, err);
    case WIRE_REQUEST: return take_request(a, item, now, out, err);
    case WIRE_LEAVE: return take_end(a, item, now, out, err);
    default: return refuse_item(from, item, err);
    }
}

void aggregate_decided(struct aggregate *a, uint64_t id) {
    struct aggregated *e = a->newest ? map_get_number(&a->ids, id) : NULL;
    if (e && e->open) drop_entry(a, e);
}

void aggregate_joined(struct aggregate *a) { a->passes = false; }

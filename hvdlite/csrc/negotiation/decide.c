/* The coordinator's decisions: errors for the tensors that can't run, batches of other tensors. */
#include "negotiation/coordinator.h"

#include <stdlib.h>
#include <string.h>

/* Fails the tensor on the ranks that have submitted it, but not on others; see FAIL in wire.h. */
static int fail(struct pending *p, const hvd_error *why, struct wire_writer *out, hvd_error *err) {
    struct wire_item item = {.type = WIRE_FAIL, .error = *why, .rows = p->rows};
    memcpy(item.request.name, p->request.name, sizeof item.request.name);
    for (int i = 0; i < p->size; i++)
        /* p->rows is not needed any more, so its memory is used for the list of ranks */
        if (p->submitted[i]) p->rows[item.nrows++] = i;
    return wire_put(out, &item, err);
}

/* Returns the rank that left first without submitting the tensor; -1: none. */
static int first_left(const struct coordinator *c, const struct pending *p) {
    int first = -1;
    for (int i = 0; i < c->config.size; i++)
        if (c->left[i] && !c->owed[i] && !p->submitted[i] &&
            (first < 0 || c->left[i] < c->left[first]))
            first = i;
    return first;
}

static int fail_pending(struct coordinator *c, struct pending *p, const hvd_error *why,
                        struct wire_writer *out, hvd_error *err) {
    waiting_remove(&c->waiting, p);
    int code = fail(p, why, out, err);
    pending_free(p);
    return code;
}

/* Fails the tensors that wait for a rank that has left. Checks only new tensors, unless look_again
 * is set. */
static int decide_left(struct coordinator *c, struct wire_writer *out, hvd_error *err) {
    struct pending *p = c->look_again ? c->waiting.first : c->waiting.unseen;
    c->waiting.unseen = NULL;
    c->look_again = false;
    for (struct pending *next; p && c->nleft; p = next) {
        hvd_error why;
        int left = first_left(c, p);
        next = p->next;
        if (left < 0) continue;
        pending_explain_left(p, left, c->reason[left], &why);
        HVD_TRY(fail_pending(c, p, &why, out, err));
    }
    return HVD_OK;
}

/* Fails all tensors if a job can't end: some tensor waits for a rank that submits nothing more
 * until its last tensor has ended. */
static int decide_last(struct coordinator *c, struct wire_writer *out, hvd_error *err) {
    struct pending *last = c->look_for_last ? c->waiting.first : NULL;
    while (last && !last->request.last) last = last->next;
    c->look_for_last = last;
    for (struct pending *p = last ? c->waiting.first : NULL; p && !c->over.code; p = p->next) {
        int i = 0;
        while (i < p->size && (!last->submitted[i] || p->submitted[i] || c->owed[i])) i++;
        if (i < p->size) pending_explain_last(p, i, last, &c->over);
    }
    while (c->over.code && c->waiting.first)
        HVD_TRY(fail_pending(c, c->waiting.first, &c->over, out, err));
    return HVD_OK;
}

static bool waits_for_silent(const struct pending *p, const bool *silent) {
    int i = 0;
    while (silent && i < p->size && (p->submitted[i] || !silent[i])) i++;
    return silent && i < p->size;
}

/* Fails tensors that have waited for longer than stall_failure. Tensors are in the order of their
 * age, the oldest first. Leaves out tensors that wait for a silent rank: for a silent rank,
 * silence.c fails the whole job, and an elastic job then goes on without the rank. */
static int decide_stalled(struct coordinator *c, double now, const bool *silent,
                          struct wire_writer *out, hvd_error *err) {
    double limit = c->config.options.stall_failure;
    struct pending *p = c->waiting.first;
    if (limit <= 0 || !p || now - p->since <= limit) return HVD_OK;
    const struct pending **oldest = waiting_of_ranks(&c->waiting);
    if (!oldest)
        return error_set(err, HVD_NO_MEMORY, "no memory to report %d ranks", c->config.size);
    /* freed at the end, because texts about other tensors may name these tensors */
    struct pending *failed = NULL;
    int code = HVD_OK;
    for (struct pending *next; p && !code && now - p->since > limit; p = next) {
        hvd_error why;
        char text[sizeof why.text];
        next = p->next;
        if (p->request.kind == HVD_JOIN || waits_for_silent(p, silent)) continue;
        pending_explain_wait(p, 0, oldest, silent, now, text, sizeof text);
        error_set(&why, HVD_STALLED, "%s", text);
        for (int i = 0; i < p->size; i++)
            if (!p->submitted[i]) error_blame(&why, job_rank(c->config.job_ranks, i));
        code = fail(p, &why, out, err);
        waiting_remove(&c->waiting, p);
        p->next = failed;
        failed = p;
    }
    pending_free_all(failed);
    free(oldest);
    return code;
}

/* Gives a new id to a tensor that is new or has changed, and adds its name to the item. */
static int name_tensor(struct coordinator *c, const struct pending *p, struct wire_item *item,
                       hvd_error *err) {
    memcpy(item->request.name, p->request.name, sizeof item->request.name);
    if (request_rows_vary(&p->request)) {
        item->nrows = (uint32_t)p->size;
        item->rows = p->rows;
    }
    if (!c->config.options.cache_capacity || p->request.kind == HVD_JOIN) return HVD_OK;
    item->id = ++c->last_id;
    return cache_put(c->cache, item->id, &p->request, item->rows, item->nrows, err);
}

/* Adds the whole request to the item, because ranks that have joined need it. */
static void describe_tensor(const struct pending *p, struct wire_item *item) {
    item->request = p->request;
    item->whole = true;
    item->rows = p->rows; /* free: with joined ranks, only allreduces run, and have no rows */
    for (int i = 0; i < p->size; i++)
        if (!p->submitted[i]) p->rows[item->nrows++] = i;
}

static int announce(struct coordinator *c, const struct piece *piece, struct wire_writer *out,
                    hvd_error *err) {
    const struct pending *p = piece->tensor;
    struct wire_item item = {.type = WIRE_TENSOR, .id = p->id, .direct = p->direct};
    item.uneven = p->request.uneven;
    item.waited = p->request.waited && !p->joined;
    int64_t last = c->last_joined;
    item.cut = piece->end - piece->begin < request_bytes(&p->request);
    item.begin = piece->begin;
    item.end = piece->end;
    if (piece->begin && !p->id) memcpy(item.request.name, p->request.name, sizeof p->request.name);
    if (!piece->begin && !p->id) HVD_TRY(name_tensor(c, p, &item, err));
    if (p->joined) describe_tensor(p, &item);
    if (p->request.kind == HVD_JOIN) {
        item.nrows = 1;
        item.rows = &last;
    }
    return wire_put(out, &item, err);
}

static int run_batch(struct coordinator *c, const struct piece *first, double now,
                     struct wire_writer *out, hvd_error *err) {
    for (const struct piece *piece = first; piece; piece = piece->next) {
        HVD_TRY(announce(c, piece, out, err));
        ready_decided(piece);
    }
    HVD_TRY(ahead_decided(&c->ahead, piece_bytes(first), now, err));
    return wire_put(out, &(struct wire_item){.type = WIRE_RUN}, err);
}

/* For a grouped call that has different numbers of tensors on different ranks: fails the tensors
 * that only some ranks have, which would wait for ever. The tensors that all ranks have fail when
 * all ranks have submitted them. */
static int fail_surplus(struct coordinator *c, const struct pending *p, const hvd_error *why,
                        struct wire_writer *out, hvd_error *err) {
    int common = pending_common(p);
    for (struct pending *other = c->waiting.first, *next; other; other = next) {
        next = other->next;
        if (request_same_call(&other->request, &p->request, common))
            HVD_TRY(fail_pending(c, other, why, out, err));
    }
    return HVD_OK;
}

/* Fails new ready tensors on which the ranks disagree. */
static int decide_conflicts(struct coordinator *c, struct wire_writer *out, hvd_error *err) {
    struct ready *r = &c->ready;
    size_t agreed = r->checked;
    int code = HVD_OK;
    for (size_t i = agreed; i < r->n; i++) {
        struct pending *p = r->of[i];
        hvd_error why = {0};
        if (p->conflict)
            pending_explain_conflict(p, &why);
        else if (p->joined && !request_takes_zeros(&p->request))
            pending_explain_joined(p, &why);
        if (!why.code || code) {
            r->of[agreed++] = p;
            continue;
        }
        code = fail(p, &why, out, err);
        if (!code && pending_conflict(p) == FIELD_GROUPED)
            code = fail_surplus(c, p, &why, out, err);
        pending_free(p);
    }
    r->n = agreed;
    return code;
}

/* Returns the maximum bytes of a batch. The links are idle between two pieces of a tensor. Unless
 * the user sets a length, tensors are cut only if another tensor may overtake its rest. */
static size_t longest_batch(const struct coordinator *c) {
    bool fixed = c->config.options.bytes_ahead != AHEAD_MEASURED;
    return fixed || ready_can_be_overtaken(&c->ready) ? ahead_piece(&c->ahead) : SIZE_MAX;
}

/* Decides ready tensors. Plans three batches of the maximum length: the first two may be decided
 * now, and small tensors of the third may be fused with the first two. */
static int run_ready(struct coordinator *c, double now, struct wire_writer *out, hvd_error *err) {
    struct ready_plan plan;
    size_t piece = longest_batch(c), most = piece < SIZE_MAX / 3 ? 3 * piece : SIZE_MAX;
    if (c->config.piece_bytes) piece = c->config.piece_bytes;
    HVD_TRY(ready_plan(&c->ready, most, piece, c->config.options.fusion_bytes, &plan, err));
    int code = HVD_OK;
    for (size_t i = 0;
         i < plan.n && !code && ahead_takes(&c->ahead, piece_bytes(plan.first[i]), now); i++)
        code = run_batch(c, plan.first[i], now, out, err);
    ready_clean(&c->ready, &plan);
    free(plan.memory);
    return code;
}

static int decide_ready(struct coordinator *c, double now, struct wire_writer *out,
                        hvd_error *err) {
    bool opens = c->ready.first < c->ready.n && now >= ahead_opens(&c->ahead);
    if (!c->ready.changed && !opens) return HVD_OK;
    c->ready.changed = false;
    HVD_TRY(decide_conflicts(c, out, err));
    ready_sort(&c->ready);
    return run_ready(c, now, out, err);
}

void coordinator_finished(struct coordinator *c, double now) {
    ahead_finished(&c->ahead, now);
    c->ready.changed = true;
}

int coordinator_decide(struct coordinator *c, double now, const bool *silent,
                       struct wire_writer *out, hvd_error *err) {
    HVD_TRY(decide_ready(c, now, out, err));
    HVD_TRY(decide_last(c, out, err));
    HVD_TRY(decide_left(c, out, err));
    HVD_TRY(decide_stalled(c, now, silent, out, err));
    bool all_left = c->nleft == c->config.size && !c->nowed && c->ready.first == c->ready.n;
    if (!all_left || c->said_bye) return HVD_OK;
    c->said_bye = true;
    return wire_put(out, &(struct wire_item){.type = WIRE_BYE}, err);
}

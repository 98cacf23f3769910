#include "coordinator.h"

#include "cache.h"
#include "fusion.h"
#include "map.h"
#include "pending.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct coordinator {
    struct coordinator_config config;
    struct cache *cache;
    uint64_t last_id;              /* ids are never used twice */
    struct map names;              /* name -> pending, while not every rank has submitted it */
    struct pending *first, **last; /* the same, in order of arrival */
    struct pending **ready;        /* submitted by all, not decided yet */
    size_t nready, ready_capacity;
    int *left; /* [rank]: as which one it left, from 1; 0: it has not */
    int *owed; /* [rank]: RESENDs that it has not answered */
    int nleft, nowed;
    bool said_bye;
    char (*reason)[256]; /* [rank]: why it left */
};

struct coordinator *coordinator_new(const struct coordinator_config *config) {
    struct coordinator *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->config = *config;
    c->last = &c->first;
    c->cache = cache_new(config->cache_capacity);
    c->left = calloc((size_t)config->size, sizeof *c->left);
    c->owed = calloc((size_t)config->size, sizeof *c->owed);
    c->reason = calloc((size_t)config->size, sizeof *c->reason);
    if (c->cache && c->left && c->owed && c->reason) return c;
    coordinator_free(c);
    return NULL;
}

void coordinator_free(struct coordinator *c) {
    if (!c) return;
    for (struct pending *p = c->first, *next; p; p = next) {
        next = p->next;
        pending_free(p);
    }
    for (size_t i = 0; i < c->nready; i++) pending_free(c->ready[i]);
    free(c->ready);
    map_clear(&c->names);
    cache_free(c->cache);
    free(c->left);
    free(c->owed);
    free(c->reason);
    free(c);
}

/* ---- what ranks say ---- */

static void unlink_pending(struct coordinator *c, struct pending *p) {
    struct pending **at = &c->first;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    if (c->last == &p->next) c->last = at;
    map_remove(&c->names, p->request.name);
}

static int add_ready(struct coordinator *c, struct pending *p, hvd_error *err) {
    if (c->nready == c->ready_capacity) {
        size_t capacity = 2 * c->ready_capacity + 16;
        struct pending **ready = realloc(c->ready, capacity * sizeof *ready);
        if (!ready)
            return error_set(err, HVD_NO_MEMORY, "no memory for %zu ready tensors", capacity);
        c->ready = ready;
        c->ready_capacity = capacity;
    }
    unlink_pending(c, p);
    if (!p->direct) p->request.region = 0; /* a place that not every rank shares is of no use */
    c->ready[c->nready++] = p;
    return HVD_OK;
}

static int open_pending(struct coordinator *c, const struct request *request, double now,
                        struct pending **out, hvd_error *err) {
    struct pending *p = pending_new(request, c->config.size, c->config.names, now);
    if (!p) return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", request->name);
    int code = map_put(&c->names, p->request.name, p, err);
    if (code) {
        pending_free(p);
        return code;
    }
    *c->last = p;
    c->last = &p->next;
    *out = p;
    return HVD_OK;
}

static int submit(struct coordinator *c, int rank, const struct request *request, uint64_t id,
                  double now, hvd_error *err) {
    struct pending *p = map_get(&c->names, request->name);
    if (!p) HVD_TRY(open_pending(c, request, now, &p, err));
    HVD_TRY(pending_add(p, rank, request, id, err));
    return p->nsubmitted == c->config.size ? add_ready(c, p, err) : HVD_OK;
}

int coordinator_request(struct coordinator *c, int rank, const struct request *request, double now,
                        hvd_error *err) {
    HVD_TRY(request_check(request, c->config.size, err));
    return submit(c, rank, request, 0, now, err);
}

int coordinator_hit(struct coordinator *c, int rank, uint64_t id, double now,
                    struct wire_writer *out, hvd_error *err) {
    const struct cache_entry *entry = cache_by_id(c->cache, id);
    if (!entry) {
        c->owed[rank]++;
        c->nowed++;
        return wire_put(out, &(struct wire_item){.type = WIRE_RESEND, .rank = rank, .id = id}, err);
    }
    if (!entry->nrows) return submit(c, rank, &entry->request, id, now, err);
    struct request own = entry->request;
    if (own.ndim) own.dims[0] = entry->rows[rank];
    return submit(c, rank, &own, id, now, err);
}

int coordinator_resent(struct coordinator *c, int rank, const struct request *request, double now,
                       hvd_error *err) {
    if (!c->owed[rank])
        return error_set(err, HVD_INTERNAL, "rank %d sent tensor '%s' again, unasked", rank,
                         request->name);
    c->owed[rank]--;
    c->nowed--;
    return coordinator_request(c, rank, request, now, err);
}

void coordinator_leave(struct coordinator *c, int rank, const char *reason) {
    if (c->left[rank]) return;
    snprintf(c->reason[rank], sizeof c->reason[rank], "%s", reason);
    c->left[rank] = ++c->nleft;
}

/* ---- what the coordinator decides ---- */

/* Listed are the ranks that have submitted it: on others the name may stand for a round to come. */
static int fail(struct pending *p, const hvd_error *why, struct wire_writer *out, hvd_error *err) {
    struct wire_item item = {.type = WIRE_FAIL, .error = *why, .rows = p->rows};
    memcpy(item.request.name, p->request.name, sizeof item.request.name);
    for (int i = 0; i < p->size; i++)
        if (p->submitted[i]) p->rows[item.nrows++] = i; /* its rows are of no use any more */
    return wire_put(out, &item, err);
}

/* Of the ranks that have left without submitting it the one that left first, -1: there is none. Only
 * that one is named, so that all who wait are told the same, though others may have left meanwhile. */
static int first_left(const struct coordinator *c, const struct pending *p) {
    int first = -1;
    for (int i = 0; i < c->config.size; i++)
        if (c->left[i] && !c->owed[i] && !p->submitted[i] &&
            (first < 0 || c->left[i] < c->left[first]))
            first = i;
    return first;
}

static void explain_left(const struct coordinator *c, const struct pending *p, int first,
                         hvd_error *why) {
    error_set(why, HVD_RANK_LEFT,
              "tensor '%s' can't complete: rank %d left the job (%s) before submitting it",
              p->request.name, rank_name(p->names, first), c->reason[first]);
}

/* "rank 1 (waits for 'broadcast.w')": what the missing ranks do instead is what the user looks for.
 */
static void explain_wait(const struct coordinator *c, const struct pending *p, double now,
                         char *text, size_t size) {
    char have[200], missing[200];
    ranks_text(p->submitted, true, p->size, p->names, have, sizeof have);
    ranks_text(p->submitted, false, p->size, p->names, missing, sizeof missing);
    int used = snprintf(text, size, "tensor '%s' has waited for %.0f s: submitted by %s, not by %s",
                        p->request.name, now - p->since, have, missing);
    for (int i = 0; i < c->config.size && used >= 0 && (size_t)used < size; i++) {
        const struct pending *q = c->first;
        while (q && (p->submitted[i] || !q->submitted[i])) q = q->next;
        if (q)
            used += snprintf(text + used, size - (size_t)used, " (rank %d waits for '%s')",
                             rank_name(p->names, i), q->request.name);
    }
}

static int fail_pending(struct coordinator *c, struct pending *p, const hvd_error *why,
                        struct wire_writer *out, hvd_error *err) {
    unlink_pending(c, p);
    int code = fail(p, why, out, err);
    pending_free(p);
    return code;
}

/* Fails what can't or shall not be waited for any longer. */
static int decide_waiting(struct coordinator *c, double now, struct wire_writer *out,
                          hvd_error *err) {
    double limit = c->config.stall_failure;
    if (!c->nleft && limit <= 0) return HVD_OK;
    for (struct pending *p = c->first, *next; p; p = next) {
        next = p->next;
        hvd_error why = {0};
        int left = c->nleft ? first_left(c, p) : -1;
        if (left >= 0) {
            explain_left(c, p, left, &why);
        } else if (limit > 0 && now - p->since > limit) {
            why.code = HVD_STALLED;
            explain_wait(c, p, now, why.text, sizeof why.text);
        }
        if (why.code) HVD_TRY(fail_pending(c, p, &why, out, err));
    }
    return HVD_OK;
}

static int announce(struct coordinator *c, const struct pending *p, struct wire_writer *out,
                    hvd_error *err) {
    struct wire_item item = {.type = WIRE_TENSOR, .id = p->id, .direct = p->direct};
    if (!p->id) {
        memcpy(item.request.name, p->request.name, sizeof item.request.name);
        if (c->config.cache_capacity) item.id = ++c->last_id;
        if (p->request.kind == HVD_ALLGATHER) {
            item.nrows = (uint32_t)p->size;
            item.rows = p->rows;
        }
        if (item.id) HVD_TRY(cache_put(c->cache, item.id, &p->request, item.rows, item.nrows, err));
    }
    return wire_put(out, &item, err);
}

static int run_batches(struct coordinator *c, struct pending *const *order, size_t n,
                       const size_t *batch, size_t batches, struct wire_writer *out,
                       hvd_error *err) {
    for (size_t b = 0; b < batches; b++) {
        for (size_t i = 0; i < n; i++)
            if (batch[i] == b) HVD_TRY(announce(c, order[i], out, err));
        HVD_TRY(wire_put(out, &(struct wire_item){.type = WIRE_RUN}, err));
    }
    return HVD_OK;
}

/* Insertion sort: stable, and linear for what arrives in order of priority, as gradients do. */
static void sort_by_priority(struct pending **ready, size_t n) {
    for (size_t i = 1; i < n; i++) {
        struct pending *p = ready[i];
        size_t at = i;
        for (; at > 0 && ready[at - 1]->request.priority < p->request.priority; at--)
            ready[at] = ready[at - 1];
        ready[at] = p;
    }
}

static int plan(struct coordinator *c, size_t n, struct wire_writer *out, hvd_error *err) {
    const struct request **requests = malloc(n * sizeof *requests);
    size_t *batch = malloc(n * sizeof *batch);
    int code = HVD_OK;
    if (requests && batch) {
        for (size_t i = 0; i < n; i++) requests[i] = &c->ready[i]->request;
        size_t batches = fusion_plan(requests, n, c->config.fusion_bytes, batch);
        code = run_batches(c, c->ready, n, batch, batches, out, err);
    } else {
        code = error_set(err, HVD_NO_MEMORY, "no memory to plan %zu tensors", n);
    }
    free(requests);
    free(batch);
    return code;
}

/* Fails what the ranks disagree about; what is left moves to the front. Returns its count. */
static int decide_conflicts(struct coordinator *c, size_t *agreed, struct wire_writer *out,
                            hvd_error *err) {
    *agreed = 0;
    int code = HVD_OK;
    for (size_t i = 0; i < c->nready; i++) {
        struct pending *p = c->ready[i];
        if (!p->conflict || code) {
            c->ready[(*agreed)++] = p;
            continue;
        }
        hvd_error why;
        pending_explain_conflict(p, &why);
        code = fail(p, &why, out, err);
        pending_free(p);
    }
    c->nready = *agreed;
    return code;
}

static int decide_ready(struct coordinator *c, struct wire_writer *out, hvd_error *err) {
    size_t n;
    HVD_TRY(decide_conflicts(c, &n, out, err));
    if (!n) return HVD_OK;
    sort_by_priority(c->ready, n);
    HVD_TRY(plan(c, n, out, err));
    for (size_t i = 0; i < n; i++) pending_free(c->ready[i]);
    c->nready = 0;
    return HVD_OK;
}

int coordinator_decide(struct coordinator *c, double now, struct wire_writer *out, hvd_error *err) {
    HVD_TRY(decide_ready(c, out, err));
    HVD_TRY(decide_waiting(c, now, out, err));
    if (c->nleft < c->config.size || c->nowed || c->said_bye) return HVD_OK;
    c->said_bye = true;
    return wire_put(out, &(struct wire_item){.type = WIRE_BYE}, err);
}

bool coordinator_stalled(struct coordinator *c, double now, char *text, size_t size) {
    if (c->config.stall_warning <= 0) return false;
    for (struct pending *p = c->first; p; p = p->next) {
        if (p->warned || now - p->since <= c->config.stall_warning) continue;
        p->warned = true;
        explain_wait(c, p, now, text, size);
        return true;
    }
    return false;
}

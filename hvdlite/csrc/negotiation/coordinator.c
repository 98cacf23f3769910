#include "negotiation/coordinator.h"

#include "negotiation/cache.h"
#include "negotiation/fusion.h"
#include "negotiation/pending.h"

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
    bool *joined; /* [rank] */
    int njoined, last_joined;
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
    c->joined = calloc((size_t)config->size, sizeof *c->joined);
    if (c->cache && c->left && c->owed && c->reason && c->joined) return c;
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
    free(c->joined);
    free(c);
}

/* ---- what ranks say ---- */

static void unlink_pending(struct coordinator *c, struct pending *p) {
    struct pending **at = &c->first;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    if (c->last == &p->next) c->last = at;
    map_remove(&c->names, &p->node);
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
    p->joined = p->nsubmitted < c->config.size;
    p->request.members = p->nsubmitted;
    p->direct &= !p->joined;
    if (!p->direct) p->request.region = 0; /* a place that not every rank shares is of no use */
    c->ready[c->nready++] = p;
    return HVD_OK;
}

static int open_pending(struct coordinator *c, const struct request *request,
                        const struct map_node *name, double now, struct pending **out,
                        hvd_error *err) {
    struct pending *p = pending_new(request, c->config.size, c->config.names, now);
    if (!p) return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", request->name);
    p->node = map_node_like(name, p->request.name, p);
    int code = map_put(&c->names, &p->node, err);
    if (code) {
        pending_free(p);
        return code;
    }
    *c->last = p;
    c->last = &p->next;
    *out = p;
    return HVD_OK;
}

/* It waits for nobody: every rank has submitted it, or has joined. */
static bool is_ready(const struct coordinator *c, const struct pending *p) {
    if (p->nsubmitted + c->njoined < c->config.size) return false;
    if (p->nsubmitted == c->config.size) return true;
    for (int i = 0; i < c->config.size; i++)
        if (!p->submitted[i] && (!c->joined[i] || p->request.kind == HVD_JOIN)) return false;
    return true;
}

/* The rank's zeros are enough for what waited for it; when it was the last one, all is as before. */
static int join(struct coordinator *c, int rank, hvd_error *err) {
    c->joined[rank] = true;
    c->njoined++;
    c->last_joined = rank;
    for (struct pending *p = c->first, *next; p; p = next) {
        next = p->next;
        if (is_ready(c, p)) HVD_TRY(add_ready(c, p, err));
    }
    if (c->njoined < c->config.size) return HVD_OK;
    memset(c->joined, 0, (size_t)c->config.size * sizeof *c->joined);
    c->njoined = 0;
    return HVD_OK;
}

/* `name` is the request's, hashed before. */
static int submit(struct coordinator *c, int rank, const struct request *request,
                  const struct map_node *name, uint64_t id, double now, hvd_error *err) {
    struct pending *p = map_find(&c->names, name);
    if (!p) HVD_TRY(open_pending(c, request, name, now, &p, err));
    HVD_TRY(pending_add(p, rank, request, id, err));
    if (request->kind == HVD_JOIN) return join(c, rank, err);
    return is_ready(c, p) ? add_ready(c, p, err) : HVD_OK;
}

int coordinator_request(struct coordinator *c, int rank, const struct request *request, double now,
                        hvd_error *err) {
    HVD_TRY(request_check(request, c->config.size, err));
    struct map_node name = map_node_of(request->name, NULL);
    return submit(c, rank, request, &name, 0, now, err);
}

int coordinator_hit(struct coordinator *c, int rank, uint64_t id, double now,
                    struct wire_writer *out, hvd_error *err) {
    const struct cache_entry *entry = cache_by_id(c->cache, id);
    if (!entry) {
        c->owed[rank]++;
        c->nowed++;
        return wire_put(out, &(struct wire_item){.type = WIRE_RESEND, .rank = rank, .id = id}, err);
    }
    if (!entry->nrows) return submit(c, rank, &entry->request, &entry->node, id, now, err);
    struct request own = entry->request;
    if (own.ndim) own.dims[0] = entry->rows[rank];
    return submit(c, rank, &own, &entry->node, id, now, err);
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

/* Of the ranks that have left without submitting it the one that left first; -1: there is none. */
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
            pending_explain_left(p, left, c->reason[left], &why);
        } else if (limit > 0 && now - p->since > limit && p->request.kind != HVD_JOIN) {
            why.code = HVD_STALLED;
            pending_explain_wait(p, c->first, now, why.text, sizeof why.text);
        }
        if (why.code) HVD_TRY(fail_pending(c, p, &why, out, err));
    }
    return HVD_OK;
}

/* The first time, or changed: by its name, with the id that it will go by. */
static int name_tensor(struct coordinator *c, const struct pending *p, struct wire_item *item,
                       hvd_error *err) {
    memcpy(item->request.name, p->request.name, sizeof item->request.name);
    if (request_rows_vary(&p->request)) {
        item->nrows = (uint32_t)p->size;
        item->rows = p->rows;
    }
    if (!c->config.cache_capacity || p->request.kind == HVD_JOIN) return HVD_OK;
    item->id = ++c->last_id;
    return cache_put(c->cache, item->id, &p->request, item->rows, item->nrows, err);
}

/* For ranks that know nothing of it: all of the request. */
static void describe_tensor(const struct pending *p, struct wire_item *item) {
    item->request = p->request;
    item->whole = true;
    item->rows = p->rows; /* of use only where rows vary, and there nobody may be missing */
    for (int i = 0; i < p->size; i++)
        if (!p->submitted[i]) p->rows[item->nrows++] = i;
}

static int announce(struct coordinator *c, const struct pending *p, struct wire_writer *out,
                    hvd_error *err) {
    struct wire_item item = {.type = WIRE_TENSOR, .id = p->id, .direct = p->direct};
    int64_t last = c->last_joined;
    if (!p->id) HVD_TRY(name_tensor(c, p, &item, err));
    if (p->joined) describe_tensor(p, &item);
    if (p->request.kind == HVD_JOIN) {
        item.nrows = 1;
        item.rows = &last;
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
        hvd_error why = {0};
        if (p->conflict)
            pending_explain_conflict(p, &why);
        else if (p->joined && !request_takes_zeros(&p->request))
            pending_explain_joined(p, &why);
        if (!why.code || code) {
            c->ready[(*agreed)++] = p;
            continue;
        }
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
        if (p->request.kind == HVD_JOIN) continue; /* others have more data: that is fine */
        p->warned = true;
        pending_explain_wait(p, c->first, now, text, size);
        return true;
    }
    return false;
}

#include "negotiation/coordinator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct coordinator *coordinator_new(const struct coordinator_config *config) {
    struct coordinator *c = calloc(1, sizeof *c);
    if (!c) return NULL;
    c->config = *config;
    c->waiting = (struct waiting){.size = config->size, .job_ranks = config->job_ranks};
    c->ahead.bytes_ahead = config->options.bytes_ahead;
    c->cache = cache_new(config->options.cache_capacity);
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
    waiting_free(&c->waiting);
    ready_free(&c->ready);
    ahead_free(&c->ahead);
    cache_free(c->cache);
    free(c->left);
    free(c->owed);
    free(c->reason);
    free(c->joined);
    free(c);
}

static int add_ready(struct coordinator *c, struct pending *p, hvd_error *err) {
    HVD_TRY(ready_add(&c->ready, p, err));
    waiting_remove(&c->waiting, p);
    p->order = c->ordered++;
    p->joined = p->nsubmitted < c->config.size;
    p->request.contributors = p->nsubmitted;
    p->direct &= !p->joined;
    /* tensors are reduced in place only if all ranks have them at the same offset of a region */
    if (!p->direct) p->request.region = 0;
    return HVD_OK;
}

/* Returns whether every rank has submitted the tensor or has joined. */
static bool is_ready(const struct coordinator *c, const struct pending *p) {
    if (p->nsubmitted + c->njoined < c->config.size) return false;
    if (p->nsubmitted == c->config.size) return true;
    for (int i = 0; i < c->config.size; i++)
        if (!p->submitted[i] && (!c->joined[i] || p->request.kind == HVD_JOIN)) return false;
    return true;
}

/* Records that the rank has joined. The tensors that waited only for this rank become ready. When
 * the last rank joins, no rank counts as joined any more. */
static int join(struct coordinator *c, int rank, hvd_error *err) {
    c->joined[rank] = true;
    c->njoined++;
    c->last_joined = rank;
    for (struct pending *p = c->waiting.first, *next; p; p = next) {
        next = p->next;
        if (is_ready(c, p)) HVD_TRY(add_ready(c, p, err));
    }
    if (c->njoined < c->config.size) return HVD_OK;
    memset(c->joined, 0, (size_t)c->config.size * sizeof *c->joined);
    c->njoined = 0;
    return HVD_OK;
}

/* The submission of a tensor by a rank. */
struct submission {
    int rank;
    double now;
    const struct request *request;
    const struct map_node *name; /* node of the request's name, which is hashed already */
    uint64_t id;                 /* id in the cache; 0: the rank sent the whole request */
    const char *why;             /* why the rank has no data; "": no reason given */
};

static int submit(struct coordinator *c, const struct submission *s, hvd_error *err) {
    struct pending *p = map_find(&c->waiting.names, s->name);
    if (!p) {
        HVD_TRY(waiting_add(&c->waiting, s->request, s->name, s->now, &p, err));
        p->order = c->ordered++;
    }
    HVD_TRY(pending_add(p, s->rank, s->request, s->id, err));
    c->look_for_last |= s->request->last;
    if (*s->why) HVD_TRY(pending_refused(p, s->rank, s->why, err));
    if (s->request->kind == HVD_JOIN) return join(c, s->rank, err);
    return is_ready(c, p) ? add_ready(c, p, err) : HVD_OK;
}

int coordinator_request(struct coordinator *c, int rank, const struct request *request,
                        const char *why, double now, hvd_error *err) {
    HVD_TRY(request_check(request, c->config.size, err));
    struct map_node name = map_node_of(request->name, NULL);
    return submit(c, &(struct submission){rank, now, request, &name, 0, why}, err);
}

int coordinator_hit(struct coordinator *c, int rank, uint64_t id, double now,
                    struct wire_writer *out, hvd_error *err) {
    const struct cache_entry *entry = cache_by_id(c->cache, id);
    if (!entry) {
        c->owed[rank]++;
        c->nowed++;
        return wire_put(out, &(struct wire_item){.type = WIRE_RESEND, .rank = rank, .id = id}, err);
    }
    struct submission s = {rank, now, &entry->request, &entry->node, id, ""};
    struct request own;
    if (entry->nrows && entry->request.ndim) {
        own = entry->request;
        own.dims[0] = entry->rows[rank];
        s.request = &own;
    }
    return submit(c, &s, err);
}

int coordinator_resent(struct coordinator *c, int rank, const struct request *request, double now,
                       hvd_error *err) {
    if (!c->owed[rank])
        return error_set(err, HVD_INTERNAL,
                         "rank %d sent tensor '%s' again, but was not asked to: report this bug",
                         rank, request->name);
    c->owed[rank]--;
    c->nowed--;
    c->look_again = true;
    return coordinator_request(c, rank, request, "", now, err);
}

void coordinator_leave(struct coordinator *c, int rank, const char *reason) {
    if (c->left[rank]) return;
    snprintf(c->reason[rank], sizeof c->reason[rank], "%s", reason);
    c->left[rank] = ++c->nleft;
    c->look_again = true;
}

const char *coordinator_oldest(const struct coordinator *c, size_t *more) {
    *more = c->waiting.names.count ? c->waiting.names.count - 1 : 0;
    return c->waiting.first ? c->waiting.first->request.name : NULL;
}

void coordinator_stalled(struct coordinator *c, double now, const bool *silent,
                         waiting_text *report, void *arg) {
    double limit = c->config.options.stall_warning;
    if (limit > 0) waiting_report(&c->waiting, silent, now, limit, report, arg);
}

/* How tensors enter the engine, and how callers wait for them. See hvd.h. */
#include "hvd.h"

#include "engine/p2p.h"
#include "job/context.h"
#include "job/handle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(offsetof(struct tensor, request) + sizeof(struct request) == sizeof(struct tensor),
               "struct tensor must end with the request: translate() zeroes all before its dims");

static int rule_of(const hvd_update *update) {
    /* a rule out of range becomes HVD_RULES, which request_check refuses */
    if (update->rule < 0 || update->rule > HVD_RULES) return HVD_RULES;
    return update->dealt ? update->rule | REQUEST_DEALT : update->rule;
}

static int translate(const hvd_tensor *from, struct tensor *to, hvd_error *err) {
    struct request *r = &to->request;
    if (strlen(from->name) >= sizeof r->name)
        return error_set(err, HVD_INVALID, "the tensor name '%.60s...' is longer than %d bytes",
                         from->name, HVD_MAX_NAME - 1);
    if (from->ndim < 0 || from->ndim > HVD_MAX_DIMS)
        return error_set(err, HVD_UNSUPPORTED, "tensor '%s' has %d dimensions: expected 0 to %d",
                         from->name, from->ndim, HVD_MAX_DIMS);
    if (from->listed && (from->kind != HVD_ALLTOALL || from->splits || from->open))
        return error_set(err, HVD_INVALID,
                         "tensor '%s' lists the addresses of its parts: expected an alltoall "
                         "without splits, whose output has a known size",
                         from->name);
    memset(to, 0, offsetof(struct tensor, request.dims));
    strcpy(r->name, from->name);
    if (from->call) snprintf(r->call, sizeof r->call, "%s", from->call);
    r->kind = from->kind;
    r->dtype = from->dtype;
    r->op = from->op;
    r->root = from->root;
    r->priority = from->priority;
    r->grouped = from->grouped;
    r->states = from->states;
    r->prescale = from->prescale;
    r->postscale = from->postscale;
    r->codec = (struct codec){from->codec, from->parameter};
    if (from->update) {
        to->update = *from->update;
        r->rule = rule_of(from->update);
    }
    r->delegated = from->delegated;
    r->failed = from->failed ? HVD_FAILED : HVD_OK;
    r->uneven = from->kind == HVD_ALLTOALL && from->splits;
    r->waited = from->waited != 0;
    r->last = from->last != 0;
    to->queued = from->queued != 0;
    r->ndim = from->ndim;
    if (from->ndim) memcpy(r->dims, from->dims, (size_t)from->ndim * sizeof *r->dims);
    to->in = from->in;
    to->out = from->out;
    to->out_rows = from->out_rows;
    to->open = from->open != 0;
    to->listed = from->listed;
    to->residual = from->residual;
    return HVD_OK;
}

static int check(const struct request *r, const hvd_topology *at, hvd_error *err) {
    HVD_TRY(context_why_failed(err));
    return p2p_is(r) ? p2p_check(r, at, err) : request_check(r, at->size, err);
}

/* Checks the tensor and fills in `to`; `to` refers to the memory of `from`. */
static int check_and_translate(const hvd_tensor *from, struct tensor *to, hvd_error *err) {
    struct group *g;
    HVD_TRY(translate(from, to, err));
    HVD_TRY(context_enter_group(from->group, from->name, &g, err));
    int code = check(&to->request, &g->transport->at, err);
    context_leave();
    return code;
}

/* Returns a copy of `from`; NULL if `from` is NULL, or if memory is short. */
static void *copy(const void *from, size_t bytes) {
    void *memory = from ? malloc(bytes + 1) : NULL; /* + 1 because malloc(0) may return NULL */
    return memory ? memcpy(memory, from, bytes) : NULL;
}

/* If memory for the copy of the splits is short, the engine submits the tensor as failed. If memory
 * for the copy of from->failed is short, the error of the tensor has no reason. */
int hvd_prepare(const hvd_tensor *from, struct tensor *to, hvd_error *err) {
    if (check_and_translate(from, to, err)) return error_of(err, from->name);
    to->splits = copy(from->splits, from->nsplits * sizeof *from->splits);
    to->nsplits = to->splits ? from->nsplits : 0;
    to->why = copy(from->failed, from->failed ? strlen(from->failed) + 1 : 0);
    return HVD_OK;
}

int hvd_validate(const hvd_tensor *tensor, hvd_error *err) {
    struct tensor ignored;
    int code = check_and_translate(tensor, &ignored, err);
    return code ? error_of(err, tensor->name) : HVD_OK;
}

int hvd_submit(int group, struct tensor *tensor, hvd_error *err) {
    struct group *g;
    HVD_TRY(context_enter_group(group, tensor->request.name, &g, err));
    int code = engine_submit(g->engine, tensor, err);
    context_leave();
    return code ? error_of(err, tensor->request.name) : HVD_OK;
}

/* Does nothing for a closed group: the end of the group has ended its held-back tensors, too. */
void hvd_cork(int group, bool corked) {
    struct group *g;
    if (context_enter_group(group, "", &g, NULL)) return;
    engine_cork(g->engine, corked);
    context_leave();
}

/* ---- handles ---- */

hvd_handle *hvd_plan(const hvd_tensor *tensor, hvd_error *err) {
    hvd_handle *h = handle_new(err);
    if (!h) return NULL;
    h->group = tensor->group;
    if (hvd_prepare(tensor, &h->tensor, err) == HVD_OK) return h;
    hvd_drop(h);
    return NULL;
}

bool hvd_plan_fits(const hvd_handle *plan, const hvd_tensor *t) {
    const struct tensor *own = &plan->tensor;
    const struct request *r = &own->request;
    return plan->group == t->group && r->kind == t->kind && r->dtype == t->dtype &&
           r->op == t->op && r->prescale == t->prescale && r->postscale == t->postscale &&
           r->root == t->root && own->out_rows == t->out_rows && own->open == (t->open != 0) &&
           !strncmp(r->call, t->call ? t->call : "", sizeof r->call - 1) && r->ndim == t->ndim &&
           !memcmp(r->dims, t->dims, (size_t)t->ndim * sizeof *t->dims);
}

hvd_handle *hvd_start(const hvd_tensor *tensor, hvd_error *err) {
    hvd_handle *h = hvd_plan(tensor, err);
    if (!h) return NULL;
    handle_lend(h);
    if (hvd_submit(h->group, &h->tensor, err) == HVD_OK) return h;
    hvd_drop(h); /* the engine's reference, then the caller's */
    hvd_drop(h);
    return NULL;
}

static bool is_done(void *handle) {
    hvd_handle *h = handle;
    return atomic_load(&h->done) || atomic_load(&h->tensor.given_up);
}

static void drive(hvd_handle *h) {
    struct group *g;
    if (is_done(h) || context_enter_group(h->group, "", &g, NULL)) return;
    engine_drive(g->engine, is_done, h);
    context_leave();
}

int hvd_finish(hvd_handle *h, double seconds, hvd_error *err) {
    if (seconds > 0) drive(h);
    return handle_finish(h, seconds, err);
}

/* Checks the plan's tensor again, because the plan may have been made in an earlier job. */
static int submit_and_drive(hvd_handle *h, bool drives, hvd_error *err) {
    struct request *r = &h->tensor.request;
    struct group *g;
    HVD_TRY(context_enter_group(h->group, r->name, &g, err));
    int code = check(r, &g->transport->at, err);
    if (!code) code = engine_submit(g->engine, &h->tensor, err);
    if (!code && drives && !is_done(h)) engine_drive(g->engine, is_done, h);
    context_leave();
    return code;
}

int hvd_run(hvd_handle *h, const void *in, void *out, double seconds) {
    hvd_error err;
    handle_renew(h, in, out);
    if (submit_and_drive(h, seconds >= 0, &err)) {
        error_of(&err, h->tensor.request.name);
        handle_refuse(h, &err);
    }
    return handle_finish(h, seconds, NULL) && h->error.code == HVD_OK && h->tensor.out == out;
}

uint64_t hvd_turn(const hvd_handle *h) { return h->tensor.turn; }

uint64_t hvd_last_turn(const hvd_handle *h) { return h->tensor.last_turn; }

int hvd_source(hvd_handle *h) { return h->tensor.request.root; }

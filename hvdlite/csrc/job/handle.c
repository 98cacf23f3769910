#include "engine/handle.h"
#include "engine/engine.h"
#include "job/context.h"

#include "hvd.h"

hvd_handle *hvd_plan(const hvd_tensor *tensor, hvd_error *err) {
    hvd_handle *h = handle_new(err);
    if (!h) return NULL;
    h->group = tensor->group;
    if (hvd_prepare(tensor, &h->tensor, err) == HVD_OK) return h;
    handle_drop(h);
    return NULL;
}

hvd_handle *hvd_start(const hvd_tensor *tensor, hvd_error *err) {
    hvd_handle *h = hvd_plan(tensor, err);
    if (!h) return NULL;
    handle_lend(h);
    if (hvd_submit(h->group, &h->tensor, err) == HVD_OK) return h;
    handle_drop(h); /* for the engine */
    handle_drop(h);
    return NULL;
}

static bool is_done(void *handle) {
    hvd_handle *h = handle;
    return atomic_load(&h->done) || atomic_load(&h->given_up);
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

/* The job may be another than the one that the plan was prepared in. */
static int submit_and_drive(hvd_handle *h, hvd_error *err) {
    struct request *r = &h->tensor.request;
    struct group *g;
    HVD_TRY(context_enter_group(h->group, r->name, &g, err));
    int code = context_why_failed(err);
    if (!code) code = request_check(r, g->transport->at.size, err);
    if (!code) code = engine_submit(g->engine, &h->tensor, err);
    if (!code && !is_done(h)) engine_drive(g->engine, is_done, h);
    context_leave();
    return code;
}

int hvd_run(hvd_handle *h, const void *in, void *out, double seconds) {
    hvd_error err;
    handle_renew(h, in, out);
    if (submit_and_drive(h, &err)) {
        error_of(&err, h->tensor.request.name);
        handle_refuse(h, &err);
    }
    return handle_finish(h, seconds, NULL) && h->error.code == HVD_OK && h->tensor.out == out;
}

void hvd_give_up(hvd_handle *h) { handle_give_up(h); }

void hvd_watch(hvd_handle *h, void (*watcher)(void *arg), void *arg) {
    handle_watch(h, watcher, arg);
}

void *hvd_result(hvd_handle *h, const int64_t **rows) { return handle_result(h, rows); }

int hvd_source(hvd_handle *h) { return h->tensor.request.root; }

void hvd_drop(hvd_handle *h) { handle_drop(h); }

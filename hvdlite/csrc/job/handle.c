#include "engine/handle.h"
#include "engine/engine.h"
#include "job/context.h"

#include "hvd.h"

static int submit(hvd_handle *h, const hvd_tensor *tensor, hvd_error *err) {
    HVD_TRY(hvd_prepare(tensor, &h->tensor, err));
    h->group = tensor->group;
    handle_lend(h);
    int code = hvd_submit(tensor->group, &h->tensor, err);
    if (code) handle_drop(h); /* for the engine */
    return code;
}

hvd_handle *hvd_start(const hvd_tensor *tensor, hvd_error *err) {
    hvd_handle *h = handle_new(err);
    if (!h || submit(h, tensor, err) == HVD_OK) return h;
    handle_drop(h);
    return NULL;
}

static bool is_done(void *handle) { return atomic_load(&((hvd_handle *)handle)->done); }

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

void *hvd_result(hvd_handle *h, const int64_t **rows) { return handle_result(h, rows); }

void hvd_drop(hvd_handle *h) { handle_drop(h); }

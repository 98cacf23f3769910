#include "mxnet/watch.h"

#include "mxnet/api.h"

#include <stdatomic.h>
#include <stdlib.h>

struct hvd_mxnet_watch {
    atomic_int users; /* MXNet, until its operation is over, and the caller */
};

static void drop(void *param) {
    hvd_mxnet_watch *w = param;
    if (atomic_fetch_sub(&w->users, 1) == 1) free(w);
}

static void do_nothing(void *run_context, void *param) {
    (void)run_context;
    (void)param;
}

hvd_mxnet_watch *hvd_mxnet_watch_start(hvd_mxnet *lib, void **arrays, int n, hvd_error *err) {
    static const struct device APART = {CPU_SHARED, NOBODYS_DEVICE};
    static const int AT_ONCE = ASYNC;
    const struct mxnet_api *api = hvd_mxnet_api(lib);
    hvd_mxnet_watch *w = malloc(sizeof *w);
    if (!w) {
        error_set(err, HVD_NO_MEMORY, "no memory to watch %d arrays", n);
        return NULL;
    }
    atomic_init(&w->users, 2);
    if (api->push_sync(do_nothing, w, drop, &APART, arrays, n, NULL, 0, &AT_ONCE, 0,
                       "hvdlite_watch") == 0)
        return w;
    error_set(err, HVD_INTERNAL, "MXNet refused the operation: %s", api->last_error());
    drop(w); /* MXNet has dropped its own reference */
    return NULL;
}

int hvd_mxnet_watch_done(hvd_mxnet_watch *w) { return atomic_load(&w->users) == 1; }

void hvd_mxnet_watch_end(hvd_mxnet_watch *w) { drop(w); }

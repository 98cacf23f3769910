#include "hvd.h"

#include "base/sync.h"
#include "engine/tensors.h"

#include <stdlib.h>

struct hvd_handle {
    struct tensor tensor;
    struct monitor monitor; /* guards what follows */
    bool done;
    hvd_error error;
};

static void complete_handle(void *arg, const hvd_error *error) {
    hvd_handle *h = arg;
    monitor_lock(&h->monitor);
    if (error) h->error = *error;
    h->done = true;
    monitor_notify(&h->monitor);
    monitor_unlock(&h->monitor);
}

static void free_handle(hvd_handle *h) {
    monitor_destroy(&h->monitor);
    free((void *)h->tensor.splits);
    free(h);
}

static int submit(hvd_handle *h, const hvd_tensor *tensor, hvd_error *err) {
    HVD_TRY(hvd_prepare(tensor, &h->tensor, err));
    h->tensor.complete = complete_handle;
    h->tensor.arg = h;
    return hvd_submit(tensor->group, &h->tensor, err);
}

hvd_handle *hvd_start(const hvd_tensor *tensor, hvd_error *err) {
    hvd_handle *h = calloc(1, sizeof *h);
    if (!h) {
        error_set(err, HVD_NO_MEMORY, "no memory for a handle");
        return NULL;
    }
    monitor_init(&h->monitor);
    if (submit(h, tensor, err) == HVD_OK) return h;
    free_handle(h);
    return NULL;
}

int hvd_finish(hvd_handle *h, double seconds, hvd_error *err) {
    monitor_lock(&h->monitor);
    if (!h->done) monitor_wait(&h->monitor, seconds);
    bool done = h->done;
    if (done) *err = h->error;
    monitor_unlock(&h->monitor);
    if (done) free_handle(h);
    return done;
}

#include "job/handle.h"

#include <stdlib.h>
#include <unistd.h>

struct hvd_handle *handle_new(hvd_error *err) {
    struct hvd_handle *h = calloc(1, sizeof *h);
    if (!h) {
        error_set(err, HVD_NO_MEMORY, "no memory for a handle");
        return NULL;
    }
    mutex_init(&h->mutex);
    atomic_init(&h->holders, 1);
    h->process = getpid();
    return h;
}

/* Returns true in a child forked since the handle was made. A child must not lock the mutex,
 * because a thread of the parent may have held it at the fork. */
static bool is_inherited(const struct hvd_handle *h) { return h->process != getpid(); }

void hvd_drop(hvd_handle *h) {
    if (atomic_fetch_sub(&h->holders, 1) > 1 || is_inherited(h)) return;
    mutex_destroy(&h->mutex);
    free((void *)h->tensor.splits);
    free((void *)h->tensor.why);
    free(h->tensor.made);
    free(h);
}

static void complete(void *arg, const hvd_error *error) {
    struct hvd_handle *h = arg;
    if (error) h->error = *error;
    mutex_lock(&h->mutex);
    atomic_store(&h->done, true);
    mutex_notify(&h->mutex);
    void (*watcher)(void *) = h->watcher;
    mutex_unlock(&h->mutex);
    if (watcher) watcher(h->watcher_arg);
    hvd_drop(h);
}

void hvd_watch(hvd_handle *h, void (*watcher)(void *arg), void *arg) {
    mutex_lock(&h->mutex);
    bool done = atomic_load(&h->done);
    if (!done) {
        h->watcher = watcher;
        h->watcher_arg = arg;
    }
    mutex_unlock(&h->mutex);
    if (done) watcher(arg);
}

void hvd_give_up(hvd_handle *h) {
    mutex_lock(&h->mutex);
    atomic_store(&h->tensor.given_up, true);
    mutex_notify(&h->mutex);
    mutex_unlock(&h->mutex);
}

void handle_lend(struct hvd_handle *h) {
    h->tensor.complete = complete;
    h->tensor.arg = h;
    atomic_fetch_add(&h->holders, 1);
}

void handle_renew(struct hvd_handle *h, const void *in, void *out) {
    h->tensor.in = in;
    h->tensor.out = out;
    h->tensor.request.contributors = 0;
    free(h->tensor.made);
    h->tensor.made = NULL;
    h->error.code = HVD_OK;
    atomic_store(&h->done, false);
    handle_lend(h);
}

void handle_refuse(struct hvd_handle *h, const hvd_error *err) {
    h->error = *err;
    atomic_store(&h->done, true);
    hvd_drop(h);
}

void *hvd_result(hvd_handle *h, const int64_t **rows) {
    bool good = atomic_load(&h->done) && !h->error.code && h->tensor.made;
    *rows = good ? h->tensor.made : NULL;
    return good ? h->tensor.out : NULL;
}

static int refuse_in_child(const struct hvd_handle *h, hvd_error *err) {
    if (!is_inherited(h)) return HVD_OK;
    return error_set(err, HVD_NOT_INITIALIZED,
                     "tensor '%s' was under way in process %ld when that process forked this one: "
                     "only that process can wait for the tensor",
                     h->tensor.request.name, (long)h->process);
}

bool handle_finish(struct hvd_handle *h, double seconds, hvd_error *err) {
    if (!atomic_load(&h->done) && refuse_in_child(h, err)) return true;
    if (!atomic_load(&h->done) && seconds > 0) {
        mutex_lock(&h->mutex);
        if (!atomic_load(&h->done) && !atomic_load(&h->tensor.given_up))
            mutex_wait(&h->mutex, seconds);
        mutex_unlock(&h->mutex);
    }
    bool done = atomic_load(&h->done);
    /* copied only after an error, because hvd_error is large */
    if (done && err && h->error.code) *err = h->error;
    if (done && err) err->code = h->error.code;
    return done;
}

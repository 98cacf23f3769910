/* A handle: one tensor under way.
 *
 * Any number of threads may ask for its result or wait for it. The caller and, from handle_lend to
 * the completion, the engine hold a handle. The last of them frees it: a caller may drop a handle
 * whose tensor is still under way. */
#ifndef HVDLITE_JOB_HANDLE_H
#define HVDLITE_JOB_HANDLE_H

#include "base/sync.h"
#include "engine/tensors.h"
#include "hvd.h"

#include <stdatomic.h>
#include <sys/types.h>

struct hvd_handle {
    struct tensor tensor; /* hvd_drop frees its splits, why and made */
    int group;            /* number of the group whose engine completes the tensor */
    /* process whose engine completes the tensor; a child forked from it has no engine */
    pid_t process;
    atomic_int holders;
    atomic_bool done;     /* the tensor is done, and `error` is final */
    atomic_bool given_up; /* all waits end at once, see hvd_give_up */
    hvd_error error;
    struct mutex mutex;         /* waits for `done` sleep on it */
    void (*watcher)(void *arg); /* called when the tensor is done; may be NULL */
    void *watcher_arg;
};

struct hvd_handle *handle_new(hvd_error *err);
/* Makes the engine a holder of the handle. Call it when the tensor is filled in, before its
 * submission; if the submission fails, drop the handle. */
void handle_lend(struct hvd_handle *h);

/* handle_lend for a tensor that was submitted before and is done. */
void handle_renew(struct hvd_handle *h, const void *in, void *out);
/* ends the handle with the error: the engine has refused its tensor */
void handle_refuse(struct hvd_handle *h, const hvd_error *err);

/* hvd_finish without stepping the engine. */
bool handle_finish(struct hvd_handle *h, double seconds, hvd_error *err);

#endif

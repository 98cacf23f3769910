/* A handle: one tensor under way.
 *
 * Any number of threads may wait for the tensor or ask for its result. A handle has up to two
 * holders: the caller, and, from handle_lend to the completion, the engine. The last holder frees
 * the handle, so a caller may drop the handle while its tensor is under way. */
#ifndef HVDLITE_JOB_HANDLE_H
#define HVDLITE_JOB_HANDLE_H

#include "base/os.h"
#include "engine/tensors.h"
#include "hvd.h"

#include <stdatomic.h>
#include <sys/types.h>

struct hvd_handle {
    struct tensor tensor; /* hvd_drop frees its `splits`, `why` and `made` */
    int group;            /* number of the group whose engine runs the tensor */
    /* the process whose engine completes the tensor: a forked child has no engine */
    pid_t process;
    atomic_int holders;
    atomic_bool done; /* true: the tensor is done and `error` is final */
    hvd_error error;
    struct mutex mutex;         /* threads that wait for `done` sleep on it */
    void (*watcher)(void *arg); /* called when the tensor is done; may be NULL */
    void *watcher_arg;
};

struct hvd_handle *handle_new(hvd_error *err);
/* Makes the engine a holder of the handle. Call this function after filling in the tensor and
 * before submitting it. If the submission fails, call hvd_drop for the engine. */
void handle_lend(struct hvd_handle *h);

/* Like handle_lend, for a plan that is not under way. */
void handle_renew(struct hvd_handle *h, const void *in, void *out);
/* Completes the handle with the error, because the engine has refused its tensor. */
void handle_refuse(struct hvd_handle *h, const hvd_error *err);

/* Like hvd_finish, but does not run the engine's steps. */
bool handle_finish(struct hvd_handle *h, double seconds, hvd_error *err);

#endif

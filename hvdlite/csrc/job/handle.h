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
    int group;            /* of ranks, whose engine completes it */
    pid_t process;        /* whose engine completes it: a child forked from that has none */
    atomic_int holders;
    atomic_bool done;     /* then `error` stays as it is */
    atomic_bool given_up; /* nobody waits any more */
    hvd_error error;
    struct mutex mutex;         /* for waits for `done` */
    void (*watcher)(void *arg); /* called when the tensor is done; NULL: none */
    void *watcher_arg;
};

struct hvd_handle *handle_new(hvd_error *err);
/* Call it before the submission of the filled-in tensor; drop the handle if the submission
 * fails. */
void handle_lend(struct hvd_handle *h);

/* The same for a tensor that was submitted before and is done. */
void handle_renew(struct hvd_handle *h, const void *in, void *out);
void handle_refuse(struct hvd_handle *h, const hvd_error *err); /* the engine did not take it */

/* As hvd_finish, but does not step the engine. */
bool handle_finish(struct hvd_handle *h, double seconds, hvd_error *err);

#endif

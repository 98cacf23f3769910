/* Handle: one tensor under way, for any number of threads that ask or wait how it ends.
 *
 * The caller and, from handle_lend to the completion, the engine hold a handle. The last of them
 * frees it: a caller may drop a handle whose tensor is still under way. */
#ifndef HVDLITE_JOB_HANDLE_H
#define HVDLITE_JOB_HANDLE_H

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
    struct mutex mutex;         /* of those who wait for `done` */
    void (*watcher)(void *arg); /* called when it is done; NULL: nobody asked */
    void *watcher_arg;
};

struct hvd_handle *handle_new(hvd_error *err);
/* Before the submission of the tensor, which is filled in; drop what the engine does not take. */
void handle_lend(struct hvd_handle *h);

/* The same for the tensor of the last submission, which is done. */
void handle_renew(struct hvd_handle *h, const void *in, void *out);
void handle_refuse(struct hvd_handle *h, const hvd_error *err); /* the engine did not take it */

/* As hvd_finish, but does none of the engine's work. */
bool handle_finish(struct hvd_handle *h, double seconds, hvd_error *err);

#endif

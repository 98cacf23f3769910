/* Handle: one tensor under way, for any number of threads that ask or wait how it ends.
 *
 * The caller and, from handle_lend to the completion, the engine hold a handle. The last of them
 * frees it: a caller may drop a handle whose tensor is still under way. */
#ifndef HVDLITE_ENGINE_HANDLE_H
#define HVDLITE_ENGINE_HANDLE_H

#include "engine/tensors.h"

#include <stdatomic.h>
#include <sys/types.h>

struct hvd_handle {
    struct tensor tensor; /* handle_drop frees its splits, why and made */
    int group;            /* of ranks, whose engine completes it */
    pid_t process;        /* whose engine completes it: a child forked from that has none */
    atomic_int holders;
    atomic_bool done;     /* then `error` stays as it is */
    atomic_bool given_up; /* nobody waits any more */
    hvd_error error;
    struct monitor monitor;     /* of those who wait for `done` */
    void (*watcher)(void *arg); /* called when it is done; NULL: nobody asked */
    void *watcher_arg;
};

struct hvd_handle *handle_new(hvd_error *err);
/* Before the submission of the tensor, which is filled in; drop what the engine does not take. */
void handle_lend(struct hvd_handle *h);

/* The same for the tensor of the last submission, which is done. */
void handle_renew(struct hvd_handle *h, const void *in, void *out);
void handle_refuse(struct hvd_handle *h, const hvd_error *err); /* the engine did not take it */

/* Any thread, any number of times; see hvd_finish. */
bool handle_finish(struct hvd_handle *h, double seconds, hvd_error *err);
void handle_give_up(struct hvd_handle *h); /* See hvd_give_up. */
/* See hvd_watch. */
void handle_watch(struct hvd_handle *h, void (*watcher)(void *arg), void *arg);
/* See hvd_result. */
void *handle_result(const struct hvd_handle *h, const int64_t **rows);
void handle_drop(struct hvd_handle *h);

#endif

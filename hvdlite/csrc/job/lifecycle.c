/* The life of the job and of its groups: init, checks, leaving, closing. See hvd.h. */
#include "hvd.h"

#include "job/context.h"
#include "transport/net.h"

int hvd_init(const hvd_by_mpi *mpi, hvd_error *err) {
    struct bootstrap bootstrap = {mpi->open, mpi->comm, false};
    return context_open(&bootstrap, err);
}

int hvd_init_sockets(const hvd_sockets *s, hvd_error *err) {
    struct bootstrap bootstrap = {transport_tcp_open, s, false};
    int code =
        s->size > 0 && s->rank >= 0 && s->rank < s->size
            ? context_open(&bootstrap, err)
            : error_set(
                  err, HVD_INVALID,
                  "rank %d of %d ranks: expected a rank from 0 to the number of ranks minus 1",
                  s->rank, s->size);
    if (!bootstrap.taken) net_close_files(s->rank, s->size, s->data);
    if (!bootstrap.taken) net_close_files(s->rank, s->size, s->messages);
    return code;
}

int hvd_is_initialized(void) {
    if (context_enter(NULL)) return 0;
    context_leave();
    return 1;
}

int hvd_check(hvd_error *err) {
    HVD_TRY(context_enter(err));
    int code = context_why_failed(err);
    context_leave();
    return code;
}

void hvd_lose_host(const char *host) {
    if (context_enter(NULL)) return;
    for (int i = 0; i < context_job()->ngroups; i++) {
        struct group *g = job_group(context_job(), i);
        if (g) transport_lose_host(g->transport, host);
    }
    context_leave();
}

/* ---- groups ---- */

/* Calls context_hold instead of context_enter, so that a thread that waits here for other ranks
 * does not block other threads of this process. */
static int open_group(struct bootstrap *bootstrap, const int *ranks, int *group, hvd_error *err) {
    struct job *job;
    struct group *g = NULL;
    HVD_TRY(context_hold(&job, err));
    int code = job_make_group(job, bootstrap, ranks, &g, err);
    if (!code) code = context_add_group(job, g, group, err);
    if (code) group_close(g);
    context_release(job);
    return code;
}

int hvd_group_open(const hvd_by_mpi *mpi, const int *ranks, int *group, hvd_error *err) {
    struct bootstrap bootstrap = {mpi->open, mpi->comm, false};
    return open_group(&bootstrap, ranks, group, err);
}

int hvd_group_open_among(const int *ranks, int size, int number, int *group, hvd_error *err) {
    struct bootstrap bootstrap = {transport_tcp_open_among, &(struct tcp_group){size, number},
                                  false};
    return open_group(&bootstrap, ranks, group, err);
}

void hvd_leave(int group, const char *reason) {
    if (context_enter(NULL)) return;
    if (group == HVD_ALL_GROUPS) atomic_store(&context_job()->left, true);
    for (int i = 0; i < context_job()->ngroups; i++) {
        struct group *g = job_group(context_job(), i);
        if (g && (group == HVD_ALL_GROUPS || i == group)) engine_leave(g->engine, reason);
    }
    context_leave();
}

int hvd_wait_end(int group, double seconds) {
    if (context_enter(NULL)) return true;
    bool ended = true;
    for (int i = 0; i < context_job()->ngroups && ended; i++) {
        struct group *g = job_group(context_job(), i);
        if (g && (group == HVD_ALL_GROUPS || i == group)) ended = engine_ended(g->engine, seconds);
    }
    context_leave();
    return ended;
}

/* Calls context_hold, because the group uses the job's sockets and flight recorder. */
void hvd_group_close(int group) {
    struct job *job;
    if (context_hold(&job, NULL)) return;
    group_close(context_take_group(group));
    context_release(job);
}

/* The life of the job and of its groups: checks, opening groups, leaving. See hvd.h. */
#include "hvd.h"

#include "job/context.h"

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
int hvd_group_open(const hvd_transport *transport, const int *ranks, int *group, hvd_error *err) {
    struct job *job;
    struct group *g = NULL;
    HVD_TRY(context_hold(&job, err));
    int code = job_make_group(job, transport, ranks, &g, err);
    if (!code) code = context_add_group(job, g, group, err);
    if (code) group_close(g);
    context_release(job);
    return code;
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

#include "hvd.h"

#include "base/clock.h"
#include "job/context.h"
#include "transport/net.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int hvd_init(const hvd_by_mpi *mpi, hvd_error *err) {
    return context_open(&(struct reach){.mpi = *mpi}, err);
}

int hvd_init_sockets(const hvd_sockets *s, hvd_error *err) {
    struct reach reach = {.sockets = *s};
    int code = s->size > 0 && s->rank >= 0 && s->rank < s->size
                   ? context_open(&reach, err)
                   : error_set(err, HVD_INVALID, "rank %d is not a rank of a job of %d ranks",
                               s->rank, s->size);
    if (!reach.taken) net_close_files(s->rank, s->size, s->data);
    if (!reach.taken) net_close_files(s->rank, s->size, s->messages);
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

const char *hvd_algorithm(void) {
    if (context_enter(NULL)) return NULL;
    const char *name = engine_algorithm(context_world()->engine);
    context_leave();
    return name;
}

int hvd_get_stats(hvd_stats *out, hvd_error *err) {
    HVD_TRY(context_enter(err));
    struct stats *stats = context_job()->config.stats;
    *out = (hvd_stats){stats->bytes_sent_network, stats->bytes_sent_window, stats->tensors,
                       stats->batches};
    context_leave();
    return HVD_OK;
}

int hvd_flight_file(void) {
    if (context_enter(NULL)) return -1;
    int file = context_job()->flight ? context_job()->flight->file : -1;
    context_leave();
    return file;
}

void hvd_flight_describe(const char *job, const char *transport, int stacks) {
    if (context_enter(NULL)) return;
    flight_describe(context_job()->flight, job, transport, stacks);
    context_leave();
}

void hvd_flight_bell(int bell, const char *word) {
    if (context_enter(NULL)) return;
    flight_set_bell(context_job()->flight, bell, word);
    context_leave();
}

void hvd_set_clock(double offset, double error, const char *about) {
    if (context_enter(NULL)) return;
    flight_set_clock(context_job()->flight, offset, error);
    timeline_set_clock(&context_job()->timeline, offset, error, about);
    context_leave();
}

void hvd_note(const char *what, double begin, double end) {
    if (context_enter(NULL)) return;
    flight_note(context_job()->flight, what, begin, end);
    if (timeline_on(&context_job()->timeline))
        timeline_note(&context_job()->timeline, what, begin, end);
    context_leave();
}

int hvd_timeline_start(const char *path, int mark_cycles, hvd_error *err) {
    HVD_TRY(context_enter(err));
    int code = job_start_timeline(context_job(), path, mark_cycles != 0, err);
    context_leave();
    return code;
}

int hvd_timeline_stop(hvd_error *err) {
    HVD_TRY(context_enter(err));
    int code = timeline_stop(&context_job()->timeline, err);
    context_leave();
    return code;
}

/* ---- groups ---- */

/* Holds the job instead of entering it, because a caller that waits here must not block others. */
static int open_group(struct reach *reach, const int *ranks, int *group, hvd_error *err) {
    struct job *job;
    struct group *g = NULL;
    HVD_TRY(context_hold(&job, err));
    int code = job_make_group(job, reach, ranks, &g, err);
    if (!code) code = context_add_group(job, g, group, err);
    if (code) group_close(g);
    context_release(job);
    return code;
}

int hvd_group_open(const hvd_by_mpi *mpi, const int *ranks, int *group, hvd_error *err) {
    return open_group(&(struct reach){.mpi = *mpi}, ranks, group, err);
}

int hvd_group_open_among(const int *ranks, int size, int number, int *group, hvd_error *err) {
    return open_group(&(struct reach){.size = size, .number = number}, ranks, group, err);
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

/* Holds the job meanwhile, because the group uses the job's sockets and recorder. */
void hvd_group_close(int group) {
    struct job *job;
    if (context_hold(&job, NULL)) return;
    group_close(context_take_group(group));
    context_release(job);
}

/* ---- the end of the job ---- */

struct hvd_limit {
    pthread_t thread;
    double seconds, until;
    int code;
    const char *words;
    int nranks, *ranks; /* ranks for which the process waits in MPI; nranks 0: not known */
    struct mutex mutex; /* guards `lifted` */
    bool lifted;
};

static void end_now(const struct hvd_limit *l, const hvd_error *why) {
    log_last_words(why->text);
    log_last_words(l->words);
    _exit(l->code);
}

static bool has_failed(hvd_error *why) {
    if (context_enter(NULL)) return false;
    bool failed = context_why_failed(why);
    context_leave();
    return failed;
}

static void *end_at_limit(void *arg) {
    static const double LOOK = 0.2;
    struct hvd_limit *l = arg;
    hvd_error why = {.code = HVD_OK};
    mutex_lock(&l->mutex);
    while (!l->lifted) {
        double now = clock_now();
        if (l->nranks && !has_failed(&why)) l->until = now + l->seconds;
        if (now >= l->until) end_now(l, &why);
        mutex_wait(&l->mutex, l->nranks ? LOOK : l->until - now);
    }
    mutex_unlock(&l->mutex);
    return NULL;
}

static void await_all(const struct hvd_limit *l, int by) {
    if (!l->nranks || context_enter(NULL)) return;
    for (int i = 0; i < l->nranks; i++)
        transport_await(context_world()->transport, l->ranks[i], by);
    context_leave();
}

/* Allocates one block for the limit, its ranks and its words. */
hvd_limit *hvd_limit_set(double seconds, const int *ranks, int nranks, int code,
                         const char *words) {
    size_t bytes = (size_t)nranks * sizeof *ranks;
    hvd_limit *l = calloc(1, sizeof *l + bytes + strlen(words) + 1);
    if (!l) return NULL;
    *l = (struct hvd_limit){.seconds = seconds, .until = clock_now() + seconds, .code = code};
    l->nranks = nranks;
    l->ranks = (int *)(l + 1);
    l->words = strcpy((char *)(l->ranks + nranks), words);
    if (bytes) memcpy(l->ranks, ranks, bytes);
    mutex_init(&l->mutex);
    await_all(l, 1);
    if (!thread_start(&l->thread, end_at_limit, l, "hvdlite-end", NULL)) return l;
    await_all(l, -1);
    mutex_destroy(&l->mutex);
    free(l);
    return NULL;
}

void hvd_limit_lift(hvd_limit *l) {
    if (!l) return;
    mutex_lock(&l->mutex);
    l->lifted = true;
    mutex_notify(&l->mutex);
    mutex_unlock(&l->mutex);
    thread_join(l->thread);
    await_all(l, -1);
    mutex_destroy(&l->mutex);
    free(l);
}

static int exit_code; /* a variable, because an exit function has no argument */

void hvd_end_child_with(int code) { exit_code = code; }

void hvd_end_child(void) {
    fflush(NULL);
    _exit(exit_code);
}

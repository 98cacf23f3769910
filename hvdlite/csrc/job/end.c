/* Functions that end the process. No other file ends the process.
 *
 * At a limit (hvd_limit_set), a separate thread ends the process. A forked child ends without the
 * exit functions of its parent. */
#include "hvd.h"

#include "base/os.h"
#include "job/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct hvd_limit {
    pthread_t thread;
    double seconds, until;
    int code;
    const char *message;
    int nranks, *ranks; /* ranks for which the process waits in MPI; nranks 0: unknown */
    uint64_t job;       /* number of the job of these ranks; 0: none */
    struct mutex mutex; /* guards `lifted` */
    bool lifted;
};

/* Enters the context if the present job is the job of l->ranks. */
static bool enter_job(const struct hvd_limit *l) {
    if (context_enter(NULL)) return false;
    if (context_job_number() == l->job) return true;
    context_leave();
    return false;
}

/* Returns whether the job of l->ranks still runs. If the job has failed, fills *why. After the end
 * or a failure of the job, its ranks do not join the MPI call in which this process waits. */
static bool is_running(const struct hvd_limit *l, hvd_error *why) {
    if (!enter_job(l)) return false;
    bool failed = context_why_failed(why);
    context_leave();
    return !failed;
}

static void *end_at_limit(void *arg) {
    static const double LOOK = 0.2; /* the limit may begin up to so many seconds late; chosen */
    struct hvd_limit *l = arg;
    hvd_error why = {.code = HVD_OK};
    bool job_runs = l->nranks > 0;
    mutex_lock(&l->mutex);
    while (!l->lifted) {
        double now = clock_now();
        if (job_runs) l->until = now + l->seconds;
        if (now >= l->until) {
            log_before_exit(why.text);
            log_before_exit(l->message);
            _exit(l->code);
        }
        mutex_wait(&l->mutex, job_runs ? LOOK : l->until - now);
        job_runs = job_runs && is_running(l, &why);
    }
    mutex_unlock(&l->mutex);
    return NULL;
}

static void await_all(const struct hvd_limit *l, int by) {
    if (!enter_job(l)) return;
    for (int i = 0; i < l->nranks; i++)
        transport_await(context_world()->transport, l->ranks[i], by);
    context_leave();
}

/* Allocates the limit, its ranks and its message as one block. */
hvd_limit *hvd_limit_set(double seconds, const int *ranks, int nranks, int code,
                         const char *message) {
    size_t bytes = (size_t)nranks * sizeof *ranks;
    hvd_limit *l = calloc(1, sizeof *l + bytes + strlen(message) + 1);
    if (!l) return NULL;
    *l = (struct hvd_limit){.seconds = seconds, .until = clock_now() + seconds, .code = code};
    l->nranks = nranks;
    l->ranks = (int *)(l + 1);
    l->message = strcpy((char *)(l->ranks + nranks), message);
    if (bytes) memcpy(l->ranks, ranks, bytes);
    mutex_init(&l->mutex);
    if (nranks && !context_enter(NULL)) {
        l->job = context_job_number();
        context_leave();
    }
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

void hvd_end_child_with(int code) { *context_exit_code() = code; }

void hvd_end_child(void) {
    fflush(NULL);
    _exit(*context_exit_code());
}

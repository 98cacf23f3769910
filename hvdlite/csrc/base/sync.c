#define _GNU_SOURCE /* pthread_setname_np, SCHED_BATCH */
#include "base/sync.h"

#include "base/clock.h"

#include <assert.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

void mutex_init(struct mutex *m) {
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, &attr);
    pthread_condattr_destroy(&attr);
}

void mutex_destroy(struct mutex *m) {
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
}

void mutex_lock(struct mutex *m) {
    int failed = pthread_mutex_lock(&m->lock);
    assert(!failed);
    (void)failed;
}

bool mutex_try(struct mutex *m) { return !pthread_mutex_trylock(&m->lock); }

void mutex_unlock(struct mutex *m) { pthread_mutex_unlock(&m->lock); }

void mutex_notify(struct mutex *m) { pthread_cond_broadcast(&m->changed); }

void mutex_wait(struct mutex *m, double seconds) {
    struct timespec until, span = clock_span(seconds);
    clock_gettime(CLOCK_MONOTONIC, &until);
    long nanoseconds = until.tv_nsec + span.tv_nsec;
    until.tv_sec += span.tv_sec + nanoseconds / 1000000000;
    until.tv_nsec = nanoseconds % 1000000000;
    pthread_cond_timedwait(&m->changed, &m->lock, &until);
}

/* Returns the signals that hvdlite's threads block, because Python's handlers must not run in them.
 * A thread's own faults, such as SIGSEGV, stay unblocked: a blocked fault would end the process
 * without faulthandler's message. */
static void signals_of_others(sigset_t *set) {
    static const int OWN[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigfillset(set);
    for (size_t i = 0; i < sizeof OWN / sizeof *OWN; i++) sigdelset(set, OWN[i]);
}

int thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name,
                 hvd_error *err) {
    sigset_t others, old;
    signals_of_others(&others);
    pthread_sigmask(SIG_SETMASK, &others, &old);
    int failed = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (failed)
        return error_set(err, HVD_NO_MEMORY, "can't start the thread %s: %s", name,
                         strerror(failed));
    pthread_setname_np(*thread, name);
    return HVD_OK;
}

void thread_give_way(void) { sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}); }

void thread_join(pthread_t thread) { pthread_join(thread, NULL); }

int fork_watch(void (*in_child)(void), hvd_error *err) {
    int code = pthread_atfork(NULL, NULL, in_child);
    return code ? error_set(err, HVD_NO_MEMORY, "can't watch for forks: %s", strerror(code))
                : HVD_OK;
}

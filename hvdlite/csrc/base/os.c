#define _GNU_SOURCE /* pthread_setname_np, SCHED_BATCH */
#include "base/os.h"

#include <assert.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

double clock_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void clock_nap(double seconds) {
    struct timespec t = clock_span(seconds);
    nanosleep(&t, NULL); /* a signal may end the sleep early; each caller checks the time again */
}

void clock_yield(void) { sched_yield(); }

void clock_relax(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

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

/* Returns the signals that hvdlite's threads block, because Python's signal handlers must not run
 * in these threads. Signals of the thread's own faults, such as SIGSEGV, stay unblocked: if they
 * were blocked, a fault would end the process without the message of Python's faulthandler. */
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

int scratch_get(struct scratch *s, size_t bytes, void **out, hvd_error *err) {
    if (bytes > s->size) {
        void *data;
        if (posix_memalign(&data, 64, bytes))
            return error_set(err, HVD_NO_MEMORY, "no memory for a buffer of %zu bytes", bytes);
        free(s->data);
        s->data = data;
        s->size = bytes;
    }
    *out = s->data;
    return HVD_OK;
}

void scratch_free(struct scratch *s) {
    free(s->data);
    *s = (struct scratch){0};
}

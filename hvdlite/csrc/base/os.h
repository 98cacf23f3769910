/* What the core asks of the operating system: the time, threads, locks, and aligned memory.
 *
 * Times are seconds on the monotonic clock, like Python's time.monotonic(), so times in the core's
 * log lines can be compared with times that a script measures. Any thread may call the functions,
 * except the functions of struct scratch. If only a bug of hvdlite can make a pthread call fail, an
 * assert checks the call. */
#ifndef HVDLITE_BASE_OS_H
#define HVDLITE_BASE_OS_H

#include "base/error.h"

#include <pthread.h>
#include <time.h>

/* ---- the clock ---- */

/* Converts seconds to a timespec for system calls, limited to the range from 0 to one day. A caller
 * that must sleep for more than a day calls again. */
static inline struct timespec clock_span(double seconds) {
    static const double A_DAY = 86400;
    /* NaN becomes one day */
    double most = seconds < A_DAY ? seconds : A_DAY, span = most > 0 ? most : 0;
    struct timespec t = {.tv_sec = (time_t)span};
    t.tv_nsec = (long)((span - (double)t.tv_sec) * 1e9);
    return t;
}

double clock_now(void);
void clock_nap(double seconds);
void clock_yield(void);
void clock_relax(void); /* a spinning thread calls this between two checks */

/* ---- threads ---- */

/* A mutex with a condition variable. Waits use the monotonic clock. */
struct mutex {
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

/* The initial value of a mutex for which no thread calls mutex_wait. */
#define MUTEX_WITHOUT_WAITS {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER}
void mutex_init(struct mutex *m);
void mutex_destroy(struct mutex *m);
void mutex_lock(struct mutex *m);
bool mutex_try(struct mutex *m); /* locks the mutex if it is free; returns whether it did */
void mutex_unlock(struct mutex *m);
void mutex_notify(struct mutex *m); /* wakes all waiting threads; the caller holds the lock */
void mutex_wait(struct mutex *m, double seconds); /* the caller holds the lock; may return early */

int thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name,
                 hvd_error *err);
void thread_join(pthread_t thread);
/* From now on this thread preempts no other thread when it wakes up (SCHED_BATCH). */
void thread_give_way(void);

/* From now on, every child that this process forks calls `in_child`. */
int fork_watch(void (*in_child)(void), hvd_error *err);

/* ---- scratch memory ---- */

/* Memory that grows and is reused, so only the first collective pays for page faults. One thread
 * uses the memory. The next user may overwrite the contents. */
struct scratch {
    void *data;
    size_t size;
};

/* Sets *out to at least `bytes` bytes, 64-byte aligned, with undefined contents. A zeroed struct is
 * an empty scratch. */
int scratch_get(struct scratch *s, size_t bytes, void **out, hvd_error *err);
void scratch_free(struct scratch *s);

#endif

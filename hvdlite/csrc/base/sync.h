/* Threads: a mutex with a condition, waits on the monotonic clock, and a thread.
 *
 * pthread calls that fail only through a defect of hvdlite are asserted. */
#ifndef HVDLITE_BASE_SYNC_H
#define HVDLITE_BASE_SYNC_H

#include "base/error.h"

#include <pthread.h>

struct mutex {
    pthread_mutex_t lock;
    pthread_cond_t changed;
};

void mutex_init(struct mutex *m);
void mutex_destroy(struct mutex *m);
void mutex_lock(struct mutex *m);
bool mutex_try(struct mutex *m); /* locks the mutex if it is free; true: locked */
void mutex_unlock(struct mutex *m);
void mutex_notify(struct mutex *m); /* wakes all waiters; call it with the lock held */
void mutex_wait(struct mutex *m, double seconds); /* lock held; may return early */

int thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name,
                 hvd_error *err);
void thread_join(pthread_t thread);
/* From now on this thread, when it wakes up, preempts no other thread (SCHED_BATCH). */
void thread_give_way(void);

/* Calls `in_child` in every process that is forked from this one from now on. */
int fork_watch(void (*in_child)(void), hvd_error *err);

#endif

/* Threads, and a mutex with a condition variable whose waits use the monotonic clock.
 *
 * A pthread call that can fail only because of a bug in hvdlite is asserted. */
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

#endif

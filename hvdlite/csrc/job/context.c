#define _POSIX_C_SOURCE 200809L /* for pthread_rwlock_t */
#include "job/context.h"

#include "base/os.h"
#include "hvd.h"
#include "job/stacks.h"

#include <pthread.h>
#include <stdlib.h>

struct context {
    struct job job; /* first field, because context_release casts its address */
    bool forked;    /* true in a forked child, which has a copy of the memory, but no threads */
    int holds;      /* number of callers that hold the job (context_hold); guarded by `lock` */
};

static struct {
    pthread_rwlock_t lock;   /* guards `current` */
    struct context *current; /* the only pointer to the process's context */
    struct context *opening; /* during hvd_init the later `current`, else NULL */
    uint64_t jobs;           /* number of jobs opened so far; guarded by `lock` */
    atomic_int writers;      /* number of threads that wait for the write lock */
    struct mutex failing;    /* guards the next two fields */
    bool watches_forks;      /* true: forked children call mark_child */
    struct failures failures;
    struct stacks stacks;
    int exit_code; /* the exit code of a forked child */
} process = {.lock = PTHREAD_RWLOCK_INITIALIZER, .failing = MUTEX_WITHOUT_WAITS};

/* Waits until no writer waits for the lock. Otherwise a sequence of new readers, such as this
 * thread, could keep a writer waiting for ever. The wait has a limit, because this thread may hold
 * the read lock already: a watcher (hvd_watch) runs while the lock is held. */
static void let_writers_go_first(void) {
    /* longer than HVD_WAIT_MS, after which a waiting caller leaves the context */
    static const double PATIENCE = 2.5e-3 * HVD_WAIT_MS, NAP = 50e-6;
    double until = clock_now() + PATIENCE;
    while (atomic_load(&process.writers) && clock_now() < until) clock_nap(NAP);
}

static void write_lock(void) {
    atomic_fetch_add(&process.writers, 1);
    pthread_rwlock_wrlock(&process.lock);
    atomic_fetch_sub(&process.writers, 1);
}

static int check_usable(hvd_error *err) {
    if (process.current && !process.current->forked) return HVD_OK;
    return error_set(
        err, HVD_NOT_INITIALIZED,
        process.current
            ? "this process was forked after hvdlite.init(): a child can't take part in the "
              "job; leave this call to the process that the launcher has started"
            : "hvdlite has not been initialized; use hvdlite.init()");
}

int context_enter(hvd_error *err) {
    if (atomic_load_explicit(&process.writers, memory_order_relaxed)) let_writers_go_first();
    pthread_rwlock_rdlock(&process.lock);
    int code = check_usable(err);
    if (code) pthread_rwlock_unlock(&process.lock);
    return code;
}

void context_leave(void) { pthread_rwlock_unlock(&process.lock); }

int hvd_where(hvd_topology *out, hvd_error *err) {
    pthread_rwlock_rdlock(&process.lock);
    int code = process.current && process.current->forked ? HVD_OK : check_usable(err);
    if (!code) *out = process.current->job.world->at;
    pthread_rwlock_unlock(&process.lock);
    return code;
}

int context_enter_group(int id, const char *name, struct group **out, hvd_error *err) {
    HVD_TRY(context_enter(err));
    *out = job_group(&process.current->job, id);
    if (*out) return HVD_OK;
    context_leave();
    return error_set(err, HVD_INVALID,
                     "tensor '%s': there is no process set %d: it was removed, or never added",
                     name, id);
}

struct job *context_job(void) { return &process.current->job; }

struct group *context_world(void) { return process.current->job.groups[0]; }

uint64_t context_job_number(void) { return process.jobs; }

int context_why_failed(hvd_error *err) {
    for (int id = 0; id < process.current->job.ngroups; id++) {
        struct group *g = job_group(&process.current->job, id);
        if (g && engine_failed(g->engine, err)) return err->code;
    }
    return HVD_OK;
}

/* Marks the context in a forked child, because reading a flag in every call is faster than calling
 * getpid. Makes new locks, because threads that held locks at the fork do not exist in the
 * child. */
static void mark_child(void) {
    process.lock = (pthread_rwlock_t)PTHREAD_RWLOCK_INITIALIZER;
    process.failing = (struct mutex)MUTEX_WITHOUT_WAITS;
    atomic_store(&process.writers, 0);
    struct context *c = process.current ? process.current : process.opening;
    process.opening = NULL;
    if (!c || c->forked) return; /* forked: a child of a child */
    c->forked = true;
    struct group *all = job_group(&c->job, 0);
    struct transport *world = all ? all->transport : NULL; /* NULL: not opened yet */
    if (world && world->ops->forked) world->ops->forked(world);
    if (c->job.config.timeline) timeline_forked(&c->job.timeline);
}

/* Registers mark_child once, because the C library keeps every registration. */
static int watch_forks(hvd_error *err) {
    mutex_lock(&process.failing);
    int code = process.watches_forks ? HVD_OK : fork_watch(mark_child, err);
    process.watches_forks = !code;
    mutex_unlock(&process.failing);
    return code;
}

static void context_free(struct context *c) {
    job_close(&c->job);
    free(c);
}

/* Runs on an engine's thread. This thread may wait for the lock, because no thread that has the
 * write lock waits for an engine. */
static void give_up(const hvd_error *cause) {
    if (context_enter(NULL)) return;
    for (int id = 0; id < process.current->job.ngroups; id++) {
        struct group *g = job_group(&process.current->job, id);
        if (g) transport_give_up(g->transport, cause);
    }
    context_leave();
}

int hvd_init(const hvd_transport *transport, hvd_error *err) {
    write_lock();
    int code =
        process.current ? error_set(err, HVD_INVALID, "hvdlite is initialized already") : HVD_OK;
    struct context *c = code ? NULL : calloc(1, sizeof *c);
    if (!code && !c) code = error_set(err, HVD_NO_MEMORY, "no memory for the context");
    if (!code) code = watch_forks(err);
    if (!code) c->job.config.give_up = give_up;
    process.opening = c;
    if (!code) code = job_open(&c->job, transport, err);
    process.opening = NULL;
    if (!code) {
        process.current = c;
        process.jobs++;
    } else if (c) {
        context_free(c);
    }
    pthread_rwlock_unlock(&process.lock);
    return code;
}

void hvd_close(void) {
    if (context_enter(NULL)) return;
    context_leave();
    write_lock();
    struct context *c = process.current;
    process.current = NULL;
    bool last = c && !c->holds;
    pthread_rwlock_unlock(&process.lock);
    if (last) context_free(c);
}

int context_hold(struct job **out, hvd_error *err) {
    write_lock();
    int code = check_usable(err);
    if (!code) {
        process.current->holds++;
        *out = &process.current->job;
    }
    pthread_rwlock_unlock(&process.lock);
    return code;
}

void context_release(struct job *held) {
    struct context *c = (struct context *)held;
    write_lock();
    bool last = --c->holds == 0 && c != process.current;
    pthread_rwlock_unlock(&process.lock);
    if (last) context_free(c);
}

int context_add_group(struct job *held, struct group *g, int *id, hvd_error *err) {
    write_lock();
    int code = (struct context *)held == process.current
                   ? job_add(held, g, id, err)
                   : error_set(err, HVD_NOT_INITIALIZED, "the job ended during this call");
    if (!code && atomic_load(&held->left))
        engine_leave(g->engine, "this group of ranks was added afterwards");
    pthread_rwlock_unlock(&process.lock);
    return code;
}

struct group *context_take_group(int id) {
    if (context_enter(NULL)) return NULL;
    context_leave();
    write_lock();
    struct group *g = process.current ? job_take(&process.current->job, id) : NULL;
    pthread_rwlock_unlock(&process.lock);
    return g;
}

/* Uses the lock `failing`, because a thread, even this thread, can hold `lock` for HVD_WAIT_MS. */
struct failures *context_lock_failures(void) {
    watch_forks(&(hvd_error){0}); /* needed if this process has not opened a job yet */
    mutex_lock(&process.failing);
    return &process.failures;
}

void context_unlock_failures(void) { mutex_unlock(&process.failing); }

struct stacks *context_stacks(void) { return &process.stacks; }

int *context_exit_code(void) { return &process.exit_code; }

/* Implements base/os.h for SimGrid's actors. */
#define _GNU_SOURCE /* memfd_create */
#include "base/os.h"

#include "sim.h"

#include <simgrid/actor.h>
#include <simgrid/engine.h>
#include <simgrid/exec.h>
#include <simgrid/host.h>
#include <simgrid/semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static aid_t dead; /* number of the actor that died; 0: none has died */

static bool is_dead(sg_actor_t actor) {
    return dead && (sg_actor_get_pid(actor) == dead || sg_actor_get_ppid(actor) == dead);
}

/* Makes a rank's actors daemons, because the simulation does not wait for daemons. */
void sim_end(void *program_actor) {
    dead = sg_actor_get_pid(program_actor);
    sg_actor_t *all = sg_actor_list();
    for (size_t i = 0, n = sg_actor_count(); i < n; i++)
        if (is_dead(all[i])) sg_actor_daemonize(all[i]);
    free(all);
}

/* Stops this actor forever if its rank has died. Each wait ends with this call, because SimGrid
 * can't kill a waiting actor. */
static void live(void) {
    while (is_dead(sg_actor_self())) sg_actor_sleep_for(1e9);
}

static void pass(double seconds) {
    sg_actor_sleep_for(seconds);
    live();
}

double clock_now(void) { return simgrid_get_clock() + 1; } /* never 0, which means "not yet" */
void clock_nap(double seconds) { pass(seconds); }
void clock_yield(void) { pass(10e-6); }
void clock_relax(void) {}

void sim_work(double seconds) {
    if (seconds <= 0) return;
    sg_host_t machine = sg_host_by_name("machine");
    if (!machine) {
        pass(seconds);
        return;
    }
    sg_exec_t work = sg_actor_exec_init(seconds * sg_host_get_speed(machine));
    sg_exec_set_host(work, machine);
    sg_exec_start(work);
    sg_exec_wait(work);
    live();
}

struct room {
    sg_sem_t door; /* NULL until an actor has waited */
    int waiting;
};

struct simulated {
    struct room lock, changed;
    bool locked;
};
_Static_assert(sizeof(struct simulated) <= sizeof(struct mutex), "it lies in a mutex");

static struct simulated *of(struct mutex *m) { return (struct simulated *)(void *)m; }

/* Adds this actor (SimGrid's thread) to the waiting actors, so let_in() can wake it. */
static void come(struct room *r) {
    if (!r->door) r->door = sg_sem_init(0);
    r->waiting++;
}

/* Sleeps for these seconds, at least for the shortest time by which SimGrid's clock can move. */
static void stay(struct room *r, double seconds) {
    static const double SHORTEST = 1e-6;
    if (seconds < SHORTEST) seconds = SHORTEST;
    if (sg_sem_acquire_timeout(r->door, seconds) && r->waiting) r->waiting--;
    live();
}

static void let_in(struct room *r, int most) {
    while (r->waiting > 0 && most-- > 0) {
        r->waiting--; /* before the release, because the released actor runs immediately */
        sg_sem_release(r->door);
    }
}

void mutex_init(struct mutex *m) { *of(m) = (struct simulated){0}; }

void mutex_destroy(struct mutex *m) {
    if (of(m)->lock.door) sg_sem_destroy(of(m)->lock.door);
    if (of(m)->changed.door) sg_sem_destroy(of(m)->changed.door);
}

bool mutex_try(struct mutex *m) {
    bool was_free = !of(m)->locked;
    of(m)->locked = true;
    return was_free;
}

void mutex_lock(struct mutex *m) {
    static const double LONG = 1e9;
    while (!mutex_try(m)) {
        come(&of(m)->lock);
        stay(&of(m)->lock, LONG);
    }
}

void mutex_unlock(struct mutex *m) {
    of(m)->locked = false;
    let_in(&of(m)->lock, 1);
}

void mutex_notify(struct mutex *m) { let_in(&of(m)->changed, of(m)->changed.waiting); }

void mutex_wait(struct mutex *m, double seconds) {
    come(&of(m)->changed);
    mutex_unlock(m);
    stay(&of(m)->changed, seconds);
    mutex_lock(m);
}

struct start {
    void *(*run)(void *);
    void *arg;
};

static void begin(int argc, char **argv) {
    (void)argc, (void)argv;
    struct start *s = sg_actor_self_get_data();
    s->run(s->arg);
    free(s);
}

int thread_start(pthread_t *thread, void *(*run)(void *), void *arg, const char *name,
                 hvd_error *err) {
    struct start *s = malloc(sizeof *s);
    if (!s) return error_set(err, HVD_NO_MEMORY, "no memory for the thread %s", name);
    *s = (struct start){run, arg};
    sg_actor_t actor = sg_actor_init(name, sg_actor_get_host(sg_actor_self()));
    sg_actor_set_data(actor, s);
    sg_actor_ref(actor); /* an actor may end before it is joined */
    memcpy(thread, &actor, sizeof actor);
    sg_actor_start(actor, begin, 0, NULL);
    return HVD_OK;
}

void thread_join(pthread_t thread) {
    sg_actor_t actor;
    memcpy(&actor, &thread, sizeof actor);
    sg_actor_join(actor, -1);
    sg_actor_unref(actor);
}

void thread_give_way(void) {} /* does nothing, because each simulated thread has a core */

int fork_watch(void (*in_child)(void), hvd_error *err) {
    (void)in_child, (void)err;
    return HVD_OK;
}

/* ---- memory ---- */

enum { FOLD = 4 << 20 };

void *sim_memory(size_t bytes) {
    static int file;
    if (!file) file = memfd_create("hvdlite-sim", MFD_CLOEXEC);
    size_t folds = bytes / FOLD + 1;
    char *all = mmap(NULL, folds * FOLD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool good = all != MAP_FAILED && file > 0 && !ftruncate(file, FOLD);
    for (size_t i = 0; i < folds && good; i++)
        good = mmap(all + i * FOLD, FOLD, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file,
                    0) != MAP_FAILED;
    if (good) return all;
    fprintf(stderr, "no memory for %zu bytes\n", bytes);
    exit(1);
}

/* Returns addresses that repeat the same few MB of memory. Only the first 256 KiB are real memory,
 * for values that a rank must read again. */
static void *large(size_t bytes) {
    enum { KEPT = 256 << 10 };
    void *all = sim_memory(bytes);
    void *kept =
        mmap(all, KEPT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    return kept == MAP_FAILED ? NULL : all;
}

int scratch_get(struct scratch *s, size_t bytes, void **out, hvd_error *err) {
    if (bytes > s->size) {
        bool folds = bytes >= FOLD / 4;
        void *data = folds ? large(bytes) : aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!data) return error_set(err, HVD_NO_MEMORY, "no memory for %zu bytes", bytes);
        scratch_free(s);
        *s = (struct scratch){data, bytes};
    }
    *out = s->data;
    return HVD_OK;
}

void scratch_free(struct scratch *s) {
    if (s->size < FOLD / 4)
        free(s->data);
    else
        munmap(s->data, (s->size / FOLD + 1) * FOLD);
    *s = (struct scratch){0};
}

#include "shm/helpers.h"

#include "base/floats.h"
#include "base/os.h"
#include "shm/shmem.h"
#include "shm/window.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* All numbers of this enum are chosen, not measured.
     *
     * helpers_measure copies LARGEST bytes, then half as many, and so on: SIZES sizes, down to 128
     * KiB. A larger LARGEST makes the start longer. Collectives below 128 KiB have no helpers,
     * because helpers need time to wake up; HVDLITE_THREADS_BYTES can set a lower limit. */
    LARGEST = 2 << 20,
    SIZES = 5,
    /* For each size: number of copies with helpers, and of copies without helpers. With more
     * copies, a delay of the fastest copy is less likely, but the start takes longer. */
    TIMES = 4,
    /* Number of checks whether helpers have done their parts, before the first yield. More checks
     * notice the end sooner, but keep the engine's core from a helper that has no core. */
    PATIENCE = 10000,
    /* The most calls in a row that do not wake helpers, after helpers were late. A larger number
     * saves useless wake-ups, but the engine finds out later that helpers are in time again. */
    MOST_UNCALLED = 64
};

/* Seconds, chosen between the duration of a yield on a free core (a microsecond) and a time slice
 * of the kernel (milliseconds): a longer yield has given the core to another thread. */
static const double LONG_YIELD = 10e-6;

/* One part of the work: the number of the last call in which it was taken, and was done. */
struct part {
    _Alignas(64) atomic_uint taken;
    atomic_uint done;
};

struct helper {
    pthread_t thread;
    struct helpers *all;
    int number; /* the part that this thread takes first */
};

struct helpers {
    /* number of this rank's threads, including the engine's; number of helpers started */
    int threads, started;
    bool tried; /* the first large collective has already tried to start the helpers */
    double spin;
    size_t least;           /* bytes of the smallest collective with helpers; 0: not measured */
    atomic_bool used, over; /* used: a thread uses the helpers; over: the helpers must end */
    helpers_work *work;
    const void *arg;
    /* after helpers were late, `in_vain` calls wake no helper; `uncalled`: calls left of these */
    int in_vain, uncalled;
    _Alignas(64) atomic_uint call; /* number of the last helpers_run; helpers sleep on this word */
    atomic_bool open;              /* a collective is running */
    atomic_int asleep;             /* number of helpers that sleep or are about to sleep */
    struct part parts[HELPERS_MOST];
    struct helper helpers[HELPERS_MOST];
};

/* Does a part unless another thread has taken it. `work` and `arg` still belong to call `now`,
 * because that call can't end before this part is done. */
static bool try_part(struct helpers *h, unsigned now, int part) {
    struct part *p = &h->parts[part];
    unsigned before = now - 1;
    if (atomic_load_explicit(&p->taken, memory_order_relaxed) != before) return false;
    if (!atomic_compare_exchange_strong(&p->taken, &before, now)) return false;
    h->work(h->arg, part, h->threads);
    atomic_store_explicit(&p->done, now, memory_order_release);
    return true;
}

/* Does all parts that no thread has taken, first this thread's own part, whose data is in its
 * cache. Returns the number of parts done. */
static int take_parts(struct helpers *h, unsigned now, int first) {
    int taken = 0;
    for (int i = 0; i < h->threads; i++) taken += try_part(h, now, (first + i) % h->threads);
    return taken;
}

/* Gives the core to any other thread that can run on it. Returns true if there was no such thread
 * and the helper has waited for less than h->spin; then it need not sleep yet. */
static bool core_is_free(const struct helpers *h, double *since) {
    if (h->spin <= 0 || !atomic_load_explicit(&h->open, memory_order_relaxed)) return false;
    double before = clock_now();
    if (*since <= 0) *since = before;
    clock_yield();
    double now = clock_now();
    return now - before < LONG_YIELD && now - *since < h->spin;
}

/* Waits for the next call and returns its number. The atomics are sequentially consistent, so
 * either the engine sees that this helper sleeps, or this helper sees the call. */
static unsigned next_call(struct helpers *h, unsigned seen) {
    double since = 0;
    for (;;) {
        unsigned now = atomic_load_explicit(&h->call, memory_order_acquire);
        if (now != seen) return now;
        if (core_is_free(h, &since)) continue;
        atomic_fetch_add(&h->asleep, 1);
        doorbell_sleep_while(&h->call, seen);
        atomic_fetch_sub(&h->asleep, 1);
    }
}

static void *run_helper(void *arg) {
    const struct helper *self = arg;
    struct helpers *h = self->all;
    if (h->spin <= 0) thread_give_way();
    /* a new thread inherits the floating-point mode of the thread that starts it */
    floats_exact();
    for (unsigned now = 0;;) {
        now = next_call(h, now);
        if (atomic_load(&h->over)) return NULL;
        take_parts(h, now, self->number);
    }
}

static unsigned begin_call(struct helpers *h, bool wake) {
    unsigned now = atomic_fetch_add(&h->call, 1) + 1;
    if (wake && atomic_load(&h->asleep)) doorbell_wake_all(&h->call);
    return now;
}

/* Waits for the parts that helpers have taken. A helper that has taken a part usually runs, but may
 * have lost its core; so after some checks the wait yields. */
static void await_parts(const struct helpers *h, unsigned now) {
    unsigned looks = 0;
    for (int i = 0; i < h->threads; i++)
        while (atomic_load_explicit(&h->parts[i].done, memory_order_acquire) != now)
            (h->spin > 0 && ++looks < PATIENCE ? clock_relax : clock_yield)();
}

/* Starts the helpers. If a helper can't start, the other threads do its parts. */
static void start_helpers(struct helpers *h) {
    hvd_error ignored;
    for (; h->started < h->threads - 1; h->started++) {
        struct helper *helper = &h->helpers[h->started];
        *helper = (struct helper){.all = h, .number = h->started + 1};
        if (thread_start(&helper->thread, run_helper, helper, "hvdlite-help", &ignored)) break;
    }
    h->tried = true;
}

struct helpers *helpers_new(int threads, double spin, size_t least) {
    if (threads < 2) return NULL;
    struct helpers *h = aligned_alloc(_Alignof(struct helpers), sizeof *h);
    if (!h) return NULL;
    memset(h, 0, sizeof *h);
    h->threads = threads < HELPERS_MOST ? threads : HELPERS_MOST;
    h->spin = spin;
    h->least = least;
    return h;
}

void helpers_free(struct helpers *h) {
    if (!h) return;
    atomic_store(&h->over, true);
    begin_call(h, true);
    for (int i = 0; i < h->started; i++) thread_join(h->helpers[i].thread);
    free(h);
}

int helpers_threads(const struct helpers *h) { return h ? h->threads : 1; }

unsigned helpers_calls(const struct helpers *h) { return h ? atomic_load(&h->call) : 0; }

void helpers_run(struct helpers *h, helpers_work *work, const void *arg) {
    h->work = work;
    h->arg = arg;
    unsigned now = begin_call(h, h->uncalled == 0);
    bool alone = take_parts(h, now, 0) == h->threads;
    await_parts(h, now);
    if (!alone)
        h->in_vain = h->uncalled = 0;
    else if (h->uncalled > 0)
        h->uncalled--;
    else
        h->uncalled = h->in_vain = h->in_vain < MOST_UNCALLED ? 2 * h->in_vain + 1 : MOST_UNCALLED;
}

/* ---- measuring ---- */

struct copy {
    char *to;
    const char *from;
    size_t bytes;
};

static void copy_part(const void *arg, int part, int parts) {
    const struct copy *c = arg;
    size_t begin = c->bytes / (size_t)parts * (size_t)part;
    size_t end = part + 1 < parts ? c->bytes / (size_t)parts * ((size_t)part + 1) : c->bytes;
    memcpy(c->to + begin, c->from + begin, end - begin);
}

/* Returns the seconds of a copy. A copy with helpers wakes the helpers, even if they were late for
 * earlier copies. Helpers spin until `open` is false, so some may still spin when the next copy,
 * without helpers, begins. */
static double time_copy(struct helpers *h, const struct copy *c, bool helped) {
    h->in_vain = h->uncalled = 0;
    double begin = clock_now();
    atomic_store(&h->open, helped);
    if (helped)
        helpers_run(h, copy_part, c);
    else
        copy_part(c, 0, 1);
    atomic_store(&h->open, false);
    return clock_now() - begin;
}

/* Other threads delay single copies, so for each size the fastest copy with helpers is compared
 * with the fastest copy without helpers. Copies of all sizes, with and without helpers, alternate,
 * so a longer delay affects all of them alike. */
void helpers_measure(struct helpers *h) {
    /* Helpers are used if they reduce the time of a copy to this part. Chosen: with a larger part,
     * a disturbed measurement accepts useless helpers; a smaller part rejects useful helpers. */
    static const double CLEARLY = 0.8;
    double fastest[2][SIZES];
    hvd_error ignored;
    void *memory;
    if (!h || h->least || shmem_map_private(&memory, 2 * LARGEST, &ignored)) return;
    start_helpers(h);
    for (int i = 0; i < 2 * SIZES * TIMES; i++) {
        int helped = i % 2, size = i / 2 % SIZES;
        struct copy c = {memory, (char *)memory + LARGEST, (size_t)LARGEST >> size};
        double seconds = time_copy(h, &c, helped), *best = &fastest[helped][size];
        if (i < 2 * SIZES || seconds < *best) *best = seconds;
    }
    h->least = SIZE_MAX;
    for (int i = 0; i < SIZES && fastest[1][i] < CLEARLY * fastest[0][i]; i++)
        h->least = (size_t)LARGEST >> i;
    h->in_vain = h->uncalled = 0;
    shmem_close(memory, 2 * LARGEST);
}

/* ---- collectives ---- */

int helpers_begin(struct helpers *h, size_t bytes) {
    if (!h || bytes < (h->least ? h->least : LARGEST) || atomic_exchange(&h->used, true)) return 1;
    if (!h->tried) start_helpers(h);
    atomic_store(&h->open, true);
    return h->threads;
}

void helpers_end(struct helpers *h, int parts) {
    if (parts == 1) return;
    atomic_store(&h->open, false);
    atomic_store(&h->used, false);
}

void helpers_do(struct helpers *h, size_t bytes, helpers_work *work, const void *arg) {
    int parts = helpers_begin(h, bytes);
    if (parts > 1)
        helpers_run(h, work, arg);
    else
        work(arg, 0, 1);
    helpers_end(h, parts);
}

#include "shm/helpers.h"

#include "base/clock.h"
#include "base/floats.h"
#include "base/sync.h"
#include "shm/doorbell.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAST = 512 << 10, /* bytes of a collective; less is done before the helpers have woken up */
    LOOKS = 16,        /* looks for one look at the clock */
    PATIENCE = 10000,  /* looks without yielding for a part that a helper has taken */
    MOST_UNCALLED = 64
};

/* A part of the work: the call in which it was last taken, and done. */
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
    int threads, started; /* started: helpers */
    bool tried;           /* to start them: at the first large collective */
    double spin;
    atomic_bool used, over; /* by an engine; the helpers end */
    helpers_work *work;
    const void *arg;
    int in_vain, uncalled; /* sleeping helpers are not woken for so many calls; calls left */
    _Alignas(64)
        atomic_uint call; /* number of the last helpers_run; the futex on which helpers sleep */
    atomic_bool open;     /* a collective runs */
    atomic_int asleep;    /* helpers that sleep, or are about to */
    struct part parts[HELPERS_MOST];
    struct helper helpers[HELPERS_MOST];
};

/* Work and arg are those of the call: it can't end before the part is done. */
static bool take(struct helpers *h, unsigned now, int part) {
    struct part *p = &h->parts[part];
    unsigned before = now - 1;
    if (atomic_load_explicit(&p->taken, memory_order_relaxed) != before) return false;
    if (!atomic_compare_exchange_strong(&p->taken, &before, now)) return false;
    h->work(h->arg, part, h->threads);
    atomic_store_explicit(&p->done, now, memory_order_release);
    return true;
}

/* Begins with this thread's own part, whose lines are in its cache. Returns the number taken. */
static int take_parts(struct helpers *h, unsigned now, int first) {
    int taken = 0;
    for (int i = 0; i < h->threads; i++) taken += take(h, now, (first + i) % h->threads);
    return taken;
}

static bool may_spin(const struct helpers *h, unsigned looks, double *since) {
    if (h->spin <= 0 || !atomic_load_explicit(&h->open, memory_order_relaxed)) return false;
    if (looks % LOOKS) return true;
    double now = clock_now();
    if (*since <= 0) *since = now;
    return now - *since < h->spin;
}

/* Returns the next call. Sequentially consistent: either the engine sees a sleeper, or the sleeper
 * sees the call. */
static unsigned next_call(struct helpers *h, unsigned seen) {
    double since = 0;
    for (unsigned looks = 1;; looks++) {
        unsigned now = atomic_load_explicit(&h->call, memory_order_acquire);
        if (now != seen) return now;
        if (may_spin(h, looks, &since)) {
            clock_relax();
            continue;
        }
        atomic_fetch_add(&h->asleep, 1);
        doorbell_sleep_while(&h->call, seen);
        atomic_fetch_sub(&h->asleep, 1);
    }
}

static void *help(void *arg) {
    const struct helper *self = arg;
    struct helpers *h = self->all;
    if (h->spin <= 0) thread_give_way();
    floats_exact(); /* the thread has the mode of the one that has started it */
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

/* A helper has taken each part that is not done, and works on it, unless it has lost its core. */
static void await_parts(const struct helpers *h, unsigned now) {
    unsigned looks = 0;
    for (int i = 0; i < h->threads; i++)
        while (atomic_load_explicit(&h->parts[i].done, memory_order_acquire) != now)
            (h->spin > 0 && ++looks < PATIENCE ? clock_relax : clock_yield)();
}

/* Helpers that can't start do not matter: others take their parts. */
static void start(struct helpers *h) {
    hvd_error ignored;
    for (; h->started < h->threads - 1; h->started++) {
        struct helper *helper = &h->helpers[h->started];
        *helper = (struct helper){.all = h, .number = h->started + 1};
        if (thread_start(&helper->thread, help, helper, "hvdlite-help", &ignored)) break;
    }
    h->tried = true;
}

struct helpers *helpers_new(int threads, double spin) {
    if (threads < 2) return NULL;
    struct helpers *h = aligned_alloc(_Alignof(struct helpers), sizeof *h);
    if (!h) return NULL;
    memset(h, 0, sizeof *h);
    h->threads = threads < HELPERS_MOST ? threads : HELPERS_MOST;
    h->spin = spin;
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

int helpers_begin(struct helpers *h, size_t bytes) {
    if (!h || bytes < LEAST || atomic_exchange(&h->used, true)) return 1;
    if (!h->tried) start(h);
    atomic_store(&h->open, true);
    return h->threads;
}

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

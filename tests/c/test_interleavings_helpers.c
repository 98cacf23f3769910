/* Helper threads in every order: each part of the work is done once, before the engine continues;
 * no call of the engine is lost; all helpers end. The first measurement uses simulated time. */
#define _GNU_SOURCE
#include "interleave.h"

#include "base/floats.h"
#include "base/os.h"
#include "shm/helpers.h"

#include <stdlib.h>

#include "interleave_core.h"

/* Number of helpers started; number of helpers that can start. Helper i is task i. */
static int started, can_start;

static int start_task(void) { return started < can_start ? (started++, HVD_OK) : HVD_NO_MEMORY; }

static bool others_ended(const void *arg) {
    for (int i = 1; i < search.n; i++)
        if (i <= started && !search.done[i]) return false;
    return true;
}

static double simulated_time; /* seconds */
static bool parts_are_done(const void *arg);
static bool is_called(const void *call);
static unsigned present_call(void);

/* Task 0, the engine, waits for all parts of the work; other tasks, helpers, wait for a call. */
static void let_others_go_on(void) {
    unsigned call = present_call();
    if (search.running == 0)
        wait_until(parts_are_done, NULL);
    else if (choose(2))
        simulated_time++;
    else
        wait_until(is_called, &call);
}

#define thread_start(thread, run, arg, name, err) ((void)(run), (void)(err), start_task())
#define thread_join(thread) wait_until(others_ended, NULL)
#define thread_give_way() ((void)0)
#define clock_relax let_others_go_on
#define clock_yield let_others_go_on
#define clock_now() (simulated_time)
static void copy_for_some_time(size_t bytes);
#undef memcpy
#define memcpy(to, from, bytes) ((void)(to), (void)(from), copy_for_some_time(bytes))
#include "shm/helpers.c"

enum { LEAST = 100 };

static struct {
    struct helpers *h;
    int done[HELPERS_MOST]; /* for each part: how often it was done */
    int work;               /* the current work: 0, 1, ... */
} of;

static unsigned present_call(void) { return __atomic_load_n(&of.h->call, __ATOMIC_SEQ_CST); }

static bool is_called(const void *call) {
    return present_call() != *(const unsigned *)call ||
           !__atomic_load_n(&of.h->open, __ATOMIC_SEQ_CST);
}

/* Returns whether helpers have finished the parts that they took. */
static bool parts_are_done(const void *arg) {
    for (int i = 0; i < of.h->threads; i++)
        if (__atomic_load_n(&of.h->parts[i].done, __ATOMIC_SEQ_CST) != present_call()) return false;
    return true;
}

static void count_part(const void *arg, int part, int parts) {
    turn();
    CHECK(parts == search.n && *(const int *)arg == of.work);
    of.done[part]++;
}

static void run_works(int works) {
    int parts = helpers_begin(of.h, LEAST);
    REQUIRE(parts == search.n);
    CHECK_INT(helpers_begin(of.h, LEAST), 1); /* a second engine gets no helpers meanwhile */
    for (int i = 0; i < works; i++) {
        int own = ++of.work;
        helpers_run(of.h, count_part, &own);
        for (int part = 0; part < parts; part++) CHECK_INT(of.done[part], of.work);
    }
    helpers_end(of.h, parts);
}

static bool is_started(const void *task) { return started >= *(const int *)task; }
static bool has_ended(const void *arg) { return !of.h; }

static void engine_or_helper(int task) {
    if (task == 0) {
        run_works(search.n < 4 ? 2 : 1);
        run_works(1);
        helpers_free(of.h);
        of.h = NULL;
    } else if (task <= can_start) {
        wait_until(is_started, &task);
        run_helper(&of.h->helpers[task - 1]);
    } else {
        wait_until(has_ended, NULL);
    }
}

static double spin; /* seconds; 0: helpers sleep at once */

static void open_helpers(void) {
    memset(&of, 0, sizeof of);
    memset(asleep, 0, sizeof asleep);
    started = 0;
    simulated_time = 1;
    of.h = helpers_new(search.n, spin, LEAST);
    REQUIRE(of.h != NULL);
}

static void close_helpers(void) { CHECK_INT(started, can_start); }

TEST(test_each_part_of_shared_work_runs_exactly_once) {
    /* for 2 to 5 threads: the most interruptions that take only seconds */
    static const int MOST[][4] = {{3, 2, 1, 0}, {2, 1, 1, 0}}; /* row 0: helpers sleep; 1: spin */
    for (int threads = 2; threads <= TASKS_MOST; threads++) {
        for (can_start = threads - 1; can_start >= 0; can_start--) {
            for (spin = 0; spin <= 1; spin++) {
                int most = MOST[spin > 0][threads - 2] - CHECK_SLOW;
                long n = interleave(threads, most, engine_or_helper, open_helpers, close_helpers);
                printf("%d threads, %d of them helpers%s: %ld orders\n", threads, can_start,
                       spin > 0 ? " that wait awake" : "", n);
            }
        }
    }
    CHECK(helpers_new(1, 0, LEAST) == NULL);
    CHECK_INT(helpers_begin(NULL, LEAST), 1);
    CHECK_INT(helpers_threads(NULL), 1);
}

/* ---- the measurement ---- */

/* How long copies take. The unit is the time in which one thread copies one byte. */
static struct copies {
    double each, begin; /* time with helpers: for each byte; additional for the first part */
    int delayed;        /* how many copies, or parts of copies, take much longer (DELAY) */
    bool only_helped;   /* true: only copies with helpers take longer */
    size_t least;       /* the size from which helpers are to be used; 0: none */
} of_copies;
static int copies;

static void copy_for_some_time(size_t bytes) {
    static const double DELAY = 1e9;
    bool helped = of.h->open, late = copies++ < of_copies.delayed;
    simulated_time += (double)bytes * (helped ? of_copies.each : 1);
    if (helped) simulated_time += of_copies.begin / of.h->threads;
    if (late && (helped || !of_copies.only_helped)) simulated_time += DELAY;
}

static void open_unmeasured(void) {
    memset(&of, 0, sizeof of);
    started = can_start = copies = 0;
    of.h = helpers_new(2, 0, 0);
    REQUIRE(of.h != NULL);
}

static void measure(int task) {
    helpers_measure(of.h);
    CHECK_INT(of.h->least, of_copies.least ? of_copies.least : SIZE_MAX);
    helpers_free(of.h);
}

static void nothing(void) {}

TEST(test_a_delay_while_measuring_does_not_switch_helpers_off) {
    enum { OF_A_ROUND = 3 * SIZES, MOST = OF_A_ROUND * (TIMES - 1), KB = 1 << 10 };
    of_copies = (struct copies){.each = 0.5, .least = 128 * KB};
    for (; of_copies.delayed <= MOST; of_copies.delayed++)
        for (int only = 0; only < 2; only++) {
            of_copies.only_helped = only;
            interleave(1, 0, measure, open_unmeasured, nothing);
        }
    of_copies = (struct copies){.each = 0.5, .begin = 200 * KB, .least = 1024 * KB};
    interleave(1, 0, measure, open_unmeasured, nothing);
    of_copies = (struct copies){.each = 0.9};
    interleave(1, 0, measure, open_unmeasured, nothing);
}

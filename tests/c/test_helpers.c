/* Helper threads: their parts cover all bytes, and only one engine at a time uses them. Other tests
 * check a rank's share of the cores. test_helpers_kinds.c checks results. */
#define _GNU_SOURCE
#include "check.h"

#include "coll_data.h"
#include "random.h"
#include "shm/helpers.h"
#include "shm/window.h"

#include <sched.h>

enum { LEAST = 512 << 10, LARGE = 1 << 20, MOST_THREADS = 4 };

/* ---- one process ---- */

struct sum {
    const unsigned char *data;
    size_t bytes;
    uint64_t of[HELPERS_MOST];
};

static void add_part(const void *arg, int part, int parts) {
    struct sum *sum = (struct sum *)arg;
    struct coll_range range = coll_part_of((struct coll_range){0, sum->bytes}, part, parts);
    for (size_t i = range.begin; i < range.end; i++) sum->of[part] += sum->data[i];
}

TEST(test_parts_cover_all_bytes_once) {
    static unsigned char data[LARGE];
    uint64_t right = 0;
    for (size_t i = 0; i < sizeof data; i++) right += data[i] = (unsigned char)mixed(i);
    for (int threads = 1; threads <= MOST_THREADS; threads++) {
        struct helpers *h = helpers_new(threads, threads % 2 ? 30e-6 : 0, LEAST);
        for (int again = 0; again < (CHECK_SLOW ? 10 : 100); again++) {
            struct sum sum = {.data = data, .bytes = sizeof data};
            uint64_t all = 0;
            helpers_do(h, sizeof data, add_part, &sum);
            for (int i = 0; i < HELPERS_MOST; i++) all += sum.of[i];
            CHECK_INT(all, right);
        }
        helpers_free(h);
    }
}

TEST(test_one_engine_at_a_time_has_helpers) {
    struct helpers *h = helpers_new(2, 0, LEAST);
    CHECK_INT(helpers_begin(h, 4096), 1); /* too small for helpers */
    CHECK_INT(helpers_begin(h, LARGE), 2);
    CHECK_INT(helpers_begin(h, LARGE), 1);
    helpers_end(h, 1);
    CHECK_INT(helpers_begin(h, LARGE), 1); /* another engine uses the helpers */
    helpers_end(h, 2);
    CHECK_INT(helpers_begin(h, LARGE), 2);
    helpers_end(h, 2);
    helpers_free(h);
    helpers_free(helpers_new(HELPERS_MOST, 0, LEAST)); /* no helper has started */
}

static bool uses_helpers(size_t bytes) {
    struct helpers *h = helpers_new(2, 0, 0);
    helpers_measure(h);
    CHECK_INT(helpers_begin(h, 4096), 1); /* too few bytes for helpers */
    int parts = helpers_begin(h, bytes);
    helpers_end(h, parts);
    helpers_free(h);
    return parts > 1;
}

/* Moves this thread, and the helpers that it starts, to one core. */
static void stay_on_one_core(void) {
    cpu_set_t all, one;
    REQUIRE(!sched_getaffinity(0, sizeof all, &all));
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && !CPU_COUNT(&one); cpu++)
        if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    REQUIRE(!sched_setaffinity(0, sizeof one, &one));
}

/* Two threads on one core copy no faster than one thread. By chance, or because two threads get a
 * larger share of a busy core, a measurement may find otherwise, but not each of TIMES. */
static void *use_one_core(void *arg) {
    enum { TIMES = 50 };
    int times = 0;
    stay_on_one_core();
    while (uses_helpers(SIZE_MAX / 2) && ++times < TIMES) continue;
    CHECK(times < TIMES);
    return arg;
}

TEST(test_helpers_that_do_not_make_copies_faster_are_not_used) {
    threads_run(1, use_one_core, NULL, 0);
}

/* Computes during a collective, on the core of a helper that has no work. */
static void *compute_beside_helper(void *arg) {
    static const double LONG = 0.1;
    unsigned char data[64] = {0};
    struct sum sum = {.data = data, .bytes = sizeof data};
    stay_on_one_core();
    struct helpers *h = helpers_new(2, 100 * LONG, LEAST);
    int parts = helpers_begin(h, LARGE);
    helpers_run(h, add_part, &sum);
    double own = cpu_seconds(CLOCK_THREAD_CPUTIME_ID), all = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID);
    while (cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - own < LONG) continue;
    CHECK_NEAR(cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - all, LONG, LONG / 4);
    helpers_end(h, parts);
    helpers_free(h);
    return arg;
}

TEST(test_a_helper_without_work_does_not_spin_beside_a_computing_thread) {
    threads_run(1, compute_beside_helper, NULL, 0);
}

/* Rank 0 runs an allreduce in which rank 1 never takes part. */
static void fail_alone(struct ranks *ranks, int rank, void *arg) {
    const struct comm *comm = rank_comm(ranks, rank);
    static float values[LARGE / sizeof(float)];
    char *data = (char *)values;
    struct coll_tensor tensor = {.in = data, .out = data, .bytes = sizeof values};
    struct coll_args args = allreduce_of(&tensor, 1, HVD_FLOAT32, HVD_SUM, NULL);
    if (rank == 1) return;
    comm->transport->patience.timeout = 1e-3;
    comm->transport->helpers = helpers_new(3, 30e-6, LEAST);
    CHECK_INT(coll_window_allreduce(comm, &args, ERR), HVD_TRANSPORT);
    /* the helpers are free for the next collective */
    CHECK_INT(helpers_begin(comm->transport->helpers, LARGE), 3);
    helpers_end(comm->transport->helpers, 3);
    helpers_free(comm->transport->helpers);
}

TEST(test_a_failed_collective_releases_its_helpers) { ranks_run_on_window(2, fail_alone, NULL); }

TEST(test_ranks_share_the_cores_that_several_may_use) {
    static struct window_rank ranks[3];
    struct window w;
    for (int r = 0; r < 3; r++) window_init(&w, ranks, 3, r);
    w.self = 0;
    CHECK_NEAR(cpus_share(&w), 0, 0); /* unknown, because no rank has published its cores yet */
    for (size_t i = 0; i < 8; i++) ranks[0].cpus.usable[i] = ranks[1].cpus.usable[i] = true;
    ranks[2].cpus.usable[8] = ranks[2].cpus.usable[9] = true;
    CHECK_NEAR(cpus_share(&w), 4, 1e-9);
    w.self = 2;
    CHECK_NEAR(cpus_share(&w), 2, 1e-9);
    ranks[1].cpus.usable[8] = true;
    CHECK_NEAR(cpus_share(&w), 1.5, 1e-9);
}

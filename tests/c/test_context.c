/* The lock that guards the process's only job. */
#include "check.h"

#include "base/os.h"
#include "hvd.h"
#include "job/context.h"
#include "transport/transports.h"

#include <sys/wait.h>

enum { READERS = 2, HOLDS = 40 };
static atomic_int reading, turns;
static atomic_bool ends;

/* Leaves the lock and enters again immediately. Without priority for writers, such a reader would
 * keep a writer out. */
static void *read_on(void *arg) {
    atomic_fetch_add(&reading, 1);
    while (!atomic_load(&ends)) {
        REQUIRE(context_enter(ERR) == HVD_OK);
        atomic_fetch_add(&turns, 1);
        for (double until = clock_now() + 50e-6; clock_now() < until;) clock_relax();
        context_leave();
    }
    return arg;
}

static void *write_or_read(void *arg) {
    if (*(int *)arg) return read_on(arg);
    while (atomic_load(&reading) < READERS) clock_nap(1e-3);
    struct job *job;
    /* Readers take the lock about 2 times during a wait of the writer; without priority for
     * writers, often thousands of times. They also take the lock often if the writer loses its core
     * just before it waits. */
    int overtaken = 0;
    for (int i = 0; i < HOLDS; i++) {
        int before = atomic_load(&turns);
        while (atomic_load(&turns) < before + READERS) clock_nap(1e-4); /* until the readers run */
        before = atomic_load(&turns);
        OK(context_hold(&job, ERR));
        overtaken += atomic_load(&turns) - before > 100;
        context_release(job);
    }
    CHECK_CASE(overtaken <= 2, "readers overtook the writer %d times", overtaken);
    atomic_store(&ends, true);
    return arg;
}

static int open_job_of_one_rank(void) {
    int lowest = 0, none = -1;
    hvd_sockets alone = {0, 1, &lowest, &none, &none};
    return hvd_init(&(hvd_transport){transport_tcp_open, &alone}, ERR);
}

static void start_job_of_one_rank(void) { OK(open_job_of_one_rank()); }

static int closed_in_child;
static void note_forked(struct transport *t) { closed_in_child += t != NULL; }

/* Opens a transport, as an opener that waits for other ranks, and forks meanwhile. */
static int open_and_fork(struct transport **out, const void *where, struct transport *job,
                         const int *job_ranks, const struct transport_config *config,
                         hvd_error *err) {
    static const struct transport_ops OPS = {.forked = note_forked};
    static struct transport opening = {.ops = &OPS};
    *out = &opening;
    pid_t child = fork();
    if (!child) _exit(closed_in_child == 1 ? 0 : 1);
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    CHECK_INT(status, 0);
    *out = NULL;
    return error_set(err, HVD_INVALID, "this opener always fails");
}

TEST(test_a_child_forked_during_hvd_init_closes_the_transports_files) {
    FAILS(hvd_init(&(hvd_transport){open_and_fork, NULL}, ERR), HVD_INVALID);
    CHECK_INT(closed_in_child, 0);
    start_job_of_one_rank();
    hvd_close();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static atomic_bool refuses;
void *__libc_realloc(void *, size_t);

/* Refuses the array of a job's groups, if the test asks for it. */
void *realloc(void *old, size_t bytes) {
    bool refused = atomic_load(&refuses) && bytes == sizeof(struct group *);
    return refused ? NULL : __libc_realloc(old, bytes);
}

TEST(test_a_start_without_memory_for_the_groups_returns_an_error) {
    atomic_store(&refuses, true);
    FAILS(open_job_of_one_rank(), HVD_NO_MEMORY);
    atomic_store(&refuses, false);
    CHECK_HAS(ERR->text, "no memory for another group of ranks");
    start_job_of_one_rank();
    hvd_close();
}
#endif

TEST(test_a_writer_that_waits_gets_the_lock_before_later_readers) {
    int numbers[READERS + 1] = {0, 1, 2};
    start_job_of_one_rank();
    threads_run(READERS + 1, write_or_read, numbers, sizeof *numbers);
    hvd_close();
}

/* Returns the exit status of a child that sets a limit, then lifts it or waits for ever. closes:
 * the limit is for a rank of a job, and the job ends meanwhile. */
static int end_of_child(double seconds, bool closes, bool lifts) {
    int status = 0;
    pid_t child = fork();
    if (!child) {
        if (closes) start_job_of_one_rank();
        hvd_limit *limit = hvd_limit_set(seconds, (int[]){0}, closes, 7, "");
        if (closes) hvd_close();
        if (lifts) hvd_limit_lift(limit);
        while (!lifts) pause();
        _exit(3);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(test_a_process_ends_at_its_time_limit) {
    CHECK_INT(end_of_child(0, false, false), 7);
    CHECK_INT(end_of_child(0.01, false, false), 7);
    CHECK_INT(end_of_child(3600, false, true), 3);
    CHECK_INT(end_of_child(0.01, true, false), 7);
    CHECK_INT(end_of_child(3600, true, true), 3);
}

static bool is_awaited(void) {
    OK(context_enter(ERR));
    bool awaited = transport_awaits(context_world()->transport, 0);
    context_leave();
    return awaited;
}

TEST(test_a_limit_does_not_change_the_waits_of_a_later_job) {
    start_job_of_one_rank();
    hvd_limit *first = hvd_limit_set(3600, (int[]){0}, 1, 7, "");
    CHECK(is_awaited());
    hvd_close();
    start_job_of_one_rank();
    hvd_limit_lift(first);
    hvd_limit *second = hvd_limit_set(3600, (int[]){0}, 1, 7, "");
    CHECK(is_awaited());
    hvd_limit_lift(second);
    CHECK(!is_awaited());
    hvd_close();
}

/* At the fork, the parent holds the lock of the kept failures, as any thread of a parent might. */
TEST(test_a_forked_child_records_failures_though_its_parent_held_the_lock) {
    hvd_error error = {.code = HVD_RANK_DEAD, .text = "rank 3 is dead"}, kept;
    int status = 1;
    context_lock_failures();
    pid_t child = fork();
    if (!child) {
        hvd_keep_failure(&error);
        uint32_t hash = (uint32_t)strtoul(strrchr(error.text, ' '), NULL, 16);
        _exit(hvd_kept_failure(hash, &kept) && kept.code == HVD_RANK_DEAD ? 0 : 1);
    }
    context_unlock_failures();
    waitpid(child, &status, 0);
    CHECK_INT(status, 0);
}

/* hvd_start must not return an error, because the other ranks of a job would wait for this
 * tensor. */
TEST(test_a_tensor_ends_with_an_error_if_its_splits_can_not_be_copied) {
    if (CHECK_SLOW) return; /* with a sanitizer, a refused malloc ends the program */
    int64_t rows = 1;
    float in = 1, out;
    hvd_tensor pairs = {.name = "pairs",
                        .kind = HVD_ALLTOALL,
                        .dtype = HVD_FLOAT32,
                        .ndim = 1,
                        .dims = &rows,
                        .in = &in,
                        .out = &out,
                        .out_rows = 1,
                        .splits = &rows,
                        .nsplits = SIZE_MAX / 16};
    start_job_of_one_rank();
    hvd_handle *h = hvd_start(&pairs, ERR);
    REQUIRE(h != NULL);
    while (!hvd_finish(h, 1, ERR)) continue;
    FAILS(ERR->code, HVD_NO_MEMORY);
    CHECK_HAS(ERR->text, "tensor 'pairs': no data from rank 0: no memory for its splits");
    hvd_drop(h);
    hvd_close();
}

TEST(test_only_an_even_alltoall_takes_lists_of_parts) {
    static const hvd_kind KINDS[] = {HVD_ALLTOALL, HVD_ALLTOALL, HVD_ALLREDUCE};
    int64_t rows = 1;
    start_job_of_one_rank();
    for (int i = 0; i < 3; i++) {
        hvd_tensor listed = {.name = "x", .kind = KINDS[i], .ndim = 1, .dims = &rows, .listed = 1};
        listed.open = i == 1;
        if (i)
            FAILS(hvd_validate(&listed, ERR), HVD_INVALID);
        else
            OK(hvd_validate(&listed, ERR));
    }
    hvd_close();
}

TEST(test_a_plan_fits_only_tensors_that_it_can_run) {
    enum { FIELDS = 12 };
    int64_t dims[] = {6, 2}, others[] = {6, 1};
    hvd_tensor t[FIELDS], sum = {.name = "x", .dtype = HVD_FLOAT32, .ndim = 2, .dims = dims};
    sum.prescale = sum.postscale = 1, sum.out_rows = 6;
    for (int i = 0; i < FIELDS; i++) t[i] = sum;
    t[0].kind = HVD_BROADCAST, t[1].dtype = HVD_INT32, t[2].op = HVD_MAX, t[3].root = 1;
    t[4].group = 1, t[5].prescale = 2, t[6].postscale = 2, t[7].ndim = 1, t[8].dims = others;
    t[9].out_rows = 5, t[10].open = 1, t[11].call = "reduce, root 1";
    start_job_of_one_rank();
    hvd_handle *plan = hvd_plan(&sum, ERR);
    CHECK(hvd_plan_fits(plan, &sum));
    for (int i = 0; i < FIELDS; i++) CHECK_CASE(!hvd_plan_fits(plan, &t[i]), "tensor %d", i);
    hvd_drop(plan);
    hvd_close();
}

/* The flight recorder: readers always see complete operations, and the last operations are kept. */
#include "requests.h"

#include "base/os.h"
#include "shm/flight.h"
#include "shm/shmem.h"

#include <fcntl.h>

enum { WRITERS = 3, ROUNDS = 20000 };

static struct flight *opened(void) {
    struct flight *f = NULL;
    REQUIRE(flight_open(&f, ERR) == HVD_OK);
    return f;
}

#define FLIGHT_TEST(name) TEST_ON(name, struct flight, f, f = opened(), flight_close(f))

FLIGHT_TEST(test_each_phase_of_a_tensor_is_recorded) {
    struct flight_op op;
    struct request r = request_of("allreduce.x", 6);
    uint64_t number = flight_add(f, &r, 2.5, 0, 0);
    CHECK_INT(number, 1);
    CHECK(flight_read(f->memory, 0, &op));
    CHECK_INT(op.phase, FLIGHT_WAITS);
    CHECK_INT(op.bytes, 24);
    CHECK_TEXT(op.name, "allreduce.x");
    flight_agreed(f, number, 7, 100000, 3.5);
    flight_started(f, number, 4.5);
    CHECK(flight_read(f->memory, 0, &op));
    CHECK_INT(op.phase, FLIGHT_MOVES);
    CHECK_INT(op.batch, 7);
    CHECK_INT(op.fused, 65535);
    flight_ended(f, number, false, 5.5);
    CHECK(flight_read(f->memory, 0, &op));
    CHECK_INT(op.phase, FLIGHT_DONE);
    CHECK(op.submitted == 2.5 && op.agreed == 3.5 && op.started == 4.5 && op.ended == 5.5);
}

FLIGHT_TEST(test_of_a_long_name_the_recorder_keeps_the_end) {
    struct flight_op op;
    char name[HVD_MAX_NAME];
    memset(name, 'a', sizeof name - 1);
    memcpy(name + sizeof name - 5, "tail", 5);
    struct request r = request_of(name, 1);
    flight_add(f, &r, 1, 0, 0);
    CHECK(flight_read(f->memory, 0, &op));
    CHECK_INT(strlen(op.name), FLIGHT_NAME - 1);
    CHECK_TEXT(op.name + FLIGHT_NAME - 5, "tail");
}

FLIGHT_TEST(test_work_of_one_rank_is_recorded) {
    struct flight_op op;
    flight_note(f, "update", 1.5, 2.5);
    CHECK(flight_read(f->memory, 0, &op));
    CHECK_INT(op.kind, FLIGHT_ALONE);
    CHECK_INT(op.phase, FLIGHT_DONE);
    CHECK_INT(op.batch, 0);
    CHECK(op.submitted == 1.5 && op.started == 1.5 && op.ended == 2.5);
    CHECK_TEXT(op.name, "update");
}

/* Later phases of an overwritten operation do not change the new operation. */
FLIGHT_TEST(test_a_new_operation_overwrites_the_oldest) {
    struct flight_op op;
    struct request r = request_of("x", 1);
    for (int i = 0; i < FLIGHT_OPS + 1; i++) flight_add(f, &r, i, 3, 0);
    flight_ended(f, 1, true, 9);
    CHECK(flight_read(f->memory, 0, &op));
    CHECK_INT(op.number, FLIGHT_OPS + 1);
    CHECK_INT(op.phase, FLIGHT_WAITS);
    CHECK_INT(op.group, 3);
    CHECK(flight_read(f->memory, 1, &op));
    CHECK_INT(op.number, 2);
}

FLIGHT_TEST(test_a_repeated_tensor_counts_the_steps) {
    struct request r = request_of("x", 1);
    for (int step = 0; step < 5; step++)
        for (uint64_t hash = 1; hash < 4; hash++) flight_add(f, &r, 1, 0, step ? hash : 0);
    CHECK_INT(f->memory->steps, 3); /* counting begins at the first repetition */
    /* another model, with other tensors */
    for (int step = 0; step < 200; step++) flight_add(f, &r, 1, 0, 77);
    uint64_t steps = f->memory->steps;
    CHECK(steps > 180 && steps <= 203);
    /* a metric that is submitted only in some steps does not become the tensor that marks steps */
    for (int step = 0; step < 10; step++)
        for (uint64_t hash = 76; hash < (step % 3 ? 78 : 79); hash++) flight_add(f, &r, 1, 0, hash);
    CHECK_INT(f->memory->steps, steps + 10);
}

TEST(test_a_recorder_can_be_read_at_another_address) {
    struct flight *f = opened();
    char address[SHMEM_ADDRESS];
    void *memory;
    flight_set_rank(f, 2, 4, 1);
    flight_describe(f, "ab12", "tcp", 23);
    shmem_address(f->file, address);
    if (!OK(shmem_map(&memory, sizeof(struct flight_memory), true, address, ERR))) return;
    const struct flight_memory *m = memory;
    CHECK_INT(m->rank, 2);
    CHECK_TEXT(m->job, "ab12");
    CHECK_TEXT(m->transport, "tcp");
    CHECK(strncmp(m->layout, "hvdlite flight 1;", 17) == 0);
    CHECK(strstr(m->layout, ";op.name S@"));
    CHECK(strstr(m->layout, ";phase.0 none;phase.1 waits;phase.2 agreed;phase.3 moves;phase.4 done;"
                            "phase.5 failed;kind.0 allreduce;"));
    CHECK(strstr(m->layout, ";kind.5 join;kind.32 send;kind.33 recv;kind.6 alone;"));
    CHECK_INT(m->layout[strlen(m->layout) - 1], ';'); /* the text is complete */
    shmem_release(memory, sizeof *m, -1);
    flight_close(f);
}

FLIGHT_TEST(test_a_stall_or_failure_is_written_to_the_pipe_of_the_agent) {
    int ends[2];
    char heard[20] = "";
    REQUIRE(pipe(ends) == 0);
    flight_trouble(f, "nobody listens", false);
    flight_set_bell(f, ends[1], "!12\n");
    flight_trouble(f, "tensor 'x' has waited", true);
    CHECK_INT(read(ends[0], heard, sizeof heard - 1), 4);
    CHECK_TEXT(heard, "!12\n");
    CHECK_TEXT(f->memory->trouble, "tensor 'x' has waited");
    CHECK_INT(f->memory->failed, 1);
    CHECK_INT(f->memory->troubles, 2);
    hvd_error why;
    error_set(&why, HVD_STALLED, "late");
    flight_blame(f, &why); /* the error blames no rank */
    error_blame(&why, f->memory->rank);
    flight_blame(f, &why); /* the error blames only this rank */
    why.blamed[0] = 7;
    error_blame(&why, 9);
    flight_blame(f, &why);
    memset(heard, 0, sizeof heard);
    CHECK_INT(read(ends[0], heard, sizeof heard - 1), 9);
    CHECK_TEXT(heard, "?1 2 7 9\n");
    why.code = HVD_RANK_DEAD;
    flight_blame(f, &why);
    why.code = HVD_RANK_LEFT;
    flight_blame(f, &why);
    CHECK_INT(read(ends[0], heard, sizeof heard - 1), 18);
    CHECK_TEXT(heard, "?2 2 7 9\n?0 2 7 9\n");
    flight_set_bell(f, -1, "");
    close(ends[0]);
    close(ends[1]);
}

FLIGHT_TEST(test_a_stall_is_written_to_the_pipe_of_the_agent_after_the_pipe_was_full) {
    int ends[2];
    char heard[4096];
    REQUIRE(pipe(ends) == 0);
    for (int i = 0; i < 2; i++) fcntl(ends[i], F_SETFL, O_NONBLOCK);
    while (write(ends[1], "!", 1) == 1) continue;
    flight_set_bell(f, ends[1], "!12\n");
    flight_trouble(f, "nobody has read the last reports", false);
    while (read(ends[0], heard, sizeof heard) > 0) continue;
    flight_trouble(f, "tensor 'x' has waited", false);
    CHECK_INT(read(ends[0], heard, sizeof heard), 4);
    close(ends[0]);
    close(ends[1]);
}

TEST(test_calls_of_the_flight_recorder_do_nothing_without_a_recorder) {
    struct request r = request_of("x", 1);
    flight_note(NULL, "update", 1, 2);
    CHECK_INT(flight_add(NULL, &r, 1, 0, 0), 0);
    flight_started(NULL, 1, 1);
    flight_trouble(NULL, "x", true);
    flight_close(NULL);
}

/* ---- torn reads ---- */

struct writer {
    struct flight *f;
    atomic_int *running;
};

/* The field `bytes` of an operation determines its other fields, so a reader can check them. */
static void *write_many(void *arg) {
    struct writer *w = arg;
    for (int i = 1; i <= ROUNDS; i++) {
        char name[HVD_MAX_NAME];
        snprintf(name, sizeof name, "%d.%d.%d", 4 * i, 4 * i, 4 * i);
        struct request r = request_of(name, i);
        uint64_t number = flight_add(w->f, &r, 4 * i, i % 1000, 0);
        flight_agreed(w->f, number, 4 * (uint64_t)i, 1, 4 * i);
        flight_started(w->f, number, 4 * i);
        flight_ended(w->f, number, false, 4 * i);
    }
    atomic_fetch_sub(w->running, 1);
    return NULL;
}

static bool is_whole(const struct flight_op *op) {
    char name[HVD_MAX_NAME];
    double bytes = (double)op->bytes;
    snprintf(name, sizeof name, "%d.%d.%d", (int)bytes, (int)bytes, (int)bytes);
    return strcmp(op->name, name) == 0 && op->submitted == bytes &&
           op->group == (int)op->bytes / 4 % 1000 &&
           (op->phase < FLIGHT_AGREED || (op->agreed == bytes && op->batch == op->bytes)) &&
           (op->phase < FLIGHT_DONE || op->ended == bytes);
}

FLIGHT_TEST(test_a_reader_never_sees_half_an_operation) {
    atomic_int running = WRITERS;
    struct writer writer = {f, &running};
    pthread_t threads[WRITERS];
    size_t whole = 0, torn = 0;
    threads_start(threads, WRITERS, write_many, &writer, 0);
    do {
        for (size_t place = 0; place < FLIGHT_OPS; place++) {
            struct flight_op op;
            if (!flight_read(f->memory, place, &op) || op.phase == FLIGHT_NONE) continue;
            *(is_whole(&op) ? &whole : &torn) += 1;
        }
    } while (atomic_load(&running));
    threads_join(threads, WRITERS);
    CHECK_INT(torn, 0);
    CHECK(whole > 0);
    CHECK_INT(f->memory->ops, WRITERS * ROUNDS);
}

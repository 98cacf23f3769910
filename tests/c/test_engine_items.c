/* Invalid items, as from a coordinator of another version or with damaged memory. If an engine
 * receives such an item, the job of its rank must end with an error that describes the item. */
#include "engine_case.h"

#include "negotiation/wire.h"

/* The items that rank 0 sends to rank 1. Rank 0 has no engine; on rank 1 three tensors wait. */
struct words {
    const char *what;
    struct wire_item items[4];
    int n;
};

static const int64_t OURS[] = {1}, NO_ROWS[] = {-5, 7}, TOO_MANY[] = {INT64_MAX, INT64_MAX};

#define NAMED(TYPE, NAME, ...) {.type = TYPE, .request.name = NAME, __VA_ARGS__}
#define ZEROS(...)                                                                                 \
    {                                                                                              \
        .type = WIRE_TENSOR, .whole = true, .nrows = 1, .rows = OURS, .request = {__VA_ARGS__}     \
    }
#define RUN_ITEM {.type = WIRE_RUN}
#define WHY .error = {.code = HVD_MISMATCH, .text = "no"}

static const struct words WORDS[] = {
    {"a batch of no tensors", {RUN_ITEM}, 1},
    {"a tensor twice in a batch", {NAMED(WIRE_TENSOR, "a"), NAMED(WIRE_TENSOR, "a"), RUN_ITEM}, 3},
    {"a tensor that has failed",
     {NAMED(WIRE_FAIL, "a", .nrows = 1, .rows = OURS, WHY), NAMED(WIRE_TENSOR, "a"), RUN_ITEM},
     3},
    {"the failure of a tensor in a batch",
     {NAMED(WIRE_TENSOR, "a"), NAMED(WIRE_FAIL, "a", .nrows = 1, .rows = OURS, WHY), RUN_ITEM},
     3},
    {"a tensor that nobody submitted", {NAMED(WIRE_TENSOR, "c"), RUN_ITEM}, 2},
    {"an id that nobody knows", {{.type = WIRE_TENSOR, .id = 77}, RUN_ITEM}, 2},
    {"no name and no id", {{.type = WIRE_TENSOR}, RUN_ITEM}, 2},
    {"shared memory where there is none", {NAMED(WIRE_TENSOR, "a", .direct = true), RUN_ITEM}, 2},
    {"an allgather without rows", {NAMED(WIRE_TENSOR, "gathered"), RUN_ITEM}, 2},
    {"an allgather with the rows of one rank",
     {NAMED(WIRE_TENSOR, "gathered", .nrows = 1, .rows = OURS), RUN_ITEM},
     2},
    {"an allgather of a negative number of rows",
     {NAMED(WIRE_TENSOR, "gathered", .nrows = 2, .rows = NO_ROWS), RUN_ITEM},
     2},
    {"an allgather of too many rows",
     {NAMED(WIRE_TENSOR, "gathered", .nrows = 2, .rows = TOO_MANY), RUN_ITEM},
     2},
    {"rows of an allreduce", {NAMED(WIRE_TENSOR, "a", .nrows = 1, .rows = OURS), RUN_ITEM}, 2},
    {"what can't be fused", {NAMED(WIRE_TENSOR, "a"), NAMED(WIRE_TENSOR, "int"), RUN_ITEM}, 3},
    {"every rank has joined",
     {NAMED(WIRE_TENSOR, "a", .whole = true, .nrows = 2, .rows = TOO_MANY), RUN_ITEM},
     2},
    {"zeros for an allgather",
     {ZEROS(.kind = HVD_ALLGATHER, .dtype = HVD_FLOAT32, .ndim = 1, .name = "zeros")},
     1},
    {"zeros of a negative size",
     {ZEROS(.dtype = HVD_FLOAT32, .ndim = 1, .dims = {-3}, .name = "zeros")},
     1},
    {"zeros of an unknown dtype", {ZEROS(.dtype = 99, .ndim = 1, .dims = {3}, .name = "zeros")}, 1},
    {"a piece that is not the first",
     {NAMED(WIRE_TENSOR, "a", .cut = true, .begin = 4, .end = 8), RUN_ITEM},
     2},
    {"a piece twice",
     {NAMED(WIRE_TENSOR, "a", .cut = true, .end = 8),
      NAMED(WIRE_TENSOR, "a", .cut = true, .end = 8), RUN_ITEM},
     3},
    {"a piece twice, later",
     {NAMED(WIRE_TENSOR, "a", .cut = true, .end = 8),
      NAMED(WIRE_TENSOR, "a", .cut = true, .begin = 4, .end = 12), RUN_ITEM},
     3},
    {"a piece beyond the end", {NAMED(WIRE_TENSOR, "a", .cut = true, .end = 40), RUN_ITEM}, 2},
    {"half an element", {NAMED(WIRE_TENSOR, "a", .cut = true, .end = 6), RUN_ITEM}, 2},
    {"an empty piece", {NAMED(WIRE_TENSOR, "a", .cut = true), RUN_ITEM}, 2},
    {"a piece of an allgather",
     {NAMED(WIRE_TENSOR, "gathered", .cut = true, .end = 4, .nrows = 2, .rows = NO_ROWS), RUN_ITEM},
     2},
    {"a request, as from a rank", {NAMED(WIRE_REQUEST, "a")}, 1},
    {"an id that shall be sent again", {{.type = WIRE_RESEND, .rank = 1, .id = 5}}, 1},
    {"an error without a code", {NAMED(WIRE_FAIL, "a", .nrows = 1, .rows = OURS)}, 1},
};

enum { CASES = sizeof WORDS / sizeof *WORDS, SUBMITTED = 3 };

/* Rank 0 receives rank 1's submissions, then sends its items. */
static void talk(struct transport *t, const struct words *words) {
    OWN(wire_free) struct wire_writer message = {0};
    for (int heard = 0; heard < SUBMITTED; clock_nap(1e-4)) {
        struct message m;
        OWN(wire_reader_free) struct wire_reader reader = {0};
        struct wire_item item;
        OK(transport_receive(t, &m, ERR));
        if (!m.data) continue;
        bool more = true;
        OK(wire_open(&reader, m.data, m.size, ERR));
        while (wire_next(&reader, &item, &more, ERR) == HVD_OK && more) heard++;
        free(m.data);
    }
    for (int i = 0; i < words->n; i++) OK(wire_put(&message, &words->items[i], ERR));
    OK(transport_send(t, 1, message.data, message.size, ERR));
}

static void words_main(struct ranks *ranks, int rank, void *arg) {
    const struct words *words = arg;
    size_t parts[2] = {3, 4};
    struct engine_rank me;
    struct work works[SUBMITTED];
    hvd_error err = {0};
    if (rank == 0) {
        talk(rank_transport(ranks, 0), words);
        return;
    }
    engine_rank_start(&me, ranks, rank, &DEFAULT_CONFIG);
    struct coll_case gathered = plain_sum(5), ints = plain_sum(3);
    gathered.kind = HVD_ALLGATHER;
    gathered.parts = parts;
    ints.dtype = HVD_INT32;
    work_init(&works[0], &me, plain_sum(9), "a", false);
    work_init(&works[1], &me, gathered, "gathered", false);
    work_init(&works[2], &me, ints, "int", false);
    for (int i = 0; i < SUBMITTED; i++) OK(work_submit(&works[i], ERR));
    CHECK_CASE(engine_ended(me.engine, PATIENCE), "%s", words->what);
    CHECK_CASE(engine_failed(me.engine, &err) && err.code == HVD_TRANSPORT, "%s", words->what);
    CHECK_CASE(strstr(err.text, "rank 1 can't go on: ") == err.text, "%s: %s", words->what,
               err.text);
    engine_rank_wait(&me);
    for (int i = 0; i < SUBMITTED; i++) {
        CHECK_CASE(works[i].completions == 1 && works[i].error.code, "%s: '%s'", words->what,
                   works[i].tensor.request.name);
        work_free(&works[i]);
    }
    engine_rank_stop(&me);
}

TEST(test_items_that_make_no_sense_end_the_job_with_an_error) {
    for (int i = 0; i < CASES; i++) ranks_run(2, words_main, (void *)&WORDS[i]);
}

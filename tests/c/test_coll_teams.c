/* Allreduces in teams (consecutive ranks of a host that sum their data first) give the same bits
 * with any number of teams and threads. A rank may be late, or never come. */
#include "check.h"

#include "base/os.h"
#include "coll_case.h"
#include "random.h"
#include "ranks.h"
#include "shm/helpers.h"

enum { MOST_VALUES = CHECK_SLOW ? 100003 : 300007, AGAIN = CHECK_SLOW ? 2 : 3 };

struct teams_case {
    int team, threads, dtype, op;
    size_t values;
    int late; /* this rank sleeps before each call; -1: none */
};

/* Fills values whose sum depends on the order of additions. */
static void fill_random(const struct teams_case *c, char *data, int rank) {
    uint64_t random = (uint64_t)rank + 55;
    for (size_t i = 0; i < c->values; i++) {
        double value = random_unit(&random) * 100;
        if (c->dtype == HVD_FLOAT32) ((float *)(void *)data)[i] = (float)value;
        if (c->dtype == HVD_FLOAT64) ((double *)(void *)data)[i] = value;
        if (c->dtype == HVD_INT64) ((int64_t *)(void *)data)[i] = (int64_t)value - 50;
    }
}

/* Sums two tensors; the second tensor's result goes to other memory. */
static void sum(const struct comm *comm, const struct teams_case *c, coll_function *run,
                char *out) {
    size_t element = dtype_size(c->dtype), bytes = c->values * element,
           front = c->values / 7 * element;
    char *in = malloc(bytes);
    struct coll_tensor tensors[] = {{.in = out, .out = out, .bytes = front},
                                    {.in = in, .out = out + front, .bytes = bytes - front}};
    OWN(scratch_free) struct scratch scratch = {0};
    struct coll_args args = allreduce_of(tensors, 2, (hvd_dtype)c->dtype, (hvd_op)c->op, &scratch);
    args.final = (struct reduce_final){0.5, c->op == HVD_AVERAGE ? comm->size : 1};
    fill_random(c, out, comm->rank);
    memcpy(in, out + front, bytes - front);
    if (comm->rank == c->late) clock_nap(1e-3);
    CHECK(run == coll_window_allreduce || coll_choose(comm, &args)->run == run);
    OK(run(comm, &args, ERR));
    free(in);
}

static void compare(struct ranks *ranks, int rank, void *arg) {
    const struct teams_case *c = arg;
    const struct comm *comm = rank_comm(ranks, rank);
    size_t bytes = c->values * dtype_size(c->dtype);
    char *right = malloc(bytes), *data = malloc(bytes);
    comm->window->team = c->team;
    comm->transport->helpers = helpers_new(c->threads, 30e-6, 512 << 10);
    sum(comm, c, coll_window_allreduce, right);
    for (int i = 0; i < AGAIN; i++) {
        sum(comm, c, coll_window_teams, data);
        CHECK(!memcmp(data, right, bytes));
    }
    helpers_free(comm->transport->helpers);
    free(right);
    free(data);
}

TEST(test_teams_give_the_same_bits) {
    static const struct {
        int ranks, team;
    } OF[] = {{4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}, {9, 3}};
    static const size_t VALUES[] = {1, 700, 65536, MOST_VALUES};
    static const int DTYPES[] = {HVD_FLOAT32, HVD_FLOAT64, HVD_INT64},
                     OPS[] = {HVD_SUM, HVD_AVERAGE, HVD_MAX, HVD_PRODUCT};
    for (int i = 0; i < 6; i += 1 + CHECK_SLOW)
        for (int v = 0; v < 4; v++)
            for (int threads = 1; threads <= 1 + (v == 3); threads++) {
                int turn = i + v;
                struct teams_case c = {OF[i].team,    threads,   DTYPES[turn % 3],
                                       OPS[turn % 4], VALUES[v], turn % OF[i].ranks};
                ranks_run_on_window(OF[i].ranks, compare, &c);
            }
}

/* A rank of the first or of the last team never takes part. */
static void fail_without(struct ranks *ranks, int rank, void *absent) {
    const struct comm *comm = rank_comm(ranks, rank);
    struct teams_case c = {2, 1, HVD_FLOAT32, HVD_SUM, MOST_VALUES, -1};
    OWN(scratch_free) struct scratch scratch = {0};
    if (rank == *(int *)absent) return;
    char *data = calloc(c.values, sizeof(float));
    struct coll_tensor tensor = {.in = data, .out = data, .bytes = c.values * sizeof(float)};
    struct coll_args args = allreduce_of(&tensor, 1, HVD_FLOAT32, HVD_SUM, &scratch);
    comm->window->team = c.team;
    comm->transport->patience.timeout = 1e-2;
    CHECK_INT(coll_window_teams(comm, &args, ERR), HVD_TRANSPORT);
    free(data);
}

TEST(test_a_rank_that_never_comes_ends_all_waits) {
    for (int absent = 0; absent < 6; absent++) ranks_run_on_window(6, fail_without, &absent);
}

/* Rank 5 of 9 asks for teams of this size; 0: no rank asks, so the ranks measure the fastest. */
static void choose(struct ranks *ranks, int rank, void *wanted) {
    const struct comm *comm = rank_comm(ranks, rank);
    size_t want = rank == 5 ? *(size_t *)wanted : 0;
    bool own_core = *(size_t *)wanted == 0;
    OK(coll_choose_team(comm, want, own_core, ERR));
    int team = comm->window->team;
    if (*(size_t *)wanted) CHECK_INT(team, *(size_t *)wanted == 3 ? 3 : 0);
    CHECK(team == 0 || team == 3);
    double most = team;
    struct coll_tensor tensor = {.in = (char *)&most, .out = (char *)&most, .bytes = sizeof most};
    OWN(scratch_free) struct scratch scratch = {0};
    struct coll_args args = allreduce_of(&tensor, 1, HVD_FLOAT64, HVD_MAX, &scratch);
    OK(coll_window_allreduce(comm, &args, ERR));
    CHECK_INT(team, (int)most);
}

TEST(test_all_ranks_choose_the_same_team) {
    static const size_t WANTED[] = {1, 3, 4, 9, 1024, 0};
    for (size_t i = 0; i < 6; i++) ranks_run_on_window(9, choose, (void *)&WANTED[i]);
}

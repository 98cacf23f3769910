/* If a rank's engine stops, the error names that rank; if the rank comes back in time, nothing
 * fails. */
#include "engine_case.h"

enum { RANKS = 4 };

/* Limits in seconds, long enough for an engine that runs but gets no core for a while. */
static const double SILENCE = 2, ENOUGH_TO_RETURN = 12;

/* While `closed`, the stopped rank's engine receives and sends nothing. */
struct stop {
    const int *lowest; /* for local_hub_on; NULL: one host */
    int rank;
    bool returns;
    double shutdown, timeout;
    atomic_bool closed;
    struct transport_ops ops;
    const struct transport_ops *real;
};

static struct stop stop;

static int closed_receive(struct transport *t, struct message *message, hvd_error *err) {
    return atomic_load(&stop.closed) ? HVD_OK : stop.real->receive(t, message, err);
}

static int closed_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err) {
    return atomic_load(&stop.closed) ? HVD_OK : stop.real->send(t, to, data, size, err);
}

static void close_links(struct transport *t) {
    stop.real = t->ops;
    stop.ops = *t->ops;
    stop.ops.receive = closed_receive;
    stop.ops.send = closed_send;
    t->ops = &stop.ops;
}

static void open_silent(struct transport *t, int rank) {
    t->patience.timeout = stop.timeout;
    if (rank == stop.rank) close_links(t);
}

static void open_links(struct transport *t) {
    atomic_store(&stop.closed, false);
    transport_wake(t);
}

static void check_blamed(const hvd_error *error) {
    char blamed[48];
    snprintf(blamed, sizeof blamed, "rank %d (process", stop.rank);
    CHECK_HAS(error->text, blamed);
    CHECK_CODE(error->code, HVD_RANK_DEAD, *error);
    CHECK_HAS(error->text, "has not answered for");
}

ENGINES_BY(silent_main, arg, config.options.stall_failure = stop.shutdown;
           open_silent(rank_transport(ranks, rank), rank)) {
    struct work w;
    struct transport *t = rank_transport(me->ranks, me->rank);
    const bool stopped = me->rank == stop.rank;
    check_in_order(me, "before");
    ranks_meet(me->ranks);
    if (stopped) atomic_store(&stop.closed, true);
    ranks_meet(me->ranks);
    work_init(&w, me, plain_sum(1000), "x", false);
    if (!stopped) OK(work_submit(&w, ERR));
    if (!stop.returns && !stopped) {
        engine_rank_wait(me);
        check_blamed(&w.error);
        CHECK(engine_ended(me->engine, PATIENCE));
    }
    /* a rank counts as silent after half of the limit */
    if (stop.returns) clock_nap(0.53 * stop.timeout);
    ranks_meet(me->ranks);
    if (stopped) open_links(t);
    if (stop.returns) {
        if (stopped) OK(work_submit(&w, ERR));
        if (engine_rank_wait(me)) check_work(&w);
        check_in_order(me, "after");
    }
    work_free(&w);
}

static void run_stop(int rank, bool returns, double shutdown, double timeout) {
    stop.rank = rank;
    stop.returns = returns;
    stop.shutdown = shutdown;
    stop.timeout = timeout;
    atomic_store(&stop.closed, false);
    ranks_run_hub(RANKS, stop.lowest ? local_hub_on(RANKS, stop.lowest) : local_hub_new(RANKS, 0),
                  silent_main, NULL);
}

TEST(test_the_error_names_the_silent_rank) {
    for (int rank = 0; rank < RANKS; rank += 2) run_stop(rank, false, 0, SILENCE);
    for (int rank = 0; rank < RANKS; rank += 2) run_stop(rank, false, SILENCE, 300);
}

/* Rank 1 is silent and so does not pass the coordinator's error about 'x' on to rank 2. */
TEST(test_errors_reach_a_host_whose_leader_is_silent) {
    static const int TO_AND_FRO[RANKS] = {0, 1, 1, 0};
    stop.lowest = TO_AND_FRO;
    for (int rank = 0; rank < 2; rank++) run_stop(rank, false, 0, SILENCE);
    run_stop(1, false, SILENCE, 300);
    run_stop(1, true, 0, ENOUGH_TO_RETURN);
    stop.lowest = NULL;
}

TEST(test_a_stopped_rank_that_continues_before_the_limit_stays_in_the_job) {
    for (int rank = 0; rank < RANKS; rank += 2) run_stop(rank, true, 0, ENOUGH_TO_RETURN);
}

/* A thread that opens a group with the stopped rank waits for the rank; no engine does. */
ENGINES_BY(opening_main, arg, open_silent(rank_transport(ranks, rank), rank)) {
    static const int BOTH[] = {0, 1};
    struct transport *t = rank_transport(me->ranks, me->rank), *group = NULL;
    const bool stopped = me->rank == stop.rank;
    hvd_error err = {0};
    check_in_order(me, "before");
    if (stopped) atomic_store(&stop.closed, true);
    ranks_meet(me->ranks);
    if (!stopped) {
        CHECK_CODE(sockets_group(&group, t, BOTH, 2, 1, false, &err), HVD_RANK_DEAD, err);
        CHECK_HAS(err.text, "has not answered for");
        CHECK(err.nblamed == 1 && err.blamed[0] == stop.rank);
    }
    ranks_meet(me->ranks);
    if (stopped) open_links(t);
}

TEST(test_a_group_is_not_opened_with_a_silent_rank) {
    stop = (struct stop){.timeout = SILENCE};
    for (; stop.rank < 2; stop.rank++)
        for (int per_host = 1; per_host <= 2; per_host++)
            ranks_run_by(64 * 1024, 2, hub_of(2, per_host, true), opening_main, NULL);
}

#include "transport/comm.h"

#include "base/os.h"
#include "transport/transport.h"

#include <assert.h>

/* Longest sleep in a wait for data, in seconds, if arriving data ends the sleep. Limited, because
 * the thread also negotiates: a leader waits at most 20 ms for late ranks
 * (negotiation/aggregate.h). */
static const double LONGEST_DATA_SLEEP = 10e-3;
/* Longest nap in a wait for data, in seconds, if arriving data does not end the nap. Chosen, not
 * measured: after longer naps, data is noticed later, and MPI moves data only while it is called;
 * with shorter naps, long waits take more of the core. */
static const double LONGEST_NAP = 0.2e-3;

static int transport_rank(const struct comm *comm, int rank) {
    return comm->ranks ? comm->ranks[rank] : rank;
}

int comm_isend(const struct comm *comm, const void *data, size_t bytes, int to, struct transfer *x,
               hvd_error *err) {
    struct transport *t = comm->transport;
    assert(!x->active && bytes <= (size_t)1 << 30);
    *x = (struct transfer){.peer = transport_rank(comm, to), .active = true};
    if (t->stats) atomic_fetch_add(&t->stats->bytes_sent_network, bytes);
    return t->ops->isend(t, data, bytes, x->peer, x, err);
}

int comm_irecv(const struct comm *comm, void *data, size_t bytes, int from, struct transfer *x,
               hvd_error *err) {
    struct transport *t = comm->transport;
    assert(!x->active && bytes <= (size_t)1 << 30);
    *x = (struct transfer){.peer = transport_rank(comm, from), .active = true};
    return t->ops->irecv(t, data, bytes, x->peer, x, err);
}

void comm_count_window(const struct comm *comm, size_t bytes) {
    struct stats *stats = comm->transport->stats;
    if (stats) atomic_fetch_add(&stats->bytes_sent_window, bytes);
}

struct helpers *comm_helpers(const struct comm *comm) { return comm->transport->helpers; }

/* A wait for data fails after HVDLITE_DATA_TIMEOUT_SECONDS times this factor. Engines find a silent
 * rank earlier and name it in their error: they look for silent ranks at intervals of at most a
 * sixteenth of the limit (negotiation/watch.c). So this wait fails by itself only if the other
 * rank's engine answers, but sends no data. */
static const double DATA_TO_ANSWERS = 1.25;

struct awaited {
    int peer;        /* the awaited rank, as the transport numbers it */
    bool rings;      /* arriving data ends a sleep on the ticket */
    unsigned ticket; /* taken before the check for data, so that a sleep misses no data */
};

/* Yields, naps or sleeps. If arriving data wakes this rank, the rank sleeps instead of yielding,
 * because a sleep also moves the data of other transfers. */
static void pause_for(struct transport *t, struct waiter *waiter, struct awaited what) {
    double nap = waiter_next(waiter, clock_now(), transport_policy(t), LONGEST_NAP);
    if (transport_blocks(t) && (nap > 0 || (nap < 0 && what.rings)))
        transport_sleep(t, what.ticket, what.rings ? LONGEST_DATA_SLEEP : nap);
    else
        waiter_do(waiter, nap);
}

/* Negotiates, then waits as the policy says, before the next check. Fails after the timeout. */
static int keep_waiting(struct transport *t, struct waiter *waiter, struct awaited what,
                        hvd_error *err) {
    const struct patience *w = &t->patience;
    HVD_TRY(w->meanwhile ? w->meanwhile(w->arg, err) : transport_check_life(t, err));
    pause_for(t, waiter, what);
    if (t->stats) stats_wait(t->stats, waiter->since, transport_job_rank(t, what.peer));
    return comm_check_wait(t, what.peer, clock_now() - waiter->since, err);
}

int comm_check_wait(const struct transport *t, int peer, double seconds, hvd_error *err) {
    const double limit = DATA_TO_ANSWERS * t->patience.timeout;
    if (limit <= 0 || seconds <= limit) return HVD_OK;
    return error_set(err, HVD_TRANSPORT,
                     "no data moved between rank %d and rank %d for %g s: is one of them dead or "
                     "stopped? HVDLITE_DATA_TIMEOUT_SECONDS sets the limit",
                     transport_job_rank(t, t->at.rank), transport_job_rank(t, peer), limit);
}

static void end_wait(struct transport *t, struct waiter *waiter) {
    double now = clock_now();
    stats_waited(t->stats, waiter->since, now);
    waiter_done(waiter, now);
}

int comm_wait(const struct comm *comm, struct transfer *x, struct waiter *stream, hvd_error *err) {
    struct transport *t = comm->transport;
    while (x->active) {
        struct awaited what = {x->peer, true, transport_blocks(t) ? transport_listen(t) : 0};
        HVD_TRY(t->ops->test(t, x, err));
        if (x->active) HVD_TRY(keep_waiting(t, stream, what, err));
    }
    if (stream->since > 0) end_wait(t, stream);
    return HVD_OK;
}

struct cost comm_cost(const struct comm *comm) {
    return comm->hosts > 1 ? comm->transport->cost : COST_ON_A_HOST;
}

struct pace comm_pace(const struct comm *comm) { return comm->transport->pace; }

int comm_wait_flag(const struct comm *comm, int rank, enum window_flag flag, uint64_t round,
                   hvd_error *err) {
    struct transport *t = comm->transport;
    struct waiter waiter = {0};
    struct awaited what = {.peer = transport_rank(comm, rank)};
    while (!window_raised(comm->window, rank, flag, round)) {
        if (transport_blocks(t)) what.ticket = transport_listen(t);
        HVD_TRY(keep_waiting(t, &waiter, what, err));
    }
    if (waiter.since > 0) end_wait(t, &waiter);
    return HVD_OK;
}

int comm_wait_flags(const struct comm *comm, enum window_flag flag, uint64_t round,
                    hvd_error *err) {
    for (int d = 1; d < comm->size; d++)
        HVD_TRY(comm_wait_flag(comm, (comm->rank + d) % comm->size, flag, round, err));
    return HVD_OK;
}

int comm_wait_slot(const struct comm *comm, uint64_t round, hvd_error *err) {
    if (round < WINDOW_SLOTS) return HVD_OK;
    return comm_wait_flags(comm, WINDOW_TAKEN, round - WINDOW_SLOTS, err);
}

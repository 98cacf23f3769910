#include "transport/transport.h"

#include "base/clock.h"
#include "transport/wait.h"

#include <assert.h>

static const double LONGEST_DATA_NAP = 1e-3;  /* MPI moves data only while it is called */
static const double LONGEST_DEAF_NAP = 10e-3; /* and some messages wake nobody */

int transport_isend(struct transport *t, const void *data, size_t bytes, int to, struct transfer *x,
                    hvd_error *err) {
    assert(!x->active && bytes <= (size_t)1 << 30);
    *x = (struct transfer){.peer = to, .active = true};
    if (t->stats) atomic_fetch_add(&t->stats->bytes_sent_mpi, bytes);
    return t->ops->isend(t, data, bytes, to, x, err);
}

int transport_irecv(struct transport *t, void *data, size_t bytes, int from, struct transfer *x,
                    hvd_error *err) {
    assert(!x->active && bytes <= (size_t)1 << 30);
    *x = (struct transfer){.peer = from, .active = true};
    return t->ops->irecv(t, data, bytes, from, x, err);
}

void transport_count_window(struct transport *t, size_t bytes) {
    if (t->stats) atomic_fetch_add(&t->stats->bytes_sent_window, bytes);
}

/* After a look without success: negotiates, waits as the policy says, fails after the timeout. */
static int keep_waiting(struct transport *t, struct waiter *waiter, const char *whom, int peer,
                        hvd_error *err) {
    if (t->on_wait) HVD_TRY(t->on_wait(t->on_wait_arg, err));
    waiter_pause(waiter, t->wait, LONGEST_DATA_NAP);
    if (t->timeout <= 0 || clock_now() - waiter->since <= t->timeout) return HVD_OK;
    return error_set(err, HVD_TRANSPORT,
                     "no data moved between rank %d and %s %d for %.0f s: is one of them dead or "
                     "stopped?",
                     transport_job_rank(t, t->at.rank), whom, peer, t->timeout);
}

int transport_wait(struct transport *t, struct transfer *x, hvd_error *err) {
    struct waiter waiter = {0};
    while (x->active) {
        HVD_TRY(t->ops->test(t, x, err));
        if (x->active)
            HVD_TRY(keep_waiting(t, &waiter, "rank", transport_job_rank(t, x->peer), err));
    }
    return HVD_OK;
}

int transport_wait_flag(struct transport *t, int local_rank, enum window_flag flag, uint64_t round,
                        hvd_error *err) {
    struct waiter waiter = {0};
    while (!window_raised(t->window, local_rank, flag, round))
        HVD_TRY(keep_waiting(t, &waiter, "local rank", local_rank, err));
    return HVD_OK;
}

int transport_wait_flags(struct transport *t, enum window_flag flag, uint64_t round,
                         hvd_error *err) {
    for (int d = 1; d < t->window->n; d++) {
        int local_rank = (t->window->self + d) % t->window->n;
        HVD_TRY(transport_wait_flag(t, local_rank, flag, round, err));
    }
    return HVD_OK;
}

int transport_wait_slot(struct transport *t, uint64_t round, hvd_error *err) {
    if (round < WINDOW_SLOTS) return HVD_OK;
    return transport_wait_flags(t, WINDOW_TAKEN, round - WINDOW_SLOTS, err);
}

int transport_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err) {
    return t->ops->send(t, to, data, size, err);
}

int transport_receive(struct transport *t, struct message *message, hvd_error *err) {
    *message = (struct message){.from = -1};
    return t->ops->receive(t, message, err);
}

unsigned transport_listen(struct transport *t) { return t->ops->listen(t); }

void transport_sleep(struct transport *t, unsigned ticket, double seconds) {
    t->ops->sleep(t, ticket, t->rings || seconds < LONGEST_DEAF_NAP ? seconds : LONGEST_DEAF_NAP);
}

void transport_wake(struct transport *t) { t->ops->wake(t); }

void transport_abandon(struct transport *t) { t->ops->abandon(t); }

void transport_close(struct transport *t, bool clean) { t->ops->close(t, clean); }

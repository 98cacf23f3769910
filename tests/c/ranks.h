/* Ranks as threads: runs a function on every rank of a local hub.
 *
 * If RANKS_BY_TCP is set in the environment, sockets with small buffers connect the ranks, and the
 * hub only determines the hosts of the ranks. */
#ifndef HVDLITE_RANKS_H
#define HVDLITE_RANKS_H

#include "check.h"

#include "sockets.h"
#include "transport/transports.h"

enum { MOST_RANKS = 9 };

struct ranks {
    int size;
    struct local_hub *hub;
    struct sockets *sockets;              /* NULL: the hub connects the ranks */
    struct transport *by_tcp[MOST_RANKS]; /* by rank; NULL: not opened yet, or closed by the test */
    pthread_barrier_t barrier;            /* all ranks meet at it */
};

/* Returns the next number of ranks to test. Slow runs (with sanitizers, for example) skip some. */
static inline int more_ranks(int p) { return CHECK_SLOW && p > 2 ? p + 3 : p + 1; }

typedef void rank_main(struct ranks *ranks, int rank, void *shared);

struct rank_thread {
    struct ranks *ranks;
    int rank;
    rank_main *run;
    void *shared;
};

static inline void rank_open_tcp(struct ranks *ranks, int rank) {
    const struct transport *like = local_hub_rank(ranks->hub, rank);
    OK(sockets_transport(ranks->sockets, rank, like->layout.host_of, like->layout.windows,
                         &ranks->by_tcp[rank], ERR));
    REQUIRE(ranks->by_tcp[rank] != NULL);
    ranks->by_tcp[rank]->pace = like->pace;
    ranks->by_tcp[rank]->cost = like->cost;
    /* wait for all ranks, because tests look at other ranks' transports */
    pthread_barrier_wait(&ranks->barrier);
}

static inline void *rank_thread_run(void *arg) {
    struct rank_thread *self = arg;
    struct ranks *ranks = self->ranks;
    if (ranks->sockets) rank_open_tcp(ranks, self->rank);
    self->run(ranks, self->rank, self->shared);
    if (ranks->sockets) pthread_barrier_wait(&ranks->barrier);
    if (ranks->by_tcp[self->rank]) transport_close(ranks->by_tcp[self->rank], true);
    return NULL;
}

static inline struct transport *rank_transport(struct ranks *ranks, int rank) {
    return ranks->sockets ? ranks->by_tcp[rank] : local_hub_rank(ranks->hub, rank);
}

static inline const struct comm *rank_comm(struct ranks *ranks, int rank) {
    return &rank_transport(ranks, rank)->all;
}

static inline void ranks_meet(struct ranks *ranks) { pthread_barrier_wait(&ranks->barrier); }

/* Runs `run` on every rank. buffer: size of the sockets' buffers, as in sockets_connect; -1: the
 * hub connects the ranks. */
static inline void ranks_run_by(int buffer, int size, struct local_hub *hub, rank_main *run,
                                void *shared) {
    struct ranks ranks = {.size = size, .hub = hub};
    struct rank_thread of[MOST_RANKS];
    REQUIRE(ranks.hub != NULL);
    pthread_barrier_init(&ranks.barrier, NULL, (unsigned)size);
    struct sockets sockets;
    if (buffer >= 0) ranks.sockets = sockets_connect(&sockets, size, buffer);
    for (int i = 0; i < size; i++) of[i] = (struct rank_thread){&ranks, i, run, shared};
    threads_run(size, rank_thread_run, of, sizeof *of);
    if (ranks.sockets) sockets_close(ranks.sockets);
    pthread_barrier_destroy(&ranks.barrier);
    local_hub_free(ranks.hub);
}

static inline void ranks_run_hub(int size, struct local_hub *hub, rank_main *run, void *shared) {
    ranks_run_by(getenv("RANKS_BY_TCP") ? 64 * 1024 : -1, size, hub, run, shared);
}

static inline void hub_end(struct local_hub **hub) { local_hub_free(*hub); }

/* Returns a hub, with or without windows. lowest: by rank, the lowest rank of the rank's host. */
static inline struct local_hub *hub_on(int size, const int *lowest, bool windows) {
    struct local_hub *hub = local_hub_on(size, lowest);
    REQUIRE(hub && (!windows || local_hub_share(hub)));
    return hub;
}

/* Returns a hub. per_host: number of consecutive ranks on a host; 0: all ranks. */
static inline struct local_hub *hub_of(int size, int per_host, bool windows) {
    struct local_hub *hub = local_hub_new(size, per_host);
    REQUIRE(hub && (!windows || local_hub_share(hub)));
    return hub;
}

/* Gives all ranks of the hub messages of this pace and cost. */
static inline struct local_hub *hub_at(struct local_hub *hub, struct pace pace, struct cost cost) {
    for (int r = 0; r < local_hub_rank(hub, 0)->at.size; r++) {
        local_hub_rank(hub, r)->pace = pace;
        local_hub_rank(hub, r)->cost = cost;
    }
    return hub;
}

/* If messages cost nothing, rings are chosen, and move data in slices, as for large data. */
static const struct cost BYTES_ALONE = COST_OF(0, 1e-9, 1);

/* Runs `run` on every rank; returns when all ranks have returned. */
static inline void ranks_run(int size, rank_main *run, void *shared) {
    ranks_run_hub(size, local_hub_new(size, 0), run, shared);
}

/* Like ranks_run, with a window that all ranks share. */
static inline void ranks_run_on_window(int size, rank_main *run, void *shared) {
    ranks_run_hub(size, hub_of(size, 0, true), run, shared);
}

/* Like ranks_run, always without sockets, because sockets have no local_hub_break(). */
static inline void ranks_run_to_break(int size, rank_main *run, void *shared) {
    ranks_run_by(-1, size, local_hub_new(size, 0), run, shared);
}

#endif

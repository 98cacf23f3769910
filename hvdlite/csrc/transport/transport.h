/* The transport: moves bytes from rank to rank. Collectives and the engine know only this header.
 *
 * Two implementations: transport_mpi (processes) and transport_local (ranks as threads of one
 * process, for tests). Two lanes that never mix: `transfers` move data between buffers that both
 * sides have ready, matched in order for each pair of ranks; `messages` carry the negotiation and
 * are copied. Only the engine's thread calls these functions, except transport_wake. */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_H
#define HVDLITE_TRANSPORT_TRANSPORT_H

#include "base/error.h"
#include "base/stats.h"
#include "shm/window.h"
#include "transport/wait.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where this rank is. A host is a shared-memory domain; cross: among ranks with this local rank. */
struct topology {
    int rank, size;
    int local_rank, local_size;
    int cross_rank, cross_size;
    int hosts;
};

/* A data transfer under way; a zeroed one is complete. */
struct transfer {
    uint64_t handle[2]; /* the implementation's */
    int peer;
    bool active;
};

struct message {
    int from;
    void *data; /* malloc'ed; the receiver frees it. NULL: no message */
    size_t size;
};

struct transport;

struct transport_ops {
    int (*isend)(struct transport *, const void *data, size_t bytes, int to, struct transfer *,
                 hvd_error *);
    int (*irecv)(struct transport *, void *data, size_t bytes, int from, struct transfer *,
                 hvd_error *);
    int (*test)(struct transport *, struct transfer *,
                hvd_error *); /* clears `active` when complete */
    int (*send)(struct transport *, int to, const void *data, size_t size, hvd_error *);
    int (*receive)(struct transport *, struct message *, hvd_error *);
    void (*wake)(struct transport *);
    unsigned (*listen)(struct transport *);
    void (*sleep)(struct transport *, unsigned ticket, double seconds);
    void (*abandon)(struct transport *);
    void (*close)(struct transport *, bool clean);
};

struct transport {
    const struct transport_ops *ops;
    struct topology at;
    const int *job_ranks;  /* [rank]: what error texts call it; NULL: its number here */
    struct window *window; /* of all ranks of this host; NULL: no shared memory */
    hvd_error no_window;   /* why not */
    struct stats *stats;   /* NULL: nothing is counted */
    struct wait_policy wait;
    bool rings;     /* every message ends a sleep; else some are found only by polling */
    double timeout; /* seconds without progress until a wait fails; 0: never */
    /* Called while a wait lasts; its error ends the wait. */
    int (*on_wait)(void *arg, hvd_error *err);
    void *on_wait_arg;
};

static inline int transport_job_rank(const struct transport *t, int rank) {
    return t->job_ranks ? t->job_ranks[rank] : rank;
}

/* Data lane. bytes <= 2^30: callers cut longer data into segments. The transfer owns the buffer
 * until a wait for it has returned. */
int transport_isend(struct transport *t, const void *data, size_t bytes, int to, struct transfer *x,
                    hvd_error *err);
int transport_irecv(struct transport *t, void *data, size_t bytes, int from, struct transfer *x,
                    hvd_error *err);

/* Counts bytes that this rank has written for other ranks of its host. */
void transport_count_window(struct transport *t, size_t bytes);

/* Returns when the transfer is complete. Spins, yields, then naps, and calls on_wait meanwhile.
 * After an error the transfer may still be active, and the transport is unusable. */
int transport_wait(struct transport *t, struct transfer *x, hvd_error *err);

/* Return when that rank of this host, or all its other ranks, have raised the flag for the round.
 * They wait as transport_wait does. */
int transport_wait_flag(struct transport *t, int local_rank, enum window_flag flag, uint64_t round,
                        hvd_error *err);
int transport_wait_flags(struct transport *t, enum window_flag flag, uint64_t round,
                         hvd_error *err);
/* Returns when no rank reads the round that was last in this rank's slot. */
int transport_wait_slot(struct transport *t, uint64_t round, hvd_error *err);

/* Message lane; neither call blocks. */
int transport_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err);
int transport_receive(struct transport *t, struct message *message, hvd_error *err);

/* How to sleep and miss nothing: take a ticket, look for work, sleep on the ticket. Sleep returns
 * at once if a message came since the ticket, and soon where messages may come that do not ring. */
unsigned transport_listen(struct transport *t);
void transport_sleep(struct transport *t, unsigned ticket, double seconds);
void transport_wake(struct transport *t); /* any thread */

/* After a failure: no transfer touches its buffer any more. */
void transport_abandon(struct transport *t);

/* clean: every rank calls it and nothing is under way. Else what can't be released is leaked. */
void transport_close(struct transport *t, bool clean);

#endif

/* The transport: how bytes get from rank to rank. The collectives and the engine know only this.
 *
 * Two implementations: transport_mpi (processes) and transport_local (ranks as threads of
 * one process, for tests). Two lanes that never mix: `transfers` carry data between buffers that
 * both sides have ready, matched in order for each pair of ranks; `messages` carry the negotiation
 * and are copied. One thread, the engine's, calls everything here except transport_wake. */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_H
#define HVDLITE_TRANSPORT_TRANSPORT_H

#include "base/error.h"
#include "base/stats.h"
#include "shm/window.h"
#include "transport/wait.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where the ranks are. A host is a shared-memory domain; cross: among equal local ranks. */
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
    void *data; /* malloc'ed; the receiver frees it. NULL: there was no message */
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
    struct window *window; /* of all ranks of this host; NULL: shared memory can't be had */
    hvd_error no_window;   /* why not */
    struct stats *stats;   /* NULL: nothing is counted */
    struct wait_policy wait;
    bool rings;     /* every message ends a sleep; else some are only seen by looking */
    double timeout; /* seconds without any progress until a wait gives up; 0: never */
    /* Called between looks while a wait lasts; an error of its ends the wait. */
    int (*on_wait)(void *arg, hvd_error *err);
    void *on_wait_arg;
};

static inline int transport_job_rank(const struct transport *t, int rank) {
    return t->job_ranks ? t->job_ranks[rank] : rank;
}

/* Data lane. bytes <= 2^30: callers cut longer work into segments. The buffer belongs to the
 * transfer until a wait has returned for it. */
int transport_isend(struct transport *t, const void *data, size_t bytes, int to, struct transfer *x,
                    hvd_error *err);
int transport_irecv(struct transport *t, void *data, size_t bytes, int from, struct transfer *x,
                    hvd_error *err);

/* This rank has put so many bytes where others of its host read them. */
void transport_count_window(struct transport *t, size_t bytes);

/* Returns when the transfer is complete. It spins briefly, yields, then naps, and calls on_wait
 * meanwhile. On an error the transfer may still be active and the transport is of no more use. */
int transport_wait(struct transport *t, struct transfer *x, hvd_error *err);

/* Returns when that rank of this host, or all others, have raised the flag for the round. Wait as
 * transport_wait does. */
int transport_wait_flag(struct transport *t, int local_rank, enum window_flag flag, uint64_t round,
                        hvd_error *err);
int transport_wait_flags(struct transport *t, enum window_flag flag, uint64_t round,
                         hvd_error *err);
/* Returns when nobody reads any more what lay in this rank's slot of that round. */
int transport_wait_slot(struct transport *t, uint64_t round, hvd_error *err);

/* Message lane; neither call blocks. */
int transport_send(struct transport *t, int to, const void *data, size_t size, hvd_error *err);
int transport_receive(struct transport *t, struct message *message, hvd_error *err);

/* Sleeping without missing anything: take a ticket, look whether there is work, sleep on the
 * ticket. sleep returns at once if anything has come since the ticket was taken, and soon where a
 * message may come that does not ring. */
unsigned transport_listen(struct transport *t);
void transport_sleep(struct transport *t, unsigned ticket, double seconds);
void transport_wake(struct transport *t); /* any thread */

/* After a failure: no transfer may touch its buffer from now on. */
void transport_abandon(struct transport *t);

/* clean: every rank calls it, and nothing is under way; else what can't be released is left alone.
 */
void transport_close(struct transport *t, bool clean);

#endif

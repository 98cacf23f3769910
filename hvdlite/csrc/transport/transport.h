/* The transport moves bytes from rank to rank. transports.h and transport_mpi.h have the functions
 * that open transports.
 *
 * There are two kinds of traffic. Transfers move data, through a comm (comm.h). Messages carry the
 * negotiation and are copied. Only the thread that steps the engine calls these functions, except
 * for functions marked "any thread". */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_H
#define HVDLITE_TRANSPORT_TRANSPORT_H

#include "base/error.h"
#include "base/stats.h"
#include "shm/life.h"
#include "transport/comm.h"
#include "transport/cost.h"
#include "transport/pace.h"
#include "transport/wait.h"

#include <stdatomic.h>

struct message {
    int from;
    void *data; /* malloc'ed; the receiver frees it. NULL: no message */
    size_t size;
};

struct card; /* on_host.h */
struct transport;

/* The user's choices for a transport; equal on all ranks. */
struct transport_config {
    /* The ranks of a host share a window if they can; without a window all data goes through
     * streams or MPI. */
    bool window;
    bool nudge;     /* datagrams (nudge.h) wake the receivers of messages that MPI moves */
    double timeout; /* seconds after which a wait for another rank fails; 0: never */
};

struct transport_ops {
    const char *name; /* appears in texts for the user */
    int (*isend)(struct transport *, const void *data, size_t bytes, int to, struct transfer *,
                 hvd_error *);
    int (*irecv)(struct transport *, void *data, size_t bytes, int from, struct transfer *,
                 hvd_error *);
    /* clears x->active when the transfer is complete */
    int (*test)(struct transport *, struct transfer *, hvd_error *);
    int (*send)(struct transport *, int to, const void *data, size_t size, hvd_error *);
    int (*receive)(struct transport *, struct message *, hvd_error *);
    void (*wake)(struct transport *);
    unsigned (*listen)(struct transport *);
    /* true: unsent messages need more calls, so the engine must not sleep; NULL: never */
    bool (*polls)(struct transport *);
    void (*sleep)(struct transport *, unsigned ticket, double seconds);
    /* Collective, before the engine starts. `all` has `each` bytes for every rank: the caller sets
     * this rank's bytes, the call fills in the other ranks' bytes. */
    int (*gather)(struct transport *, void *all, size_t each, hvd_error *);
    /* See transport_died. NULL: only this transport needs to know of the death. */
    void (*died)(struct transport *, int rank, enum fate fate);
    /* Closes the parent's sockets in a forked child: while they are open, the other ranks can't see
     * that the parent has ended. NULL: nothing to do. */
    void (*forked)(struct transport *);
    void (*abandon)(struct transport *); /* ends all uses of the callers' buffers */
    void (*close)(struct transport *, bool clean);
};

/* What ends the sleep of a rank that has nothing to do. Each value includes the values above it. */
enum wakes {
    WAKES_POLL, /* some messages end no sleep: only polling the transport finds them */
    /* a datagram (nudge.h) that is sent after the message, but may arrive before it */
    WAKES_NUDGE,
    WAKES_MESSAGE, /* a message ends the sleep; data does not, so a wait for data polls */
    WAKES_DATA,    /* a message or data ends the sleep, so a wait for data sleeps */
};

struct transport {
    const struct transport_ops *ops;
    hvd_topology at;
    const int *job_ranks; /* by rank: the rank's number in error texts; NULL: the same number */
    struct comm all;      /* all ranks */
    struct layout layout; /* the layout of `all` */
    hvd_error no_window;  /* reason why the ranks of this host share no window */
    hvd_error no_watch;   /* reason why the death of a rank of this host may be noticed late */
    struct stats *stats;  /* NULL: nothing is counted */
    struct patience patience;
    double silence; /* seconds after which the engine declares a rank silent; 0: never */
    /* shared by all groups of the process, for large collectives; NULL: none */
    struct helpers *helpers;
    struct pace pace;
    struct cost cost;         /* cost of messages between hosts */
    atomic_int wakes;         /* an enum wakes; read it with transport_rings and transport_blocks */
    const struct card *cards; /* array by rank: the rank's process and host; NULL: unknown */
    /* The first rank that was found dead, and its enum fate, as 1 + rank * FATES + fate; 0: none.
     * Both are in one word, because two threads may find dead ranks at the same time. */
    atomic_int death;
    atomic_int *awaited; /* array by rank: see transport_await; NULL: no thread waits */
};

static inline int transport_job_rank(const struct transport *t, int rank) {
    return job_rank(t->job_ranks, rank);
}

/* Returns whether an arriving message wakes this rank immediately. */
static inline bool transport_rings(const struct transport *t) {
    return atomic_load_explicit(&t->wakes, memory_order_relaxed) >= WAKES_MESSAGE;
}
/* Returns whether arriving data wakes this rank immediately. */
static inline bool transport_blocks(const struct transport *t) {
    return atomic_load_explicit(&t->wakes, memory_order_relaxed) == WAKES_DATA;
}

/* Send or receive a message. Neither function blocks. */
static inline int transport_send(struct transport *t, int to, const void *data, size_t size,
                                 hvd_error *err) {
    return t->ops->send(t, to, data, size, err);
}
int transport_receive(struct transport *t, struct message *message, hvd_error *err);

/* Writes "rank 2 (process 4711 on host n7)". */
enum { TRANSPORT_WHO = 160 };
void transport_who(const struct transport *t, int rank, char who[TRANSPORT_WHO]);
/* Adds the rank to the ranks that caused an error. The error must be set already; returns the
 * error's code. */
int transport_blame(const struct transport *t, int rank, hvd_error *err);
/* If the first blamed rank is in this transport: stores the rank's process and host in the
 * error. */
void transport_complete(const struct transport *t, hvd_error *err);

/* Sets the error of a dead rank. The text depends only on the rank, the fate and, for a silent
 * rank, the limit of the job, so it is the same on every rank and in every group. Returns
 * HVD_RANK_DEAD. */
int transport_dead(const struct transport *t, int rank, enum fate fate, hvd_error *err);
/* Returns HVD_RANK_DEAD if a rank's process has ended. Read the rank's messages first, because the
 * rank may have left before its process ended. */
int transport_check_life(const struct transport *t, hvd_error *err);
/* Looks for a dead rank for up to 50 ms, because a transfer may fail a moment before the death is
 * noticed. */
bool transport_find_dead(const struct transport *t, hvd_error *cause);
bool transport_is_dead(const struct transport *t, int rank);
/* Records the death in this transport and wakes its engine. Any thread. */
void transport_note_death(struct transport *t, int rank, enum fate fate);
/* Records the death in all groups of the job. Any thread. */
void transport_died(struct transport *t, int rank, enum fate fate);
/* Tells all groups of the job to stop waiting for the dead or silent ranks of this error. Any
 * thread. */
void transport_give_up(struct transport *t, const hvd_error *cause);
/* Records that a thread other than an engine's begins (by = 1) or ends (by = -1) a wait for the
 * rank. During the wait, the job's engine checks that the rank answers. Any thread. */
void transport_await(struct transport *job, int rank, int by);
bool transport_awaits(const struct transport *t, int rank);
/* Records that another host is lost. host NULL: this rank leaves and waits for no other rank.
 * t->cards must be set. Any thread. */
void transport_lose_host(struct transport *t, const char *host);

/* Polls for a short time, so that MPI, which sends only while it is called, sends the last
 * messages. Does nothing if arriving messages wake ranks. */
void transport_linger(struct transport *t);

/* To sleep without missing a message, take a ticket (listen), look for work, then sleep with the
 * ticket: if a message, or a datagram of nudge.h, arrives after transport_listen, transport_sleep
 * returns immediately. */
static inline unsigned transport_listen(struct transport *t) { return t->ops->listen(t); }
static inline void transport_sleep(struct transport *t, unsigned ticket, double seconds) {
    t->ops->sleep(t, ticket, seconds);
}
/* Returns how long the engine may sleep before it must look for messages that wake no rank. */
double transport_longest_sleep(struct transport *t, bool pending);
/* Returns the policy for a wait that begins now. It does not spin if another rank of the host uses
 * this core. */
struct wait_policy transport_policy(const struct transport *t);
/* Any thread. */
static inline void transport_wake(struct transport *t) { t->ops->wake(t); }

/* Collective, before the engine starts. Returns an array by rank, with `each` bytes from every
 * rank; the caller frees the array. NULL: see *err. */
void *transport_gather(struct transport *t, const void *own, size_t each, hvd_error *err);
/* Collective. Fails on every rank if `code` (the code of *err) is an error on any rank. Otherwise
 * ranks would wait for a rank that can't start. */
int transport_agree(struct transport *t, int code, hvd_error *err);

/* clean: every rank calls it, and nothing is under way. Not clean: the call leaks what it can't
 * release. */
static inline void transport_close(struct transport *t, bool clean) { t->ops->close(t, clean); }

#endif

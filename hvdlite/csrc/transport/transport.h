/* The transport: moves bytes from rank to rank. The engine knows only this header.
 *
 * Three implementations: transport_mpi and transport_tcp (processes) and transport_local (ranks as
 * threads of one process, for tests). Two lanes that never mix: transfers move data, through a comm
 * (comm.h); messages carry the negotiation and are copied. Only the engine's thread calls these
 * functions, except transport_wake. */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_H
#define HVDLITE_TRANSPORT_TRANSPORT_H

#include "base/error.h"
#include "base/stats.h"
#include "shm/life.h"
#include "transport/layout.h"
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
    bool (*polls)(struct transport *); /* before a sleep: some messages need calls to go out */
    void (*sleep)(struct transport *, unsigned ticket, double seconds);
    /* Collective, before the engine starts: fills in every rank's `each` bytes, by rank; this
     * rank's are there. */
    int (*gather)(struct transport *, void *all, size_t each, hvd_error *);
    /* As transport_died. NULL: this transport alone learns of it. */
    void (*died)(struct transport *, int rank, enum fate fate);
    void (*forked)(struct transport *); /* NULL: there is nothing to do */
    void (*abandon)(struct transport *);
    void (*close)(struct transport *, bool clean);
};

/* What ends the sleep of a rank that has nothing to do. Each value includes those above it. */
enum wakes {
    WAKES_POLL,    /* Nothing, for some messages: only a poll of the transport finds them. */
    WAKES_NUDGE,   /* A nudge (nudge.h) sent beside the message; the message may come later. */
    WAKES_MESSAGE, /* The arrival of the message. Data does not: a wait for a transfer polls. */
    WAKES_DATA,    /* The arrival of a message or of data: a wait for a transfer sleeps, too. */
};

struct transport {
    const struct transport_ops *ops;
    hvd_topology at;
    const int *job_ranks; /* [rank]: what error texts call it; NULL: its number here */
    struct comm all;      /* every rank */
    struct layout layout; /* of all */
    hvd_error no_window;  /* why the ranks of this host share none */
    struct stats *stats;  /* NULL: nothing is counted */
    struct patience patience;
    struct pace pace;
    struct cost cost;         /* between hosts */
    atomic_int wakes;         /* enum wakes; ask transport_rings and transport_blocks */
    const struct card *cards; /* [rank]: their processes; NULL: not known */
    atomic_int dead;          /* 1 + the first rank that was found dead; 0: none */
    atomic_int fate;          /* of it: enum fate */
    atomic_int *awaited;      /* [rank]: threads that wait for it while no engine does; or NULL */
};

static inline int transport_job_rank(const struct transport *t, int rank) {
    return t->job_ranks ? t->job_ranks[rank] : rank;
}

/* A message wakes this rank at once. */
static inline bool transport_rings(const struct transport *t) {
    return atomic_load_explicit(&t->wakes, memory_order_relaxed) >= WAKES_MESSAGE;
}
/* Data does, too. */
static inline bool transport_blocks(const struct transport *t) {
    return atomic_load_explicit(&t->wakes, memory_order_relaxed) == WAKES_DATA;
}

/* Message lane; neither call blocks. */
static inline int transport_send(struct transport *t, int to, const void *data, size_t size,
                                 hvd_error *err) {
    return t->ops->send(t, to, data, size, err);
}
int transport_receive(struct transport *t, struct message *message, hvd_error *err);

/* "rank 2 (process 4711 on host n7)" */
enum { TRANSPORT_WHO = 160 };
void transport_who(const struct transport *t, int rank, char who[TRANSPORT_WHO]);
/* Adds the rank to those that have caused the set error; returns its code. */
int transport_blame(const struct transport *t, int rank, hvd_error *err);
/* Fills in process and host of the first rank that has caused the error, if it is one of these. */
void transport_complete(const struct transport *t, hvd_error *err);

/* HVD_OK, or HVD_RANK_DEAD: the process of a rank has died. It may have ended in good order: look
 * for its last message first. */
int transport_check_life(const struct transport *t, hvd_error *err);
/* MPI may fail for a rank a moment before its death is seen: looks for a moment. */
bool transport_find_dead(const struct transport *t, hvd_error *cause);
bool transport_is_dead(const struct transport *t, int rank);
/* Any thread: */
void transport_note_death(struct transport *t, int rank, enum fate fate);
/* The same, and all groups of the job learn it. */
void transport_died(struct transport *t, int rank, enum fate fate);
/* The ranks that are dead, or do not answer, by this error: no group of the job waits for them. */
void transport_give_up(struct transport *t, const hvd_error *cause);
/* A thread begins (1), or ends (-1), to wait for the rank outside of any engine: the job's engine
 * sees meanwhile that it answers. */
void transport_await(struct transport *job, int rank, int by);
bool transport_awaits(const struct transport *t, int rank);
/* Another host has lost its power or its network. The cards are known. */
void transport_lose_host(struct transport *t, const char *host);

/* MPI sends only while it is called: keeps calling until the last messages are out. */
void transport_linger(struct transport *t);

/* How to sleep and miss nothing: take a ticket, look for work, sleep on the ticket. Sleep returns
 * at once if a message or a nudge came since the ticket. */
static inline unsigned transport_listen(struct transport *t) { return t->ops->listen(t); }
static inline void transport_sleep(struct transport *t, unsigned ticket, double seconds) {
    t->ops->sleep(t, ticket, seconds);
}
/* The longest sleep that still finds a message which rings no doorbell. */
double transport_longest_sleep(struct transport *t, bool pending);
/* How a wait that begins now goes on: it does not spin on a core that another rank of the host
 * uses. */
struct wait_policy transport_policy(const struct transport *t);
/* Any thread. */
static inline void transport_wake(struct transport *t) { t->ops->wake(t); }

/* Collective, before the engine starts. Returns every rank's bytes, by rank, which the caller
 * frees; NULL: see *err. */
void *transport_gather(struct transport *t, const void *own, size_t each, hvd_error *err);
/* Collective: fails on every rank if `code`, the code of *err, is not HVD_OK on any rank: else
 * ranks would wait for one that can't start. */
int transport_agree(struct transport *t, int code, hvd_error *err);

/* In a forked child: lets go of what would hide this process's end from the other ranks. */
static inline void transport_forked(struct transport *t) {
    if (t->ops->forked) t->ops->forked(t);
}

/* After a failure: no transfer touches its buffer any more. */
static inline void transport_abandon(struct transport *t) { t->ops->abandon(t); }

/* clean: every rank calls it and nothing is under way. Else what can't be released is leaked. */
static inline void transport_close(struct transport *t, bool clean) { t->ops->close(t, clean); }

#endif

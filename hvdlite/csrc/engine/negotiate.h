/* Negotiation: between this rank and the coordinator, up to the run log.
 *
 * Submitted tensors become items of a message to the coordinator, whole the first time, a cache
 * id later. The coordinator's decisions become batches in the run log, or errors. Rank 0 drives
 * the coordinator from here and talks to it without the transport. Both ways lead by the tree. The
 * engine's thread; nothing blocks. */
#ifndef HVDLITE_ENGINE_NEGOTIATE_H
#define HVDLITE_ENGINE_NEGOTIATE_H

#include "engine/fast_path.h"
#include "engine/p2p.h"
#include "negotiation/aggregate.h"
#include "negotiation/cache.h"
#include "negotiation/coordinator.h"
#include "negotiation/watch.h"

enum { COORDINATOR = 0 };

struct negotiation {
    struct transport *t;
    struct tensors *tensors;
    struct fast_path *fast;
    struct p2p *p2p;
    struct cache *cache;             /* of this rank */
    struct coordinator *coordinator; /* on rank 0, else NULL */
    struct wire_writer out, decided; /* messages: up the tree, down the tree */
    double now;                      /* of this step, by clock_now */
    struct run_log run_log;
    struct flight *flight; /* NULL: none */
    int group;             /* its number there */
    bool left;             /* this rank has sent LEAVE */
    struct tensor *joins;  /* a join that waits until this rank's rounds are over; NULL: none */
    struct tree tree;
    struct aggregate aggregate;
    struct watch watch;
    double reported; /* when the last send or receive was submitted whose wait was reported */
    const struct log *log;
    hvd_error lost; /* a rank is silent; code 0: none */
    int lost_rank;
    hvd_error abort_cause; /* of another rank's ABORT; code 0: none came */
    bool sent_abort;
    bool bye; /* every rank has left */
};

/* Rank 0 gets a coordinator of this configuration. negotiate_close also takes a zeroed struct. */
int negotiate_open(struct negotiation *n, struct transport *t, struct tensors *tensors,
                   const struct coordinator_config *config, const struct log *log, hvd_error *err);
void negotiate_close(struct negotiation *n);

/* Sends what was submitted, handles what arrived, decides. Sets *progress if it did anything. An
 * error ends the job: another rank's ABORT, a rank that is silent, or this rank's own failure. */
int negotiate_step(struct negotiation *n, bool *progress, hvd_error *err);

/* Tells the other ranks, as far as possible, that this rank can't go on. */
void negotiate_abort(struct negotiation *n, const hvd_error *why);

/* A batch of the run log has run. */
void negotiate_finished(struct negotiation *n);

/* ---- rank 0 gives its coordinator what the ranks report ---- */
/* Batches and pieces for which equal inputs give equal bits. */
void coordinate_in_order(struct coordinator_config *c, const struct comm *all);

/* ---- follow.c: each rank reports its tensors and follows what was decided ---- */
/* Adds to the message to the coordinator all that was submitted since the last call. */
int follow_report(struct negotiation *n, hvd_error *err);

/* A message of a round without the coordinator, to whom a tensor may come back. */
int follow_round(struct negotiation *n, struct message *m, hvd_error *err);

/* Reports, after all that was submitted so far, that this rank submits nothing any more. Once; call
 * it until it has left. */
int follow_leave(struct negotiation *n, const char *reason, hvd_error *err);

/* One item from the coordinator: a part of a batch, an error, a question. */
int follow_decision(struct negotiation *n, int from, const struct wire_item *item, hvd_error *err);

/* Another rank's ABORT: keeps its text and fails with it. */
int follow_abort(struct negotiation *n, const struct wire_item *item, hvd_error *err);

/* ---- silence.c: ranks that do not answer ----
 *
 * A member waits for the coordinator and for those that pass its decisions on; the coordinator for
 * all ranks. */
/* Seconds until tensors are reported, or fail; 0: never. The transport has the limit of waits for
 * data. */
void silence_limits(struct negotiation *n, const struct options *options);

/* Call it in each step. Reports stalls and silence; fails after the limit with HVD_RANK_DEAD. */
int silence_look(struct negotiation *n, hvd_error *err);

/* Another rank asks whether this one is there. */
int silence_answer(struct negotiation *n, int from, hvd_error *err);

/* The coordinator's report of a silent rank, for the other ranks that wait. */
void silence_report(struct negotiation *n, int rank, const char *text);

/* Adds to a failure of data which ranks do not answer. */
void silence_blame(const struct negotiation *n, hvd_error *why);

#endif

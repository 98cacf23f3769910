/* Negotiation: between this rank and the coordinator, up to the run log.
 *
 * Submitted tensors become items of a message to the coordinator: the whole request the first time,
 * a cache id later. The coordinator's decisions become batches in the run log, or errors. Rank 0
 * calls its coordinator directly, without the transport. Messages go up and down the tree. The
 * stepping thread; nothing blocks. */
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
    struct cache *cache;             /* what this rank knows about its own tensors */
    struct coordinator *coordinator; /* on rank 0, else NULL */
    struct wire_writer out, decided; /* messages that go up the tree, and down the tree */
    double now;                      /* time of this step, by clock_now */
    struct run_log run_log;
    struct flight *flight; /* the flight recorder; NULL: none */
    int group;             /* the group's number in the flight recorder */
    bool left;             /* this rank has sent LEAVE */
    struct tensor *joins;  /* a join that waits until this rank's rounds are over; NULL: none */
    struct tree tree;
    struct aggregate aggregate;
    struct watch watch;
    double reported; /* submission time of the last send or receive whose wait was reported */
    const struct log *log;
    hvd_error lost; /* the error about a silent rank; code 0: no rank is silent */
    int lost_rank;
    hvd_error abort_cause; /* the cause in another rank's ABORT; code 0: no ABORT came */
    bool sent_abort;
    bool bye; /* every rank has left */
};

/* Rank 0 opens a coordinator of this configuration. negotiate_close also accepts a zeroed
 * struct. */
int negotiate_open(struct negotiation *n, struct transport *t, struct tensors *tensors,
                   const struct coordinator_config *config, const struct log *log, hvd_error *err);
void negotiate_close(struct negotiation *n);

/* Reports submitted tensors, handles messages, decides. Sets *progress if there was anything to
 * do. An error ends the job: another rank's ABORT, a silent rank, or this rank's own failure. */
int negotiate_step(struct negotiation *n, bool *progress, hvd_error *err);

/* Tells the other ranks, as far as possible, that this rank can't go on. */
void negotiate_abort(struct negotiation *n, const hvd_error *why);

/* The oldest batch of the run log has finished. */
void negotiate_finished(struct negotiation *n);

/* ---- rank 0: its coordinator ---- */
/* Configures batches and pieces so that equal inputs give equal bits. */
void coordinate_in_order(struct coordinator_config *c, const struct comm *all);

/* ---- follow.c: each rank reports its tensors and follows the decisions ---- */
/* Adds the tensors submitted since the last call to the message to the coordinator. */
int follow_report(struct negotiation *n, hvd_error *err);

/* Takes a message of a round of the fast path. Reports the tensor that comes back from the
 * round, if any. */
int follow_round(struct negotiation *n, struct message *m, hvd_error *err);

/* Reports, after all submitted tensors, that this rank submits nothing more. Call it until n->left;
 * it reports once. */
int follow_leave(struct negotiation *n, const char *reason, hvd_error *err);

/* Follows one item from the coordinator: a part of a batch, an error, or a question. */
int follow_decision(struct negotiation *n, int from, const struct wire_item *item, hvd_error *err);

/* Takes another rank's ABORT: keeps its text and fails with this text. */
int follow_abort(struct negotiation *n, const struct wire_item *item, hvd_error *err);

/* ---- silence.c: ranks that do not answer ----
 *
 * The coordinator waits for all ranks. Another rank waits for the coordinator, for the ranks
 * between them in the tree, and for the peers of its sends and receives. */
/* Takes the limits from the options: seconds until a silent rank is reported, and until it fails
 * the job; 0: never. */
void silence_limits(struct negotiation *n, const struct options *options);

/* Reports stalls and silent ranks; fails with HVD_RANK_DEAD when a rank has been silent beyond
 * the limit. Called in each step. */
int silence_look(struct negotiation *n, hvd_error *err);

/* Answers another rank's ASK. */
int silence_answer(struct negotiation *n, int from, hvd_error *err);

/* Takes the coordinator's report of a silent rank, and logs it if this rank waits for a tensor. */
void silence_report(struct negotiation *n, int rank, const char *text);

/* Adds the silent ranks to the text and the causes of a failed transfer's error. */
void silence_blame(const struct negotiation *n, hvd_error *why);

#endif

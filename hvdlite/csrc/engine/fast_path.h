/* The fast path: small collectives that repeat and whose callers wait, without negotiation.
 *
 * When every rank has submitted a tensor and waits for it, the tensor's name gets a place. Each
 * later use of the name is a round of that place. Rounds have two forms; the ranks of a group use
 * one or none:
 *
 *   fast_window.c   all ranks share a window: any thread runs a round in the caller's place
 *   fast_hosts.c    each rank is alone on its host: the stepping thread runs rounds, by messages
 *
 * A round closes when a rank is late, has joined, leaves or brings a different tensor. Then every
 * rank submits its tensor to the engine, which reports stalls, deaths and disagreement.
 *
 * Ranks agree on places and rounds without a message, because the coordinator's decisions arrive in
 * one order on all ranks: each decision on a tensor opens a generation, whose rounds count from 0.
 * A rank that submits the tensor to the engine skips the generation's other rounds. So in a
 * generation every rank makes the same uses, and the data of two uses never meets in one round. */
#ifndef HVDLITE_ENGINE_FAST_PATH_H
#define HVDLITE_ENGINE_FAST_PATH_H

#include "engine/execute.h"
#include "engine/tensors.h"

#include <stdatomic.h>

struct fast_note;
struct message;
struct window;
struct transport;

/* Rounds in a window. */
struct window_rounds {
    struct window *window; /* NULL: rounds by window are off */
    size_t used;           /* bytes of the window that places use; only for the stepping thread */
    atomic_bool opens;     /* a place exists */
    atomic_bool over;      /* every rank has left: the engine sees no more deaths */
    atomic_int awaited;    /* 1 + the local rank whose sums a thread waits for; 0: none */
    atomic_int silent;     /* 1 + the local rank whose sums are overdue; 0: none */
};

/* Rounds by messages; only for the stepping thread. */
struct host_rounds {
    bool on;                 /* false: rounds by messages are off */
    struct fast_note *notes; /* received messages of rounds to which this rank has not come */
    size_t coming;           /* number of unfinished rounds to which this rank has come */
    bool joined;             /* this rank has joined, so it comes to no rounds */
    double due;              /* the time at which the first round will have waited too long */
};

struct fast_path {
    struct transport *transport;
    struct executor *by;       /* counts the rounds in its statistics */
    const atomic_bool *failed; /* the engine has failed */
    int group;                 /* number of the group in the flight recorder */
    struct mutex mutex;        /* guards the names; tensors are added and places opened under it */
    struct map names;
    /* Only for the stepping thread: */
    struct fast_place *places;
    uint32_t nplaces;
    bool fails; /* a place got no memory: no more places */
    struct window_rounds shared;
    struct host_rounds hosts;
};

/* by: need not be ready yet. by_messages: rounds between hosts are allowed. */
void fast_path_open(struct fast_path *x, struct transport *t, struct executor *by,
                    const atomic_bool *failed, int group, bool by_messages);
void fast_path_close(struct fast_path *x);

/* Tells that all ranks have submitted the tensor, and wait for it. The stepping thread calls this,
 * in the order of the coordinator's decisions. */
int fast_path_agreed(struct fast_path *x, const struct tensor *tensor, hvd_error *err);

/* ---- rounds in a window ---- */

/* Any thread. Runs a round with the ranks that wait now, and completes the tensor. False: submit
 * the tensor to the engine. */
bool fast_window_run(struct fast_path *x, struct tensor *tensor);

/* tensors_add, for a tensor that goes to the engine. While a thread is in a round of the name, a
 * tensor that may queue behind another waits; any other tensor fails. */
int fast_window_submit(struct fast_path *x, struct tensors *tensors, struct tensor *tensor,
                       bool *corked, hvd_error *err);

/* The rank whose sums a thread has waited for so long that it may have stopped; -1: none. */
int fast_window_awaits(const struct fast_path *x);
/* Fails if a rank is silent in a round that can't end without it. The stepping thread. */
int fast_window_check(const struct fast_path *x, hvd_error *err);

/* ---- rounds by messages: the stepping thread ---- */

/* Call it before the tensor is reported to the coordinator. *comes: do not report the tensor: a
 * round completes it, or fast_hosts_take returns it. */
int fast_hosts_come(struct fast_path *x, struct tensor *tensor, double now, bool *comes,
                    hvd_error *err);
/* Call it in join(), while no round is in progress: this rank comes to no rounds until `joined`
 * is false again. */
int fast_hosts_join(struct fast_path *x, double now, hvd_error *err);
bool fast_hosts_is_message(const struct message *m);
/* Takes the message's data. *back: a tensor to report to the coordinator; NULL: none. */
int fast_hosts_take(struct fast_path *x, struct message *m, struct tensor **back, hvd_error *err);
/* Asks the ranks whose messages are overdue. Call it often. */
int fast_hosts_ask(struct fast_path *x, double now, hvd_error *err);
double fast_hosts_sleep(const struct fast_path *x, double now, double longest);

#endif

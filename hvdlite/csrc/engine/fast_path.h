/* The fast path runs small collectives without negotiation, if they repeat and their callers wait.
 *
 * When every rank has submitted a tensor and waits for it, the tensor's name gets a place, the fast
 * path's data for this name. Each later use of the name is a round of the place. There are two
 * kinds of rounds; a group of ranks uses one kind or none:
 *
 *   fast_window.c   all ranks share a window: the calling thread runs the round itself
 *   fast_hosts.c    each rank has its own host: the stepping thread runs rounds, with messages
 *
 * A round closes, without a result, if a rank is late, has joined, leaves or has another tensor.
 * Then every rank submits its tensor to the engine, which reports stalls, deaths and disagreements.
 *
 * Ranks agree on places and rounds without messages, because all ranks see the coordinator's
 * decisions in the same order. Each decision on a tensor starts a generation, whose rounds count
 * from 0. A rank that submits the tensor to the engine skips the remaining rounds of the
 * generation. So a generation contains the same uses of the name on every rank, and no round mixes
 * the data of two uses. */
#ifndef HVDLITE_ENGINE_FAST_PATH_H
#define HVDLITE_ENGINE_FAST_PATH_H

#include "engine/execute.h"
#include "engine/tensors.h"

#include <stdatomic.h>

struct fast_note;
struct message;
struct window;
struct transport;

/* The fast path in a window. */
struct window_rounds {
    struct window *window; /* NULL: no collectives run in a window */
    size_t used;           /* bytes of the window that tensors use; only for the stepping thread */
    atomic_bool opens;     /* some tensor may run in the window */
    atomic_bool over;      /* every rank has left, so the engine sees no more deaths */
    /* 1 + the local rank whose sums a thread waits for; 0: no thread waits */
    atomic_int awaited;
    atomic_int silent; /* 1 + the local rank whose sums are overdue; 0: none */
};

/* The fast path with messages; only for the stepping thread. */
struct host_rounds {
    bool on;                 /* false: no collectives run with messages */
    struct fast_note *notes; /* messages of collectives that this rank has not begun */
    size_t entered;          /* number of collectives that this rank has begun and not ended */
    bool joined;             /* this rank has joined, so it begins no collective */
    double due;              /* time at which to ask for the first overdue message */
};

struct fast_path {
    struct transport *transport;
    struct executor *by;       /* the executor whose statistics count the collectives */
    const atomic_bool *failed; /* true: the engine has failed */
    int group;                 /* number of the group in the flight recorder */
    /* guards the names; held while a tensor is added, or may use the fast path from now on */
    struct mutex mutex;
    struct map names;
    /* Only for the stepping thread: */
    struct fast_place *places;
    uint32_t nplaces;
    bool fails; /* memory for a struct fast_place was short, so no more are made */
    struct window_rounds shared;
    struct host_rounds hosts;
};

/* `by` may be opened after this call. by_messages: the fast path may use messages. */
void fast_path_open(struct fast_path *x, struct transport *t, struct executor *by,
                    const atomic_bool *failed, int group, bool by_messages);
void fast_path_close(struct fast_path *x);

/* Records that all ranks have submitted the tensor and wait for it. The stepping thread calls this
 * function, in the order of the coordinator's decisions. */
int fast_path_agreed(struct fast_path *x, const struct tensor *tensor, hvd_error *err);

/* ---- the fast path in a window ---- */

/* Any thread. Runs the collective if all ranks of the host wait for it now, and completes the
 * tensor. False: submit the tensor to the engine instead. */
bool fast_window_run(struct fast_path *x, struct tensor *tensor);

/* Like tensors_add, for a tensor that goes to the engine. While the fast path runs a tensor of the
 * same name, this function waits if tensor->queued is set, and fails if it is not. */
int fast_window_submit(struct fast_path *x, struct tensors *tensors, struct tensor *tensor,
                       bool *corked, hvd_error *err);

/* Returns a rank for whose sums a thread of this rank has waited long, so that the engine asks
 * whether the rank is stopped. -1: no thread waits long. */
int fast_window_awaits(const struct fast_path *x);
/* Only the stepping thread. Fails if a rank is silent in a collective that can't end without it. */
int fast_window_check(const struct fast_path *x, hvd_error *err);

/* ---- the fast path with messages: for the stepping thread ---- */

/* Call it before the tensor is reported to the coordinator. If it sets *entered, do not report the
 * tensor: either the fast path completes it, or fast_hosts_receive returns it in *back. */
int fast_hosts_enter(struct fast_path *x, struct tensor *tensor, double now, bool *entered,
                     hvd_error *err);
/* Call it in join(), when no fast-path collective is in progress: this rank begins none until
 * `joined` is false again. */
int fast_hosts_join(struct fast_path *x, double now, hvd_error *err);
bool fast_hosts_is_message(const struct message *m);
/* Takes over the message's data. *back: a tensor that must now be reported to the coordinator;
 * NULL: none. */
int fast_hosts_receive(struct fast_path *x, struct message *m, double now, struct tensor **back,
                       hvd_error *err);
/* Asks the ranks whose messages are overdue. Call it often. */
int fast_hosts_ask(struct fast_path *x, double now, hvd_error *err);
/* Returns for how many seconds this rank may sleep: at most `longest`. */
double fast_hosts_sleep(const struct fast_path *x, double now, double longest);

#endif

/* Cliques: the ordered ranks whose devices one collective of an XLA program joins.
 *
 * XLA asks for a communicator by Comm_split, which passes no list of members. So Python announces
 * the members first; a split that nobody announced gets a clique whose collectives fail. Before a
 * program runs, Python opens groups of the core for its cliques. XLA calls from several threads;
 * the mutex of a clique guards its plans and its all_to_all. */
#ifndef HVDLITE_JAX_CLIQUE_H
#define HVDLITE_JAX_CLIQUE_H

#include "core.h"

#include <pthread.h>
#include <stdatomic.h>

/* The library's state, which is global because MPI's functions have no argument for it. */
extern struct library {
    struct core core;
    int rank, size;             /* of the job; size 0: not begun */
    pthread_mutex_t announcing; /* guards the rest; Python announces one clique at a time */
    struct clique *expected;
    int color;  /* of the expected one */
    bool taken; /* XLA has made its communicator */
} library;

/* A clique has a group of the core, or one of these. */
enum {
    CLIQUE_CLOSED = -1,  /* collectives fail */
    CLIQUE_WARMING = -2, /* XLA makes the communicator; nothing is sent */
};

enum { PLANS = 64 };

struct clique {
    pthread_mutex_t mutex;
    atomic_int group;
    int rank, size;
    int *members;              /* ranks of the job, in the order of the devices; after `parts` */
    char name[200];            /* of its tensors: "jax.0,1,2" */
    struct plan *plans[PLANS]; /* collectives and messages that have run before */
    int steps;                 /* of an all_to_all that have come */
    char *scratch;             /* of `room` bytes: what all ranks send, and what comes */
    int64_t room;
    struct noted { /* the receive of a ppermute of two ranks, until its send; NULL: none */
        void *out;
        int64_t bytes;
        int from;
    } noted;
    struct part { /* [rank]: what XLA's all_to_all sends and receives */
        const void *in;
        void *out;
    } parts[];
};

/* The text of this thread's last failure, for Error_string. */
extern _Thread_local char clique_failure[1024];
int clique_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the clique for a split. NULL: a failure. */
struct clique *clique_split(int color, int key);

/* Memory of at least so many bytes, until the next call. NULL: a failure. */
char *clique_scratch(struct clique *c, int64_t bytes);
/* Runs a collective to its end. 0, or a failure. */
int clique_run(struct clique *c, const hvd_tensor *tensor);
/* Starts a message to or from `root`, a rank of the clique. NULL: a failure. */
struct plan *clique_start(struct clique *c, const hvd_tensor *tensor);
/* Waits for a message, which may be NULL. 0, or a failure. */
int clique_end(struct plan *message);

#endif

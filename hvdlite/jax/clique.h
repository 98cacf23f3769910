/* Cliques: the ordered ranks whose devices one collective of an XLA program joins.
 *
 * XLA asks for a communicator by Comm_split, which passes no list of members. So Python announces
 * the members first; a split that nobody announced gets a clique whose collectives fail. Before a
 * program runs, Python opens groups of the core for its cliques. XLA calls from several threads,
 * but makes the calls for one clique one after another. */
#ifndef HVDLITE_JAX_CLIQUE_H
#define HVDLITE_JAX_CLIQUE_H

#include "functions.h"

#include <pthread.h>
#include <stdatomic.h>

#define API __attribute__((visibility("default")))

/* The library's state, which is global because MPI's functions have no argument for it. */
extern struct library {
    struct core core;
    int rank, size;                     /* of the job; size 0: not begun */
    _Atomic(struct clique *) announced; /* NULL: none, or XLA has made its communicator */
    pthread_mutex_t mutex;              /* guards the plans of all cliques */
} library;

/* A clique has a group of the core, or one of these. */
enum {
    CLIQUE_CLOSED = -1,  /* collectives fail */
    CLIQUE_WARMING = -2, /* XLA makes the communicator; nothing is sent */
};

/* A plan of the core for a collective or a message that has run before. */
struct plan {
    hvd_handle *handle; /* NULL: there is none */
    int64_t like[5];    /* kind, dtype, op, root and count */
    atomic_bool taken;  /* by a call that has not ended */
    bool done;          /* the run of that call, without an error */
};
/* Most plans that a clique keeps, so that programs for ever new shapes do not fill the memory. */
enum { PLANS = 256 };

struct clique {
    atomic_int group;
    int rank, size;
    int color;      /* of its split */
    char name[200]; /* of its tensors: "jax.0,1,2" */
    struct plan plans[PLANS];
    int steps;     /* of an all_to_all that have come */
    char *scratch; /* of `room` bytes: what all ranks send, and what comes */
    int64_t room;
    struct noted { /* the receive of a ppermute; below 0 bytes: none */
        void *out;
        int64_t bytes;
        int from;
    } noted;
    struct member {
        int rank;  /* in the job */
        void *out; /* where XLA's all_to_all wants what this member sends */
    } members[];
};

/* The text of this thread's last failure, for Error_string. */
extern _Thread_local char clique_failure[1024];
int clique_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the clique for a split. NULL: a failure. */
struct clique *clique_split(int color, int key);

/* Memory of at least so many bytes, until the next call. NULL: a failure. */
char *clique_scratch(struct clique *c, int64_t bytes);
/* Runs a collective, or a message to or from `root`, a rank of the clique, to its end. 0, or a
 * failure. */
int clique_run(struct clique *c, const hvd_tensor *tensor);
/* Starts a message. NULL: a failure. */
struct plan *clique_start(struct clique *c, const hvd_tensor *tensor);
/* Waits for a message. 0, or a failure. */
int clique_end(struct plan *message);

#endif

/* Cliques: the ordered ranks whose devices one collective of an XLA program joins.
 *
 * XLA asks for a communicator by Comm_split, which passes no list of members. So Python announces
 * the members first; a split that nobody announced gets a clique whose collectives fail. A group of
 * the core opens at the first collective of a clique, among its members alone. XLA calls from
 * several threads; the mutex of a clique guards its state and its plans. */
#ifndef HVDLITE_JAX_CLIQUE_H
#define HVDLITE_JAX_CLIQUE_H

#include "core.h"

#include <pthread.h>

#define API __attribute__((visibility("default")))

/* The library's state, which is global because MPI's functions have no argument for it. */
extern struct library {
    struct core core;
    /* Opens a group of these ranks over the job's transport. Returns its number, or -1 and a
     * text. */
    int (*open)(const int *ranks, int size, char *text, int room);
    int rank, size;             /* this rank in the job; size of the job */
    pthread_mutex_t announcing; /* guards the following; Python announces one clique at a time */
    struct clique *expected, *warming;
    int color; /* color of the announced clique */
} library;

enum clique_state {
    CLIQUE_WARMING,   /* XLA makes its communicator; nothing is sent */
    CLIQUE_ANNOUNCED, /* the members are known; no group is open yet */
    CLIQUE_OPEN,
    CLIQUE_REFUSED /* `why` says why each collective fails */
};

enum { PLANS = 64 };

struct clique {
    pthread_mutex_t mutex;
    enum clique_state state;
    int group; /* number of the core's group, once it is open */
    int rank, size;
    int *members;   /* ranks of the job, in the order of the devices; after `parts` */
    char name[200]; /* name of its tensors, such as "jax.0,1,2" */
    char why[512];
    struct plan *plans[PLANS]; /* plans of collectives that have run before */
    int steps;                 /* Sendrecv calls of the present all_to_all so far */
    char *scratch;             /* twice `room` bytes: packed data to send, and received data */
    int64_t room;
    struct part { /* by rank: what XLA's all_to_all sends and receives */
        const void *in;
        void *out;
    } parts[];
};

/* The text of this thread's last failure, for Error_string. */
extern _Thread_local char clique_failure[1024];
int clique_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the clique for a split. NULL: a failure. */
struct clique *clique_split(int color, int key);
/* Whether XLA is making this clique's communicator. */
bool clique_is_warming(struct clique *c);

/* Runs a collective to its end. 0, or a failure. */
int clique_run(struct clique *c, const hvd_tensor *tensor);
/* Starts a message to or from `root`, a rank of the clique. NULL: a failure. */
hvd_handle *clique_start(struct clique *c, const hvd_tensor *tensor);
/* Waits for a message and frees its handle, which may be NULL. 0, or a failure. */
int clique_end(hvd_handle *handle);

#endif

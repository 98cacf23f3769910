/* Cliques: the ordered ranks whose devices take part in one collective of an XLA program.
 *
 * XLA asks for a communicator with Comm_split, which passes no list of members. So Python announces
 * the members first. If nobody announced a split, its clique's collectives fail. Before a program
 * runs, Python opens groups of the core for the program's cliques. XLA calls from several threads,
 * but makes the calls for one clique one after another. */
#ifndef HVDLITE_JAX_CLIQUE_H
#define HVDLITE_JAX_CLIQUE_H

#include "functions.h"

#include <pthread.h>
#include <stdatomic.h>

#define API __attribute__((visibility("default")))

/* The library's state; global, because MPI's functions have no argument for it. */
extern struct library {
    struct core core;
    int rank, size;                     /* of this rank in the job; size 0: not begun */
    _Atomic(struct clique *) announced; /* NULL: none, or XLA has made its communicator already */
    pthread_mutex_t mutex;              /* guards the plans of all cliques */
} library;

/* A clique has the number of a group of the core, or one of these values. */
enum {
    CLIQUE_CLOSED = -1,  /* its collectives fail */
    CLIQUE_WARMING = -2, /* XLA is making the communicator; nothing is sent */
};

/* A plan of the core, for a collective or message that has run before. */
struct plan {
    hvd_handle *handle; /* NULL: no plan */
    int64_t like[6];    /* kind, dtype, op, root and dimensions */
    atomic_bool taken;  /* a call that has not ended uses it */
    bool done;          /* that call's run has ended without an error */
};
/* The most plans that a clique keeps. The limit bounds the memory of programs that use new shapes
 * again and again. */
enum { PLANS = 256 };

struct clique {
    atomic_int group;
    int rank, size;
    int color;      /* color of its split */
    char name[200]; /* prefix of its tensors: "jax.0,1,2" */
    struct plan plans[PLANS];
    int steps;     /* how many steps of the present all_to_all have been called */
    char *scratch; /* `room` bytes: what all ranks send, and what arrives */
    int64_t room;
    struct noted { /* the receive of a ppermute; bytes < 0: none */
        void *out;
        int64_t bytes;
        int from;
    } noted;
    struct member {
        int rank;  /* rank in the job */
        void *out; /* where XLA's all_to_all wants the data from this member */
    } members[];
};

/* Text of this thread's last failure, for Error_string. */
extern _Thread_local char clique_failure[1024];
int clique_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Returns the clique for a split. NULL: failure. */
struct clique *clique_split(int color, int key);

/* Returns at least `bytes` of memory, valid until the next call. NULL: failure. */
char *clique_scratch(struct clique *c, int64_t bytes);
/* Runs a collective, or a message to or from `root` (a rank of the clique), until it ends. Returns
 * 0, or another value after a failure. */
int clique_run(struct clique *c, const hvd_tensor *tensor);
/* Starts a message. NULL: failure. */
struct plan *clique_start(struct clique *c, const hvd_tensor *tensor);
/* Waits for a message. Returns 0, or another value after a failure. */
int clique_end(struct plan *message);

#endif

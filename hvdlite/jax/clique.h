/* Cliques: the ordered ranks whose devices one collective of an XLA program joins.
 *
 * XLA asks for a communicator by Comm_split, which passes no list of members. So Python announces
 * the members first (clique_expect); a split that nobody announced gets a clique whose collectives
 * fail. A group of the core opens at the first collective of a clique, among its members alone.
 * XLA calls from several threads; the mutex of a clique guards its state and its plans. */
#ifndef HVDLITE_JAX_CLIQUE_H
#define HVDLITE_JAX_CLIQUE_H

#include "core.h"

#include <pthread.h>

/* What the job has told this library. */
extern struct core core;
extern struct job {
    /* Opens a group among these ranks, over the job's transport. Its number, or -1 and a text. */
    int (*open)(const int *ranks, int size, int number, char *text, int room);
    int rank, size;
    double patience; /* seconds that the members of a clique wait for each other */
} job;

enum clique_state {
    CLIQUE_WARMING,   /* XLA makes its communicator; nothing is sent */
    CLIQUE_ANNOUNCED, /* the members are known; no group is open yet */
    CLIQUE_OPEN,
    CLIQUE_REFUSED /* `why` says why each collective fails */
};

struct plan; /* a collective that has run before */
enum { PLANS = 64 };

struct clique {
    pthread_mutex_t mutex;
    enum clique_state state;
    int number; /* equal on all members; no other clique of this process has the number */
    int group;  /* of the core, once open */
    int rank, size;
    int *members;   /* ranks of the job, in the order of the devices */
    char name[200]; /* of its tensors: "jax.0,1,2" */
    char why[512];
    struct plan *plans[PLANS];
};

/* The text of this thread's last failure, for Error_string. */
extern _Thread_local char clique_failure[1024];
int clique_fail(const hvd_error *err);
int clique_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The clique of all ranks. */
struct clique *clique_world(void);

/* The clique that the next split by this color and key makes. */
void clique_expect(const int *members, int size, int rank, int color, int number);
/* Ends the warming. 1: XLA has made the communicator. `why`: NULL, or why it cannot be used. */
int clique_expected(const char *why);
/* The clique for a split; never NULL. */
struct clique *clique_split(int color, int key);
/* Whether XLA is making this clique's communicator. */
bool clique_is_warming(struct clique *c);

/* Makes sure that the clique's group is open. The caller holds the mutex. 0, or a failure. */
int clique_open(struct clique *c);
/* Runs a collective to its end. 0, or a failure. */
int clique_run(struct clique *c, const hvd_tensor *tensor);
/* Starts a message between two ranks of the clique. NULL: a failure. */
hvd_handle *clique_start(struct clique *c, const hvd_tensor *tensor);
/* Waits for a message and frees its handle, which may be NULL. 0, or a failure. */
int clique_end(hvd_handle *handle);

#endif

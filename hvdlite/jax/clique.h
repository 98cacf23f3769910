/* Cliques: the ordered ranks whose devices take part in one collective of an XLA program.
 *
 * XLA asks for a communicator with Comm_split. Comm_split passes no list of members, so Python
 * announces the members first. If nobody announced a split, its collectives fail. Before a program
 * runs, Python opens groups of the core for the program's cliques. XLA calls from several threads,
 * but makes the calls for one clique one after another. */
#ifndef HVDLITE_JAX_CLIQUE_H
#define HVDLITE_JAX_CLIQUE_H

#include "functions.h"

#include <stdatomic.h>

#define API __attribute__((visibility("default")))

/* A plan of the core, for a collective or message that has run before. */
struct plan {
    hvd_handle *handle; /* NULL: no plan */
    int64_t like[6];    /* kind, dtype, op, root and dimensions */
    bool taken;         /* a call that has not ended uses it */
    bool done;          /* that call's run has ended without an error */
};
/* Limit on the plans of a clique: more than a program's tensors (ResNet-50 has 161 gradients), but
 * few enough to bound the memory of programs that use new shapes again and again. */
enum { PLANS = 256 };

/* cdef begin */
enum { CLIQUE_NAME = 199 }; /* limit on the bytes of a clique's name, which begins tensors' names */
/* cdef end */

struct clique {
    atomic_int group; /* the clique's group in the core; < 0: none yet */
    int rank, size;
    int color;                  /* color of the clique's split */
    char name[CLIQUE_NAME + 1]; /* prefix of the tensors' names: "jax.0,1,2" */
    struct plan plans[PLANS];
    int steps; /* how many steps of the present all_to_all have been called */
    /* by rank of the clique: addresses of the all_to_all's parts for that rank and from that
     * rank */
    const void **parts_for;
    void **parts_from;
    struct noted { /* the receive of a ppermute; bytes < 0: none */
        void *out;
        int64_t bytes;
        int from;
    } noted;
    int *members;  /* ranks in the job */
    void *lists[]; /* parts_from, parts_for, members */
};

/* Global, because MPI's functions have no argument for it. calls.c has its own copy of the core's
 * functions: calls.c is another library, compiled later, and must not rely on this struct. */
extern struct jax {
    struct core core;
    /* the announced clique; NULL: none is announced, or XLA has made the clique's communicator */
    struct clique *_Atomic next;
    struct clique world; /* all ranks of the job; size 0: not begun; its collectives fail */
} jax;

/* Text of this thread's last failure, for Error_string. */
extern _Thread_local char clique_failure[1024];
int clique_refuse(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Starts a collective, or a message to or from `root` (a rank of the clique). Then waits for its
 * end, at most `seconds`; does not wait if `seconds` < 0. NULL: failure. */
struct plan *clique_start(struct clique *c, const hvd_tensor *tensor, double seconds);
/* Waits for the end. Returns 0, or another value after a failure. */
int clique_end(struct plan *started);
int clique_run(struct clique *c, const hvd_tensor *tensor);
/* Waits for all that has been started, with or without an error. */
void clique_settle(struct clique *c);

/* cdef begin */
/* Gets the core's functions and this rank's position in the job from Python. */
void hvdlite_jax_begin(core_finder *find, int rank, int size);
/* Announces the clique of the next split with this color and key. Only one clique can be announced
 * at a time. NULL: memory is short. */
struct clique *hvdlite_jax_announce(const char *name, const int *members, int size, int key,
                                    int color);
/* Withdraws the announcement. False: XLA has not asked for the clique. */
bool hvdlite_jax_withdraw(struct clique *c);
void hvdlite_jax_open(struct clique *c, int group);
/* cdef end */

#endif

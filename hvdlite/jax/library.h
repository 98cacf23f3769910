/* What Python calls in the library that jaxlib loads as its MPI (library.c).
 *
 * A clique is the ordered ranks whose devices take part in one collective of an XLA program. XLA
 * asks for a communicator with Comm_split. Comm_split passes no list of members, so Python
 * announces the members first. If nobody announced a split, its collectives fail. Before a program
 * runs, Python opens groups of the core for the program's cliques. */
#ifndef HVDLITE_JAX_LIBRARY_H
#define HVDLITE_JAX_LIBRARY_H

#include "functions.h"

struct clique;
int hvdlite_unused_function(void); /* fails; _build.py defines MPI's unused functions with it */

/* cdef begin */
enum { CLIQUE_NAME = 199 }; /* limit on the bytes of a clique's name, the name of its tensors */
/* Python calls this first, to pass the core's functions, and the rank and size of the job. */
void hvdlite_jax_begin(core_finder *find, int rank, int size);
/* Makes the clique that XLA's next MPI_Comm_split with this color and key returns. Only one clique
 * can wait for its split at a time. NULL: memory is short. */
struct clique *hvdlite_jax_announce(const char *name, int size, int key, int color);
/* Withdraws the announcement. False: XLA has not asked for the clique. */
bool hvdlite_jax_withdraw(struct clique *c);
/* Sets the number of the clique's group in the core. */
void hvdlite_jax_open(struct clique *c, int group);
/* cdef end */

#endif

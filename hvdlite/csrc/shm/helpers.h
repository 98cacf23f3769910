/* Helpers: threads that share the copies and sums of a rank's large collectives.
 *
 * All engines of the process share the same helpers. One engine at a time uses them; another
 * engine meanwhile works alone. The work is cut into as many parts as there are threads, the
 * engine's included. Any thread may do any part, so the engine does not wait for a helper that
 * gets no core. Helpers sleep between collectives, and during a collective while the engine
 * waits for long: so they never take a core from threads that compute. If helpers come too late
 * for their parts, the engine calls them more rarely. Helpers start at the first large
 * collective. */
#ifndef HVDLITE_SHM_HELPERS_H
#define HVDLITE_SHM_HELPERS_H

#include <stddef.h>

enum { HELPERS_MOST = 16 }; /* most threads of a rank, the engine's included */

struct helpers;

/* Does one part of some work. */
typedef void helpers_work(const void *arg, int part, int parts);

/* `threads`: number of threads of this rank, the engine's included. `spin`: seconds that a
 * helper spins for a collective's next work; 0 if there are more threads than cores: then a
 * helper that wakes up preempts no thread. Returns NULL for one thread, or without memory. */
struct helpers *helpers_new(int threads, double spin);
/* while no engine uses the helpers; NULL does nothing */
void helpers_free(struct helpers *h);
int helpers_threads(const struct helpers *h); /* 1 for NULL */

/* Begins a collective of so many bytes. Returns the number of parts into which its work is cut;
 * 1: the engine works alone. */
int helpers_begin(struct helpers *h, size_t bytes);
/* Returns when all parts are done. Only between begin and end, if begin did not return 1. */
void helpers_run(struct helpers *h, helpers_work *work, const void *arg);
void helpers_end(struct helpers *h, int parts);
/* Begin, run and end, for a collective that is one work. */
void helpers_do(struct helpers *h, size_t bytes, helpers_work *work, const void *arg);

#endif

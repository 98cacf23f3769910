/* Helpers: threads that share the copies and sums of a rank's large collectives.
 *
 * All engines of the process share the same helpers. One engine at a time uses them; another engine
 * meanwhile works alone. The work is cut into as many parts as there are threads, the engine's
 * included. Any thread may do any part, so the engine does not wait for a helper that gets no core.
 * Helpers sleep between collectives, and during a collective while the engine waits for long: they
 * never spin beside threads that compute. If helpers come too late for their parts, the engine
 * calls them more rarely. Helpers start at the first large collective. */
#ifndef HVDLITE_SHM_HELPERS_H
#define HVDLITE_SHM_HELPERS_H

#include <stddef.h>

enum { HELPERS_MOST = 16 }; /* threads, the engine's included */

struct helpers;

/* Does one part of some work. */
typedef void helpers_work(const void *arg, int part, int parts);

/* `threads`: of this rank, the engine's included. spin: seconds that a helper spins for the next
 * work of a collective; 0: there are more threads than cores, and a helper that wakes up takes no
 * core from a running thread. NULL: one thread, or no memory. */
struct helpers *helpers_new(int threads, double spin);
void helpers_free(struct helpers *h);         /* no engine uses them; NULL does nothing */
int helpers_threads(const struct helpers *h); /* NULL: 1 */

/* A collective of so many bytes begins. Returns into how many parts its work is cut. 1: the engine
 * works alone. */
int helpers_begin(struct helpers *h, size_t bytes);
/* Returns when all parts are done. Only between begin and end, if begin did not return 1. */
void helpers_run(struct helpers *h, helpers_work *work, const void *arg);
void helpers_end(struct helpers *h, int parts);
/* Begin, run and end, for a collective that is one work. */
void helpers_do(struct helpers *h, size_t bytes, helpers_work *work, const void *arg);

#endif

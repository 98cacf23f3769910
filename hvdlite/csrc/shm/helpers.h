/* Helpers: threads that share the copies and sums of a rank's large collectives.
 *
 * All engines of the process share the helpers. Only one thread uses them at a time; meanwhile
 * other engines work without helpers. Work is cut into as many parts as there are threads,
 * including the engine's thread. Any thread may do any part, so the engine never waits for a helper
 * that gets no core. Helpers sleep between collectives. During a collective a helper waits awake
 * for the engine's next call, but only for a short time, and only while no other thread can run on
 * the helper's core: a helper never spins beside a computing thread. If helpers start their parts
 * too late, the engine calls them less often. */
#ifndef HVDLITE_SHM_HELPERS_H
#define HVDLITE_SHM_HELPERS_H

#include "base/options.h"

#include <stddef.h>

struct helpers;

typedef void helpers_work(const void *arg, int part, int parts);

/* `threads`: number of threads of this rank, including the engine's. `spin`: seconds for which a
 * helper waits awake for the next work of a collective. Pass spin = 0 if there are more threads
 * than cores: then a helper sleeps immediately, and preempts no thread when it wakes up. `least`:
 * minimum bytes of a collective with helpers; 0: helpers_measure finds the minimum. Returns NULL
 * for one thread, or if memory is short. */
struct helpers *helpers_new(int threads, double spin, size_t least);
/* call it when no thread uses the helpers; NULL does nothing */
void helpers_free(struct helpers *h);
/* If the `least` of helpers_new was 0: starts the helpers and finds the smallest size at which they
 * make a copy faster. Call it on all ranks of the host at the same time, so that the measurement
 * shows whether helpers take cores from other ranks. Call it before any engine uses the helpers.
 * NULL does nothing. */
void helpers_measure(struct helpers *h);
int helpers_threads(const struct helpers *h);    /* returns 1 for NULL */
unsigned helpers_calls(const struct helpers *h); /* number of helpers_run so far, for tests */

/* Begins a collective of `bytes`. Returns the number of parts into which the work is cut; 1: the
 * engine works without helpers. */
int helpers_begin(struct helpers *h, size_t bytes);
/* Does the work; returns when all parts are done. Call it between helpers_begin and helpers_end,
 * and only if helpers_begin has returned more than 1. */
void helpers_run(struct helpers *h, helpers_work *work, const void *arg);
void helpers_end(struct helpers *h, int parts);
/* Calls helpers_begin, does the work, with helpers or without, and calls helpers_end. */
void helpers_do(struct helpers *h, size_t bytes, helpers_work *work, const void *arg);

#endif

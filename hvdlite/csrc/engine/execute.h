/* Execution of a batch: pack, one collective, unpack, complete.
 *
 * A batch of one tensor runs in the user's memory; several tensors are copied to the fusion buffer
 * and back, except on a window. execute_batch returns when this rank is done. The engine's thread,
 * unless marked otherwise. */
#ifndef HVDLITE_ENGINE_EXECUTE_H
#define HVDLITE_ENGINE_EXECUTE_H

#include "base/log.h"
#include "collectives/coded.h"
#include "engine/run_log.h"
#include "shm/regions.h"
#include "transport/comm.h"

#include <stdatomic.h>

struct executor {
    const struct comm *comm; /* all ranks of the group */
    struct tensors *tensors;
    const struct log *log;
    struct timeline *timeline;                /* NULL: none */
    struct flight *flight;                    /* the same */
    struct stats *stats;                      /* NULL: nothing is counted */
    struct scratch fusion, work, outer, list; /* kept between batches, which saves page faults */
    uint64_t turns;                           /* number of delegated tensors so far */
    /* algorithm of the last batch; NULL: no batch yet. Any thread reads it */
    _Atomic(const char *) algorithm;
};

/* Runs the batch and finishes its tensors; an error names the batch and leaves them unfinished. */
int execute_batch(struct executor *x, const struct batch *batch, hvd_error *err);
void execute_count(const struct executor *x,
                   size_t tensors); /* counts the tensors of a batch; any thread */
void execute_free(struct executor *x);

#endif

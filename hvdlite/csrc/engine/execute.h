/* Execution of a batch: pack, run one collective, unpack, complete.
 *
 * A batch of one tensor runs in the user's memory. Several tensors are copied to the fusion buffer
 * and back, unless the algorithm works in the tensors. execute_batch returns when this rank's work
 * is done. Only the engine's stepping thread calls these functions, unless marked "any thread". */
#ifndef HVDLITE_ENGINE_EXECUTE_H
#define HVDLITE_ENGINE_EXECUTE_H

#include "base/output.h"
#include "collectives/coded.h"
#include "engine/run_log.h"
#include "transport/comm.h"

#include <stdatomic.h>

struct executor {
    const struct comm *comm; /* all ranks of the group */
    struct tensors *tensors;
    const struct log *log;
    struct timeline *timeline;                /* NULL: no timeline */
    struct flight *flight;                    /* NULL: no recorder */
    struct stats *stats;                      /* NULL: nothing is counted */
    struct scratch fusion, work, outer, list; /* kept between batches, to avoid page faults */
    uint64_t turns; /* the last number that hvd_turn returns so far; 0: none */
    /* the last batch's algorithm; NULL: no batch has run. Any thread reads it */
    _Atomic(const char *) algorithm;
};

/* Runs the batch and completes its tensors. After an error the tensors stay in the table; the error
 * names the batch. */
int execute_batch(struct executor *x, const struct batch *batch, hvd_error *err);
/* Counts a batch with this number of tensors in the statistics. Any thread. */
void execute_count(const struct executor *x, size_t tensors);
void execute_free(struct executor *x);

/* ---- parts of an allgather, a reducescatter or an alltoall, one for each rank: parts.c ---- */
/* Sets the ends of the parts, the input and the output in `args`. For an alltoall, the ranks may
 * exchange their splits first. Allocates the tensor's output if the caller did not know its rows.
 * The ends are in x->fusion. */
int parts_prepare(struct executor *x, struct tensor *tensor, struct coll_args *args,
                  hvd_error *err);

#endif

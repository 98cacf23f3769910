/* Execution of a batch: pack, one collective, unpack, complete.
 *
 * Layer 4. A batch of one tensor runs in place in the user's memory; more are copied into the
 * fusion buffer and back. One thread, the engine's; returns when the batch is done on this rank. */
#ifndef HVDLITE_EXECUTE_H
#define HVDLITE_EXECUTE_H

#include "coll_coded.h"
#include "log.h"
#include "negotiate.h"
#include "regions.h"
#include "timeline.h"

#include <stdatomic.h>

struct executor {
    struct transport *t;
    struct tensors *tensors;
    const struct log *log;
    struct timeline *timeline;         /* NULL: none */
    struct stats *stats;               /* NULL: nothing is counted */
    struct scratch fusion, work, list; /* kept: the next batch pays no page faults */
    _Atomic(const char *) algorithm;   /* the last one's name; NULL: none yet. Any thread reads */
};

/* Runs the batch and finishes its tensors. On an error, which names the batch, they are unfinished.
 */
int execute_batch(struct executor *x, const struct batch *batch, hvd_error *err);
void execute_free(struct executor *x);

#endif

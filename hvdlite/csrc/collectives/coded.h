/* The allreduce of coded tensors: takes encoded messages, returns float32 sums of the decoded
 * values.
 *
 * Like the algorithms of coll.h, a function of the transport and its arguments. */
#ifndef HVDLITE_COLLECTIVES_CODED_H
#define HVDLITE_COLLECTIVES_CODED_H

#include "collectives/coll.h"
#include "kernels/codec.h"

struct coded_tensor {
    void *message; /* codec_bytes(n) bytes; the call overwrites a cast's message */
    float *out;    /* array of n */
    size_t n;
};

/* Equal on every rank except for the pointers. */
struct coded_args {
    struct codec codec;
    int contributors; /* number of ranks with data; the others have joined */
    struct reduce_final final;
    const struct coded_tensor *tensors;
    size_t ntensors;
    struct scratch *buffer;          /* memory for the messages */
    struct scratch *scratch, *outer; /* the buffers of coll_args */
};

struct coded_algorithm {
    const char *name;
    bool (*takes)(const struct comm *comm, const struct coded_args *args);
    int (*run)(const struct comm *comm, const struct coded_args *args, hvd_error *err);
};

/* The first row of the table that takes the collective. The last row takes every collective. */
const struct coded_algorithm *coded_choose(const struct comm *comm, const struct coded_args *args);

/* Chooses an algorithm and runs it. */
int coll_coded(const struct comm *comm, const struct coded_args *args, hvd_error *err);

/* One of the algorithms, for tests. Needs more than one rank, and codec_kernels() other than
 * NULL. */
int coll_coded_scattered(const struct comm *comm, const struct coded_args *args, hvd_error *err);

#endif

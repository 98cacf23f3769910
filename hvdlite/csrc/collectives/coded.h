/* Encodes tensors, and allreduces encoded tensors: the result is the float32 sums of the decoded
 * values of all ranks.
 *
 * Like the algorithms of coll.h, these functions depend only on the comm and their arguments. */
#ifndef HVDLITE_COLLECTIVES_CODED_H
#define HVDLITE_COLLECTIVES_CODED_H

#include "collectives/coll.h"
#include "kernels/codec.h"

struct coded_tensor {
    void *message; /* codec_bytes(n) bytes; float16 and bfloat16: the call overwrites them */
    float *out;    /* array of n */
    size_t n;
};

/* All fields except the pointers must be equal on all ranks. */
struct coded_args {
    struct codec codec;
    int contributors; /* number of ranks with data; the others have joined */
    struct reduce_final final;
    const struct coded_tensor *tensors;
    size_t ntensors;
    struct scratch *buffer;          /* memory for the messages */
    struct scratch *scratch, *outer; /* as in coll_args */
};

struct coded_algorithm {
    const char *name;
    bool (*takes)(const struct comm *comm, const struct coded_args *args);
    int (*run)(const struct comm *comm, const struct coded_args *args, hvd_error *err);
};

/* Returns the first row of the table that accepts the collective. The last row accepts every
 * collective. */
const struct coded_algorithm *coded_choose(const struct comm *comm, const struct coded_args *args);

/* Encodes n values on this rank; the rank's threads share the work. Any thread may call it. */
int coded_encode(const struct comm *comm, const struct codec_input *in, size_t n, hvd_error *err);

/* Chooses an algorithm and runs it. */
int coll_coded(const struct comm *comm, const struct coded_args *args, hvd_error *err);

/* The scattered allreduce, for tests. Needs several ranks, and a codec that has codec_kernels(). */
int coll_coded_scattered(const struct comm *comm, const struct coded_args *args, hvd_error *err);

#endif

/* Types that all layers use: kinds of collectives, dtypes, operations, limits, the topology.
 *
 * Ranks send these values to each other, and programs compile them in: append values, never
 * renumber. */
#ifndef HVDLITE_BASE_TYPES_H
#define HVDLITE_BASE_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* cdef begin */
typedef enum hvd_kind {
    HVD_ALLREDUCE = 0,
    HVD_BROADCAST,
    HVD_ALLGATHER,
    HVD_REDUCESCATTER,
    HVD_ALLTOALL,
    /* this rank has no more data: it contributes zeros until all ranks have joined */
    HVD_JOIN,
    HVD_KINDS, /* number of kinds in which all ranks take part; kinds between two ranks follow */
    HVD_SEND = 32,
    HVD_RECV
} hvd_kind;

typedef enum hvd_dtype {
    HVD_UINT8 = 0,
    HVD_INT8,
    HVD_INT32,
    HVD_INT64,
    HVD_FLOAT16,
    HVD_BFLOAT16,
    HVD_FLOAT32,
    HVD_FLOAT64,
    HVD_BOOL,
    HVD_INT16,
    HVD_UINT16,
    HVD_UINT32,
    HVD_UINT64,
    HVD_DTYPES
} hvd_dtype;

typedef enum hvd_op {
    HVD_SUM = 0,
    HVD_AVERAGE,
    HVD_MIN,
    HVD_MAX,
    HVD_PRODUCT,
    HVD_ADASUM,
    HVD_OPS
} hvd_op;

/* How the values of a float32 allreduce are encoded (kernels/codec.h). */
typedef enum hvd_codec {
    HVD_CODEC_NONE = 0,
    HVD_CODEC_FLOAT16,
    HVD_CODEC_BFLOAT16,
    HVD_CODEC_2BIT,
    HVD_CODEC_1BIT,
    HVD_CODEC_TOPK,
    HVD_CODECS
} hvd_codec;

/* How a float32 allreduce updates weights instead of storing its result (kernels/update.h). */
typedef enum hvd_rule {
    HVD_RULE_NONE = 0,
    HVD_SGD,
    HVD_SGD_MOMENTUM,
    HVD_NAG,
    HVD_ADAM,
    HVD_RULES
} hvd_rule;

/* Indices into hvd_update.rates. Each rule uses some of these parameters. */
typedef enum hvd_rate {
    HVD_LEARNING_RATE = 0,
    HVD_WEIGHT_DECAY,
    HVD_RESCALE,  /* multiplies the result of the allreduce */
    HVD_CLIP,     /* limit of the rescaled gradient; negative: no limit */
    HVD_MOMENTUM, /* Adam: beta1 */
    HVD_BETA2,
    HVD_EPSILON,
    HVD_RATES
} hvd_rate;

/* Bytes of a stripe. A tensor of at least one stripe can be dealt: its stripes go to the hosts of
 * the job in turn. Only the host that gets a stripe has the stripe's optimizer states. */
#define HVD_STRIPE 65536

/* An update of weights. A host has one copy of the weights; each rank passes the address at which
 * this rank maps them. */
typedef struct hvd_update {
    int rule; /* hvd_rule; equal on all ranks */
    float rates[HVD_RATES];
    float *weights; /* one weight for each value of the tensor */
    /* Optimizer states, one for each value: the momentum, or Adam's mean and variance; NULL if the
     * rule has fewer states. For a dealt tensor: only the states of this host's stripes, one stripe
     * after the other. */
    float *states[2];
    int dealt; /* 1: the tensor is dealt, else 0; equal on all ranks */
    int first; /* number of the host that gets the first stripe; equal on all ranks */
} hvd_update;

#define HVD_MAX_DIMS 32 /* NumPy has the same limit */

/* The position of this process in the job. A host is a set of ranks that can share memory. */
typedef struct hvd_topology {
    int rank, size;             /* among all ranks of the job */
    int local_rank, local_size; /* among the ranks of this host */
    int cross_rank, cross_size; /* among the ranks with this local rank, one per host */
} hvd_topology;

/* Connected stream sockets to the other ranks of a job that does not use MPI. */
typedef struct hvd_sockets {
    int rank, size;
    const int *lowest; /* array of size: the lowest rank of each rank's host */
    const int *data;   /* array of size: descriptors of the data streams; -1 at index `rank` */
    /* array of size: message streams, for negotiation; if a stream ends without a farewell, the
     * other rank has died */
    const int *messages;
} hvd_sockets;

/* Ranks that MPI connects. */
typedef struct hvd_by_mpi {
    void (*open)(void); /* transport_mpi_open of the library for this MPI (transports.h) */
    const void *comm;   /* address of the MPI_Comm of these ranks */
} hvd_by_mpi;
/* cdef end */

#define IS_UNSIGNED(TYPE) ((TYPE) - 1 > 0) /* in an unsigned type, -1 is the largest number */

/* One row for each dtype: the suffix of HVD_..., the name, the class, the type of an element and
 * the type of the accumulator. The other columns serve the kernels of the class (kernels/reduce.c).
 * FLOAT: functions that convert to and from the accumulator. INTEGER, TRUTH: the unsigned type that
 * sums are computed in. */
#define DTYPES(ROW)                                                                                \
    ROW(UINT8, "uint8", INTEGER, uint8_t, int32_t, uint32_t)                                       \
    ROW(INT8, "int8", INTEGER, int8_t, int32_t, uint32_t)                                          \
    ROW(INT32, "int32", INTEGER, int32_t, int64_t, uint64_t)                                       \
    ROW(INT64, "int64", INTEGER, int64_t, int64_t, uint64_t)                                       \
    ROW(FLOAT16, "float16", FLOAT, uint16_t, float, float_of_half, half_of_float)                  \
    ROW(BFLOAT16, "bfloat16", FLOAT, uint16_t, float, float_of_bfloat, bfloat_of_float)            \
    ROW(FLOAT32, "float32", FLOAT, float, float, SAME, SAME)                                       \
    ROW(FLOAT64, "float64", FLOAT, double, double, SAME, SAME)                                     \
    ROW(BOOL, "bool", TRUTH, uint8_t, uint8_t, uint8_t)                                            \
    ROW(INT16, "int16", INTEGER, int16_t, int32_t, uint32_t)                                       \
    ROW(UINT16, "uint16", INTEGER, uint16_t, int32_t, uint32_t)                                    \
    ROW(UINT32, "uint32", INTEGER, uint32_t, int64_t, uint64_t)                                    \
    ROW(UINT64, "uint64", INTEGER, uint64_t, uint64_t, uint64_t)

/* One row for each op, in the order of hvd_op: its name and the classes of dtypes that it
 * accepts. */
#define OPS(ROW)                                                                                   \
    ROW("Sum", ALL)                                                                                \
    ROW("Average", ALL)                                                                            \
    ROW("Min", ALL)                                                                                \
    ROW("Max", ALL)                                                                                \
    ROW("Product", ALL)                                                                            \
    ROW("Adasum", FLOAT)

/* Return the name that users write; "?" if the value is out of range. */
const char *kind_name(int kind);
const char *dtype_name(int dtype);
const char *op_name(int op);
const char *codec_name(int codec);
const char *rule_name(int rule);

/* Converts a rank of a group to a rank of the job. job_ranks NULL: the numbers are equal. */
static inline int job_rank(const int *job_ranks, int rank) {
    return job_ranks ? job_ranks[rank] : rank;
}

/* Returns the bytes of one element; 0 if the value is out of range. */
size_t dtype_size(int dtype);

bool dtype_is_float(int dtype);
bool dtype_sums_below_0(int dtype); /* false: the accumulator of this valid dtype has no sign */

/* Returns whether the op accepts arrays of the dtype. */
bool op_takes(int op, int dtype);

#endif

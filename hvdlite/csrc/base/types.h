/* Types that all layers use: kinds of collectives, dtypes, operations, limits, the topology.
 *
 * Ranks send these values to each other, and programs compile them in: append values, never
 * renumber. */
#ifndef HVDLITE_BASE_TYPES_H
#define HVDLITE_BASE_TYPES_H

#include "base/error.h"

#define IS_UNSIGNED(TYPE) ((TYPE) - 1 > 0) /* in an unsigned type, -1 is the largest number */

/* The tables of this file have one row for each value: the value's name in C without HVD_, then the
 * name that users see. AS_ENUM makes the enums from the rows; hvdlite/_build.py expands AS_ENUM for
 * Python. */
#define AS_ENUM(NAME, ...) HVD_##NAME,

/* JOIN: this rank has no more data; it contributes zeros until all ranks have joined. */
#define KINDS(ROW)                                                                                 \
    ROW(ALLREDUCE, "allreduce")                                                                    \
    ROW(BROADCAST, "broadcast")                                                                    \
    ROW(ALLGATHER, "allgather")                                                                    \
    ROW(REDUCESCATTER, "reducescatter")                                                            \
    ROW(ALLTOALL, "alltoall")                                                                      \
    ROW(JOIN, "join")

/* Columns of DTYPES after the name in C and the name that users see:
 * - the name of an at::ScalarType of PyTorch
 * - mshadow's type flag, or -1 if MXNet has no arrays of the dtype
 * - MPIABI_..., a type of MPItrampoline. MPItrampoline lacks FLOAT16 and BFLOAT16.
 * - the class, the type of an element and the type of the accumulator
 * - for the kernels of the class (kernels/reduce.c): FLOAT: functions that convert to and from the
 *   accumulator. INTEGER, TRUTH: the unsigned type that sums are computed in. */
#define DTYPES(ROW)                                                                                \
    ROW(UINT8, "uint8", Byte, 3, UINT8_T, INTEGER, uint8_t, int32_t, uint32_t)                     \
    ROW(INT8, "int8", Char, 5, INT8_T, INTEGER, int8_t, int32_t, uint32_t)                         \
    ROW(INT32, "int32", Int, 4, INT32_T, INTEGER, int32_t, int64_t, uint64_t)                      \
    ROW(INT64, "int64", Long, 6, INT64_T, INTEGER, int64_t, int64_t, uint64_t)                     \
    ROW(FLOAT16, "float16", Half, 2, FLOAT16, FLOAT, uint16_t, float, float_of_half,               \
        half_of_float)                                                                             \
    ROW(BFLOAT16, "bfloat16", BFloat16, 12, BFLOAT16, FLOAT, uint16_t, float, float_of_bfloat,     \
        bfloat_of_float)                                                                           \
    ROW(FLOAT32, "float32", Float, 0, FLOAT, FLOAT, float, float, SAME, SAME)                      \
    ROW(FLOAT64, "float64", Double, 1, DOUBLE, FLOAT, double, double, SAME, SAME)                  \
    ROW(BOOL, "bool", Bool, 7, C_BOOL, TRUTH, uint8_t, uint8_t, uint8_t)                           \
    ROW(INT16, "int16", Short, -1, INT16_T, INTEGER, int16_t, int32_t, uint32_t)                   \
    ROW(UINT16, "uint16", UInt16, -1, UINT16_T, INTEGER, uint16_t, int32_t, uint32_t)              \
    ROW(UINT32, "uint32", UInt32, -1, UINT32_T, INTEGER, uint32_t, int64_t, uint64_t)              \
    ROW(UINT64, "uint64", UInt64, -1, UINT64_T, INTEGER, uint64_t, uint64_t, uint64_t)

/* The other columns: the classes of dtypes that the op accepts; true if zeros may replace the data
 * of a rank that has joined. */
#define OPS(ROW)                                                                                   \
    ROW(SUM, "Sum", ALL, true)                                                                     \
    ROW(AVERAGE, "Average", ALL, true)                                                             \
    ROW(MIN, "Min", ALL, false)                                                                    \
    ROW(MAX, "Max", ALL, false)                                                                    \
    ROW(PRODUCT, "Product", ALL, false)                                                            \
    ROW(ADASUM, "Adasum", FLOAT, true)

/* How the values of a float32 allreduce are encoded (kernels/codec.h). */
#define CODECS(ROW)                                                                                \
    ROW(CODEC_NONE, "none")                                                                        \
    ROW(CODEC_FLOAT16, "fp16")                                                                     \
    ROW(CODEC_BFLOAT16, "bf16")                                                                    \
    ROW(CODEC_2BIT, "2bit")                                                                        \
    ROW(CODEC_1BIT, "1bit")                                                                        \
    ROW(CODEC_TOPK, "topk")

/* How a float32 allreduce updates weights instead of storing its result (kernels/update.h). */
#define RULES(ROW)                                                                                 \
    ROW(RULE_NONE, "none")                                                                         \
    ROW(SGD, "SGD")                                                                                \
    ROW(SGD_MOMENTUM, "SGD with momentum")                                                         \
    ROW(NAG, "NAG")                                                                                \
    ROW(ADAM, "Adam")

/* clang-format off */
/* cdef begin */
/* HVD_KINDS: number of kinds in which all ranks take part; kinds between two ranks follow */
typedef enum hvd_kind { KINDS(AS_ENUM) HVD_KINDS, HVD_SEND = 32, HVD_RECV } hvd_kind;
typedef enum hvd_dtype { DTYPES(AS_ENUM) HVD_DTYPES } hvd_dtype;
typedef enum hvd_op { OPS(AS_ENUM) HVD_OPS } hvd_op;
typedef enum hvd_codec { CODECS(AS_ENUM) HVD_CODECS } hvd_codec;
typedef enum hvd_rule { RULES(AS_ENUM) HVD_RULES } hvd_rule;
/* clang-format on */

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

/* The lowest `states` of an hvd_tensor that contains a divisor of gradients. */
#define HVD_DIVISORS 0x40000000

/* An update of weights. A host has one copy of the weights; each rank passes the address at which
 * this rank maps them. */
typedef struct hvd_update {
    int rule; /* hvd_rule; equal on all ranks */
    float rates[HVD_RATES];
    float *weights; /* one weight for each value of the tensor */
    /* Optimizer states, one for each value: the momentum, or Adam's mean and variance; NULL if the
     * rule has fewer states. If dealt: only the states of this host's parts (stripes), in a row. */
    float *states[2];
    int dealt; /* 1: the hosts divide the states among them, else 0; equal on all ranks */
    int first; /* number of the host with the states of the first stripe; equal on all ranks */
} hvd_update;

#define HVD_MAX_CALL 80 /* bytes of the member `call` of hvd_tensor, including the final zero */
#define HVD_MAX_DIMS 32 /* NumPy has the same limit */
#define HVD_ASKS 2      /* hvd_tensor.delegated of a tensor without data */

#define HVD_REGION_ADDRESS 64 /* bytes of an address of shared memory, including the final zero */

/* The position of this process in the job. A host is a set of ranks that can share memory. */
typedef struct hvd_topology {
    int rank, size;             /* among all ranks of the job */
    int local_rank, local_size; /* among the ranks of this host */
    int cross_rank, cross_size; /* among the ranks with this local rank, one per host */
} hvd_topology;

/* Opens the transport of all ranks of the job (job and job_ranks NULL), or of a group. For a group,
 * `job` is the transport of all ranks, which is closed last, and job_ranks[rank] is the rank's
 * number in the job. Collective. where: what the ranks need to connect, in the transport's type. */
struct transport;
struct transport_config;
typedef int transport_opener(struct transport **out, const void *where, struct transport *job,
                             const int *job_ranks, const struct transport_config *config,
                             hvd_error *err);

/* How the ranks of a job or group connect to each other. */
typedef struct hvd_transport {
    transport_opener *open;
    const void *where;
} hvd_transport;
/* cdef end */

/* Maximum bytes that a rank reads from the other ranks of its host on the fast path (collectives
 * without negotiation). Chosen, not measured: with more bytes, each rank adds up data that the
 * engine divides among the ranks; with fewer bytes, more collectives are negotiated. */
enum { HVD_FAST_BYTES = 64 << 10 };

/* Return the name that users write; "?" if the value is out of range. */
const char *kind_name(int kind);
const char *dtype_name(int dtype);
const char *op_name(int op);
/* cdef begin */
const char *codec_name(int codec);
/* cdef end */
const char *rule_name(int rule);

/* Converts a rank of a group to a rank of the job. job_ranks NULL: they are equal. */
static inline int job_rank(const int *job_ranks, int rank) {
    return job_ranks ? job_ranks[rank] : rank;
}

/* Returns the bytes of one element; 0 if the value is out of range. */
size_t dtype_size(int dtype);

bool dtype_is_float(int dtype);
bool dtype_sums_below_0(int dtype); /* false: the accumulator has no sign; dtype must be valid */

/* Returns whether the op accepts arrays of the dtype. */
bool op_takes(int op, int dtype);
bool op_takes_zeros(int op); /* true: zeros may stand for the data of ranks that have joined */

#endif

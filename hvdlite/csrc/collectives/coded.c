/* Coded allreduce: three algorithms; the codec, the ranks and the hosts decide.
 *
 *   casts      an ordinary allreduce of the float16 or bfloat16 numbers
 *   gathered   an allgather of all messages; every rank decodes and adds all of them
 *   scattered  for 2bit and 1bit: a pairwise exchange of words (pairwise.c). A rank adds its chunk
 *              of all messages and sends the sums, called counts, to all ranks: one byte for each
 *              value (two bytes beyond 127 ranks)
 *
 * gathered and scattered give the same bits, because both sum exact counts, and quantize no value
 * twice. Measurements decide between them (2bit and 1bit, 4,000 to 8 million values, two cores,
 * Open MPI 5; medians of alternating runs):
 *
 *   several hosts  The bytes on a link decide. Messages of S bytes, k ranks on each of h hosts,
 *                  p = k h, c bytes of counts for each byte of words (2bit: 4, 1bit: 8): gathered
 *                  sends (p - 1) S, scattered k (p - k) / p (1 + c) S. With one rank per host
 *                  scattered wins if p > 1 + c. ms for a million values on links of 200 Mbit/s,
 *                  gathered / scattered, on 2, 4, 6, 8 hosts:
 *                    2bit  26 / 40, 53 / 57, 106 / 76, 159 / 84
 *                    1bit  13 / 29, 28 / 46, 55 / 66, 82 / 82
 *   one host       The number of values that a rank decodes decides: for each value of the tensor
 *                  gathered decodes p values, scattered two. ms for 2 million values, 2bit, on 2,
 *                  3, 4, 6 ranks:
 *                    by messages   5.7 / 5.7, 10.0 / 9.0, 13.6 / 10.4, 28 / 21
 *                    by a window   on 4: 10.2 / 9.1, on 6: 17 / 13
 *                  For 4,000 values gathered in a window is faster, 0.28 / 0.41 on 4 ranks. At
 *                  about 8 KB of words both take the same time. */
#include "collectives/coded.h"

#include "collectives/algorithm.h"

#include <string.h>

static size_t bytes_of(const struct coded_args *args) {
    size_t bytes = 0;
    for (size_t i = 0; i < args->ntensors; i++)
        bytes += codec_bytes(args->codec, args->tensors[i].n);
    return bytes;
}

/* Copies all messages to `memory`, one after another; returns `memory`. If there is only one
 * message, returns the message without a copy. */
static void *pack(const struct coded_args *args, char *memory) {
    if (args->ntensors == 1) return args->tensors[0].message;
    for (size_t i = 0, at = 0; i < args->ntensors; i++) {
        size_t bytes = codec_bytes(args->codec, args->tensors[i].n);
        if (bytes) memcpy(memory + at, args->tensors[i].message, bytes);
        at += bytes;
    }
    return memory;
}

static struct codec_sum sum_of(const struct comm *comm, const struct coded_args *args) {
    return (struct codec_sum){comm->size, args->contributors,
                              args->final.scale / (double)args->final.divisor};
}

/* Decodes the sums of the packed messages: one sum for each word, or each float16 or bfloat16. */
static void decode_sums(const struct comm *comm, const struct coded_args *args, const char *sums,
                        const struct reduce_kernels *k) {
    for (size_t i = 0; i < args->ntensors; i++) {
        const struct coded_tensor *tensor = &args->tensors[i];
        codec_decode_sum(args->codec, sums, sum_of(comm, args), tensor->out, tensor->n);
        sums += codec_bytes(args->codec, tensor->n) / k->size * k->result;
    }
}

static int run_casts(const struct comm *comm, const struct coded_args *args, hvd_error *err) {
    void *memory;
    struct coll_args cast = {.kind = HVD_ALLREDUCE,
                             .bytes = bytes_of(args),
                             .reduce = codec_kernels(args->codec, comm->size),
                             .prescale = 1,
                             .final = args->final,
                             .ntensors = 1,
                             .scratch = args->scratch,
                             .outer = args->outer};
    HVD_TRY(scratch_get(args->buffer, cast.bytes, &memory, err));
    cast.data = pack(args, memory);
    struct coll_tensor whole = {.in = cast.data, .out = cast.data, .bytes = cast.bytes};
    cast.tensors = &whole;
    HVD_TRY(coll_run(comm, &cast, err));
    decode_sums(comm, args, cast.data, cast.reduce);
    return HVD_OK;
}

static int run_gathered(const struct comm *comm, const struct coded_args *args, hvd_error *err) {
    size_t p = (size_t)comm->size, bytes = bytes_of(args);
    void *memory;
    HVD_TRY(scratch_get(args->buffer, p * sizeof(size_t) + (p + 1) * bytes, &memory, err));
    size_t *part_end = memory;
    char *gathered = (char *)(part_end + p);
    for (size_t r = 0; r < p; r++) part_end[r] = (r + 1) * bytes;
    struct coll_args gather = {.kind = HVD_ALLGATHER,
                               .data = gathered,
                               .bytes = p * bytes,
                               .in = pack(args, gathered + p * bytes),
                               .part_end = part_end,
                               .longest = bytes,
                               .scratch = args->scratch,
                               .outer = args->outer};
    HVD_TRY(coll_run(comm, &gather, err));
    for (size_t i = 0; i < args->ntensors; i++) {
        const struct coded_tensor *tensor = &args->tensors[i];
        codec_decode(args->codec, gathered, bytes, sum_of(comm, args), tensor->out, tensor->n);
        gathered += codec_bytes(args->codec, tensor->n);
    }
    return HVD_OK;
}

int coll_coded_scattered(const struct comm *comm, const struct coded_args *args, hvd_error *err) {
    const struct reduce_kernels *k = codec_kernels(args->codec, comm->size);
    size_t bytes = bytes_of(args), sums = bytes / k->size * k->result;
    void *memory;
    HVD_TRY(scratch_get(args->buffer, sums + bytes, &memory, err));
    struct coll_args scatter = {.kind = HVD_ALLREDUCE,
                                .data = memory,
                                .bytes = bytes,
                                .in = pack(args, (char *)memory + sums),
                                .reduce = k,
                                .prescale = 1,
                                .final = {1, 1},
                                .scratch = args->scratch,
                                .outer = args->outer};
    HVD_TRY(coll_pairwise_allreduce(comm, &scatter, err));
    decode_sums(comm, args, memory, k);
    return HVD_OK;
}

/* on one host, scattered is chosen only for messages of at least this many bytes */
enum { LEAST_SCATTERED = 8 * 1024 };

/* Decides by the measurements above; equal on all ranks. */
static bool better_scattered(const struct comm *comm, const struct coded_args *args) {
    const struct reduce_kernels *kernels = codec_kernels(args->codec, comm->size);
    if (!kernels || comm->size <= 2) return false;
    if (comm->hosts == 1) return bytes_of(args) >= LEAST_SCATTERED;
    double p = comm->size, k = p / comm->hosts;
    double counts = (double)kernels->result / (double)kernels->size;
    return k * (p - k) / p * (1 + counts) < p - 1;
}

static bool is_cast(const struct comm *comm, const struct coded_args *args) {
    (void)comm;
    return codec_is_cast(args->codec);
}

static const struct coded_algorithm TABLE[] = {
    {"cast allreduce", is_cast, run_casts},
    {"scattered allreduce", better_scattered, coll_coded_scattered},
    {"gathered allreduce", NULL, run_gathered},
};

const struct coded_algorithm *coded_choose(const struct comm *comm, const struct coded_args *args) {
    const struct coded_algorithm *row = TABLE;
    while (row->takes && !row->takes(comm, args)) row++;
    return row;
}

int coll_coded(const struct comm *comm, const struct coded_args *args, hvd_error *err) {
    const struct coded_algorithm *row = coded_choose(comm, args);
    return row->run(comm, args, err) ? error_while(err, "running a %s", row->name) : HVD_OK;
}

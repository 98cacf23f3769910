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

#include "base/floats.h"
#include "collectives/algorithm.h"

#include <string.h>

static size_t bytes_of(const struct coded_args *args) {
    size_t bytes = 0;
    for (size_t i = 0; i < args->ntensors; i++)
        bytes += codec_bytes(args->codec, args->tensors[i].n);
    return bytes;
}

struct packing {
    const struct coded_args *args;
    char *memory;
};

static void pack_range(const void *arg, struct coll_range range) {
    const struct packing *p = arg;
    size_t begin = 0;
    for (size_t i = 0; i < p->args->ntensors; i++) {
        const struct coded_tensor *tensor = &p->args->tensors[i];
        size_t bytes = codec_bytes(p->args->codec, tensor->n);
        struct coll_range at = coll_overlap(range, begin, bytes);
        if (coll_length(at))
            memcpy(p->memory + begin + at.begin, (const char *)tensor->message + at.begin,
                   coll_length(at));
        begin += bytes;
    }
}

/* Copies this rank's messages of all tensors to `memory`, one after another; returns `memory`. If
 * there is only one tensor, returns its message without a copy. */
static void *pack(const struct comm *comm, const struct coded_args *args, char *memory) {
    size_t bytes = bytes_of(args);
    if (args->ntensors == 1) return args->tensors[0].message;
    coll_share(comm, bytes, (struct coll_range){0, bytes}, pack_range,
               &(struct packing){args, memory});
    return memory;
}

/* What to decode: the packed messages of all ranks, or their sum. */
struct decoding {
    const struct coded_args *args;
    struct codec_sum spec;
    const char *packed; /* the sum, or messages: rank r's messages begin at r * stride */
    size_t stride;
    const struct reduce_kernels *sums; /* kernels that computed the sum; NULL: no sum */
};

/* Returns the number of the tensor's values, rounded up. Threads share the values of all tensors as
 * one range, and the rounding makes each thread begin at the first value of a word. */
static size_t positions_of(const struct coded_tensor *tensor) {
    enum { UNIT = 64 };
    return coll_segments(tensor->n, UNIT) * UNIT;
}

static void decode_range(const void *arg, struct coll_range range) {
    const struct decoding *d = arg;
    const char *packed = d->packed;
    size_t begin = 0;
    for (size_t i = 0; i < d->args->ntensors; i++) {
        const struct coded_tensor *tensor = &d->args->tensors[i];
        size_t bytes = codec_bytes(d->args->codec, tensor->n);
        struct coll_range at = coll_overlap(range, begin, tensor->n);
        struct codec_part part = {at.begin, at.end, tensor->n};
        if (coll_length(at) && d->sums)
            codec_decode_sum(d->args->codec, packed, d->spec, tensor->out, part);
        else if (coll_length(at))
            codec_decode(d->args->codec, packed, d->stride, d->spec, tensor->out, part);
        packed += d->sums ? bytes / d->sums->size * d->sums->result : bytes;
        begin += positions_of(tensor);
    }
}

/* Decodes `read` bytes at `packed`: the messages of all ranks (sums NULL) or their sum. */
static void decode(const struct comm *comm, const struct coded_args *args, const char *packed,
                   size_t stride, const struct reduce_kernels *sums, size_t read) {
    struct codec_sum spec = {comm->size, args->contributors,
                             args->final.scale / (double)args->final.divisor};
    struct decoding d = {args, spec, packed, stride, sums};
    size_t positions = 0, written;
    for (size_t i = 0; i < args->ntensors; i++) positions += positions_of(&args->tensors[i]);
    written = positions * sizeof(float);
    coll_share(comm, read > written ? read : written, (struct coll_range){0, positions},
               decode_range, &d);
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
    cast.data = pack(comm, args, memory);
    struct coll_tensor whole = {.in = cast.data, .out = cast.data, .bytes = cast.bytes};
    cast.tensors = &whole;
    HVD_TRY(coll_run(comm, &cast, err));
    decode(comm, args, cast.data, 0, cast.reduce, cast.bytes);
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
                               .in = pack(comm, args, gathered + p * bytes),
                               .part_end = part_end,
                               .longest = bytes,
                               .scratch = args->scratch,
                               .outer = args->outer};
    HVD_TRY(coll_run(comm, &gather, err));
    decode(comm, args, gathered, bytes, NULL, p * bytes);
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
                                .in = pack(comm, args, (char *)memory + sums),
                                .reduce = k,
                                .prescale = 1,
                                .final = {1, 1},
                                .scratch = args->scratch,
                                .outer = args->outer};
    HVD_TRY(coll_pairwise_allreduce(comm, &scatter, err));
    decode(comm, args, memory, 0, k, sums);
    return HVD_OK;
}

/* ---- encoding ---- */

struct encoding {
    const struct codec_input *in;
    size_t n;
    bool finite;
    bool *infinite; /* by part: true if the part has an infinity or a NaN */
};

static struct codec_part part_of(const struct encoding *e, struct coll_range range) {
    return (struct codec_part){range.begin, range.end, e->n};
}

static void check_part(const void *arg, int part, int parts) {
    const struct encoding *e = arg;
    struct coll_range range = coll_part_of((struct coll_range){0, e->n}, part, parts);
    e->infinite[part] = !codec_finite(e->in, part_of(e, range));
}

static void encode_range(const void *arg, struct coll_range range) {
    const struct encoding *e = arg;
    hvd_error none; /* unused: the call fails only for topk, which encode() handles */
    codec_encode(e->in, e->finite, part_of(e, range), &none);
}

/* One thread encodes topk, because it must compare all values to choose the values to send. */
static int encode(const struct comm *comm, const struct codec_input *in, size_t n, hvd_error *err) {
    struct coll_range all = {0, n};
    size_t read = (codec_is_cast(in->codec) ? 1 : 2) * n * sizeof(float); /* values, residual */
    bool infinite[HELPERS_MOST] = {false};
    struct encoding e = {in, n, .finite = true, .infinite = infinite};
    if (!codec_is_cast(in->codec)) helpers_do(comm_helpers(comm), read, check_part, &e);
    for (int i = 0; i < HELPERS_MOST; i++) e.finite &= !infinite[i];
    if (in->codec.kind == HVD_CODEC_TOPK) return codec_encode(in, e.finite, codec_whole(n), err);
    coll_share(comm, read, all, encode_range, &e);
    return HVD_OK;
}

/* The user's thread calls this function. Its floating-point mode may flush subnormal numbers to 0,
 * but helpers do not; so the bits would depend on which thread takes which part. */
int coded_encode(const struct comm *comm, const struct codec_input *in, size_t n, hvd_error *err) {
    floats_mode mode = floats_exact();
    int code = encode(comm, in, n, err);
    floats_restore(mode);
    return code;
}

/* on one host, the scattered allreduce is chosen only for messages of at least so many bytes */
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
    return row->run(comm, args, err) ? error_while(err, "running the %s", row->name) : HVD_OK;
}

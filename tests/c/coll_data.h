/* The data for tests of collectives.
 *
 * The data of a rank repeats a tile of PERIOD elements. PERIOD is prime, so that a segment in the
 * wrong place is detected. A large expected result needs only copies of a tile. */
#ifndef HVDLITE_COLL_DATA_H
#define HVDLITE_COLL_DATA_H

#include "check.h"

#include "collectives/algorithm.h"
#include "elements.h"
#include "ranks.h"

enum { PERIOD = 1021 };

_Static_assert(HVD_KINDS == HVD_JOIN + 1, "tests run the kinds below HVD_JOIN: add the new kind");

struct coll_case {
    const struct coll_algorithm *row; /* the algorithm to run; NULL: coll_run chooses */
    hvd_kind kind;
    int dtype;
    /* number of elements of the tensor (of a row in a reducescatter, of a unit with `parts`) */
    size_t n;
    size_t rows;        /* for reducescatter */
    struct scaling how; /* for allreduce and reducescatter */
    int root;           /* for broadcast */
    bool whole;         /* true: one tensor; false: two tensors */
    /* how many units of n elements a rank sends: an allgather's rank r sends parts[r], in an
     * alltoall rank `from` sends parts[from * ranks + to] to rank `to` */
    const size_t *parts;
};

static inline void case_text(const struct coll_case *c, int ranks, char *text, size_t size) {
    snprintf(text, size, "%s of %s, %d ranks, %zu rows, %zu x %s, op %d, scales %g %g, root %d",
             kind_name(c->kind), c->row ? c->row->name : "coll_run", ranks, c->rows, c->n,
             dtype_name(c->dtype), c->how.op, c->how.prescale, c->how.postscale, c->root);
}

/* A tile (PERIOD elements of test data) that this thread has made. A thread keeps its last tiles,
 * because many algorithms get the same data. */
struct made_tile {
    bool made;
    int dtype, ranks, r;
    struct scaling how;
    unsigned char bytes[PERIOD * 8];
};

/* Writes the tile of PERIOD elements of the input of rank r, or of the allreduce's result if r is
 * negative. */
static inline void fill_tile(const struct coll_case *c, int ranks, int r, unsigned char *tile) {
    static _Thread_local struct made_tile last[1 + MOST_RANKS];
    struct made_tile *m = &last[r < 0 ? 0 : 1 + r % MOST_RANKS];
    struct scaling how = c->how;
    if (!m->made || m->dtype != c->dtype || m->ranks != ranks || m->r != r || m->how.op != how.op ||
        m->how.prescale != how.prescale || m->how.postscale != how.postscale) {
        m->made = true;
        m->dtype = c->dtype;
        m->ranks = ranks;
        m->r = r;
        m->how = how;
        for (size_t i = 0; i < PERIOD; i++)
            element_put(c->dtype, m->bytes, i,
                        r < 0 ? reduced_sample(c->dtype, ranks, how, i)
                              : sample(c->dtype, how.op, r, i));
    }
    memcpy(tile, m->bytes, PERIOD * dtype_size(c->dtype));
}

/* The arguments of an allreduce of these tensors without scales. An average also needs `final`. */
static inline struct coll_args allreduce_of(const struct coll_tensor *tensors, size_t ntensors,
                                            hvd_dtype dtype, hvd_op op, struct scratch *scratch) {
    struct coll_args args = {.kind = HVD_ALLREDUCE,
                             .tensors = tensors,
                             .ntensors = ntensors,
                             .reduce = reduce_kernels(dtype, op),
                             .prescale = 1,
                             .final = {1, 1},
                             .scratch = scratch};
    for (size_t i = 0; i < ntensors; i++) args.bytes += tensors[i].bytes;
    return args;
}

static inline void fill(unsigned char *data, size_t bytes, const unsigned char *tile,
                        size_t period) {
    for (size_t at = 0; at < bytes; at += period)
        memcpy(data + at, tile, bytes - at < period ? bytes - at : period);
}

static inline bool filled(const unsigned char *data, size_t bytes, const unsigned char *tile,
                          size_t period) {
    for (size_t at = 0; at < bytes; at += period)
        if (memcmp(data + at, tile, bytes - at < period ? bytes - at : period) != 0) return false;
    return true;
}

/* Returns whether the data repeats the tile, within the tolerance for a rounded 1 / divisor. */
static inline bool nearly_filled(int dtype, const unsigned char *data, size_t n,
                                 const unsigned char *tile) {
    for (size_t i = 0; i < n; i++) {
        double expected = element_get(dtype, tile, i % PERIOD), got = element_get(dtype, data, i);
        if (!(fabs(got - expected) <= sample_tolerance(dtype, expected))) return false;
    }
    return true;
}

/* Returns whether the error is within the bound for sums that are rounded on each host and between
 * hosts (hosts.c). */
static inline bool within_bound(const struct coll_case *c, int ranks, const unsigned char *data,
                                size_t begin, size_t n) {
    double unit = c->dtype == HVD_FLOAT16 ? 0x1p-11 : 0x1p-8;
    double factor = fabs(c->how.prescale * c->how.postscale) * 2.02 * unit;
    if (c->how.op == HVD_AVERAGE) factor /= ranks;
    unsigned char tile[PERIOD * 8];
    fill_tile(c, ranks, -1, tile);
    for (size_t i = 0; i < n; i++) {
        size_t at = (begin + i) % PERIOD;
        double got = element_get(c->dtype, data, i), sizes = 0;
        if (got == element_get(c->dtype, tile, at)) continue;
        double expected = reduced_sample(c->dtype, ranks, c->how, at);
        for (int r = 0; r < ranks; r++) sizes += fabs(sample(c->dtype, c->how.op, r, at));
        if (!(fabs(got - expected) <= sizes * factor)) return false;
    }
    return true;
}

static inline size_t longest_part(const size_t *end, int parts) {
    size_t longest = 0;
    for (int i = 0; i < parts; i++) {
        size_t length = coll_length(coll_part(end, i));
        longest = length > longest ? length : longest;
    }
    return longest;
}

/* Checks the parts of an allgather. Each part repeats the tile of its rank, from the tile's
 * start. */
static inline bool gathered(const struct coll_case *c, int ranks, const unsigned char *data,
                            const size_t *part_end) {
    unsigned char tile[PERIOD * 8];
    bool good = true;
    for (int r = 0; r < ranks; r++) {
        size_t begin = r ? part_end[r - 1] : 0;
        fill_tile(c, ranks, r, tile);
        good &= filled(data + begin, part_end[r] - begin, tile, PERIOD * dtype_size(c->dtype));
    }
    return good;
}

/* Checks the rows of a result from `begin` on. Element i must be element i % PERIOD of the tile. */
static inline bool result_part(const struct coll_case *c, int ranks, const unsigned char *data,
                               size_t begin, size_t n) {
    unsigned char tile[PERIOD * 8], turned[PERIOD * 8];
    size_t element = dtype_size(c->dtype);
    bool rounded = c->dtype == HVD_FLOAT32 || c->dtype == HVD_FLOAT64;
    fill_tile(c, ranks, -1, tile);
    for (size_t i = 0; i < PERIOD; i++)
        memcpy(turned + i * element, tile + (begin + i) % PERIOD * element, element);
    return rounded && c->how.op == HVD_AVERAGE
               ? nearly_filled(c->dtype, data, n, turned)
               : filled(data, n * element, turned, PERIOD * element);
}

/* Returns how many bytes rank `from` sends to rank `to`. The bytes repeat the pattern that this
 * function writes to `tile`; each pair of ranks has a pattern of its own. */
static inline size_t pair_tile(const struct coll_case *c, int ranks, int from, int to,
                               unsigned char *tile) {
    fill_tile(c, 0, from * MOST_RANKS + to, tile);
    return c->parts[from * ranks + to] * c->n * dtype_size(c->dtype);
}

/* fill_pairs fills a rank's input to an alltoall; pairs_right checks the rank's result. */
static inline void fill_pairs(const struct coll_case *c, int ranks, int rank, unsigned char *at) {
    unsigned char tile[PERIOD * 8];
    for (int to = 0; to < ranks; to++) {
        size_t bytes = pair_tile(c, ranks, rank, to, tile);
        fill(at, bytes, tile, PERIOD * dtype_size(c->dtype));
        at += bytes;
    }
}

static inline bool pairs_right(const struct coll_case *c, int ranks, int rank,
                               const unsigned char *at) {
    unsigned char tile[PERIOD * 8];
    bool right = true;
    for (int from = 0; from < ranks; from++) {
        size_t bytes = pair_tile(c, ranks, from, rank, tile);
        right &= filled(at, bytes, tile, PERIOD * dtype_size(c->dtype));
        at += bytes;
    }
    return right;
}

/* The bytes of a rank's input and output, and the ends of their parts, by rank. */
struct case_parts {
    size_t in_bytes, out_bytes;
    size_t in_end[MOST_RANKS], part_end[MOST_RANKS];
};

static inline bool has_parts(hvd_kind kind) {
    return kind != HVD_ALLREDUCE && kind != HVD_BROADCAST;
}

static inline struct case_parts parts_of(const struct coll_case *c, int ranks, int rank) {
    struct case_parts p = {0};
    size_t unit = c->n * dtype_size(c->dtype), many = (size_t)ranks;
    for (int r = 0; r < ranks; r++) {
        if (c->kind == HVD_ALLGATHER) p.out_bytes += c->parts[r] * unit;
        if (c->kind == HVD_REDUCESCATTER)
            p.in_bytes += (c->rows / many + ((size_t)r < c->rows % many)) * unit;
        if (c->kind == HVD_ALLTOALL) p.in_bytes += c->parts[rank * ranks + r] * unit;
        if (c->kind == HVD_ALLTOALL) p.out_bytes += c->parts[r * ranks + rank] * unit;
        p.in_end[r] = p.in_bytes;
        p.part_end[r] = p.out_bytes;
    }
    if (c->kind == HVD_ALLGATHER) p.in_bytes = c->parts[rank] * unit;
    if (c->kind == HVD_REDUCESCATTER) p.out_bytes = coll_length(coll_part(p.in_end, rank));
    if (!has_parts(c->kind)) p.in_bytes = p.out_bytes = unit;
    return p;
}

/* case_fill fills a rank's input; case_right checks its result. by_hosts: sums may be rounded on
 * each host and between hosts. */
static inline void case_fill(const struct coll_case *c, int ranks, int rank, unsigned char *in) {
    unsigned char tile[PERIOD * 8];
    if (c->kind == HVD_ALLTOALL) return fill_pairs(c, ranks, rank, in);
    fill_tile(c, ranks, rank, tile);
    fill(in, parts_of(c, ranks, rank).in_bytes, tile, PERIOD * dtype_size(c->dtype));
}

static inline bool case_right(const struct coll_case *c, int ranks, int rank, bool by_hosts,
                              const unsigned char *out) {
    struct case_parts p = parts_of(c, ranks, rank);
    size_t element = dtype_size(c->dtype);
    unsigned char tile[PERIOD * 8];
    if (c->kind == HVD_ALLGATHER) return gathered(c, ranks, out, p.part_end);
    if (c->kind == HVD_ALLTOALL) return pairs_right(c, ranks, rank, out);
    if (c->kind == HVD_BROADCAST) {
        fill_tile(c, ranks, c->root, tile);
        return filled(out, p.out_bytes, tile, PERIOD * element);
    }
    size_t begin = c->kind == HVD_REDUCESCATTER ? coll_part(p.in_end, rank).begin / element : 0;
    return (by_hosts ? within_bound : result_part)(c, ranks, out, begin, p.out_bytes / element);
}

#endif

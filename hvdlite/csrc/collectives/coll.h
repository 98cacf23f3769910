/* Collectives: one algorithm a file, one row of the table each.
 *
 * An algorithm is a function of a comm and its arguments: no threads, no MPI, no MXNet, no static
 * state. It returns when this rank's work is done. The result has the same bits on every rank. Each
 * file states its cost: p ranks, S bytes, a = seconds a message, b = seconds a byte, g = seconds a
 * byte reduced.
 *
 *   batch     the tensors that one collective moves together
 *   chunk     the part of a batch that one rank reduces
 *   part      the rows that one rank brings or gets: allgather, reducescatter, alltoall
 *   segment   the bytes of a chunk or a part that one message carries
 *   step      all ranks exchange once
 *   item      one exchange of a pipeline: a segment of a step
 *   slot      the window's memory of one rank for one round
 *   round     what goes through the window in one slot of each rank
 *   pass      all rounds of one collective
 *   block     the bytes that are added at a time, while the first cache has them
 *   span      bytes that lie together in one tensor
 *   stripe    HVD_STRIPE bytes of a tensor that is dealt: one host has their states */
#ifndef HVDLITE_COLLECTIVES_COLL_H
#define HVDLITE_COLLECTIVES_COLL_H

#include "base/scratch.h"
#include "kernels/reduce.h"
#include "transport/comm.h"

/* One tensor of a batch: `in` may be `out`. */
struct coll_tensor {
    const char *in;
    char *out;
    size_t bytes;
    const hvd_update *update; /* NULL for all tensors of a batch, or for none */
    size_t before;            /* index of this tensor's first value in the update's weights */
};

/* Equal on every rank, except for the pointers, the scratch, and an alltoall's parts. */
struct coll_args {
    hvd_kind kind;
    void *data;   /* allreduce, broadcast: input and output; else the output */
    size_t bytes; /* size of `data`; reducescatter: of `in`; alltoall: sum over all ranks */

    /* allreduce, broadcast: the tensors, `bytes` in all, which some algorithms use instead of
     * data */
    const struct coll_tensor *tensors;
    size_t ntensors;
    char *const
        *memory; /* by local rank: the parts of the region with all tensors; NULL: no such region */

    const struct reduce_kernels *reduce; /* allreduce, reducescatter */
    double prescale;
    struct reduce_final final;
    bool adasum; /* allreduce: by the rule of adasum.c instead of `reduce` */

    int root; /* broadcast */

    /* allgather, reducescatter, alltoall, and an allreduce whose results and elements differ in
     * size: the input, not inside data. Else NULL. */
    const void *in;
    const size_t
        *in_end; /* reducescatter, alltoall: [rank]: end of the part for the rank, in `in` */
    const size_t
        *part_end;  /* allgather, alltoall: [rank]: end of the part from the rank, in data */
    size_t longest; /* bytes of the longest part on any rank */

    /* Working memory, kept between calls. outer: for algorithms that call other algorithms. */
    struct scratch *scratch, *outer;
};

typedef int coll_function(const struct comm *comm, const struct coll_args *args, hvd_error *err);

struct coll_algorithm {
    const char *name;
    hvd_kind kind;
    bool in_tensors; /* the algorithm uses args->tensors instead of args->data */
    bool (*takes)(const struct comm *comm,
                  const struct coll_args *args); /* NULL: all of that kind */
    coll_function *run;
};

/* The first row of the table that takes the collective. The last row of a kind takes every
 * collective of the kind. */
const struct coll_algorithm *coll_choose(const struct comm *comm, const struct coll_args *args);

/* Which algorithm an allreduce of float32 uses at which size, for the log: "recursive doubling
 * up to 16 KiB, circulant up to 64 KiB, then ring"; cut to `size` bytes. */
void coll_choices_text(const struct comm *comm, char *text, size_t size);

/* All rows, for tests and benchmarks. */
const struct coll_algorithm *coll_table(size_t *rows);
bool coll_takes(const struct coll_algorithm *row, const struct comm *comm,
                const struct coll_args *args);

/* The most bytes that a batch may have if the order in which a tensor's elements are added must
 * not depend on the other tensors of the batch. SIZE_MAX: any number. */
size_t coll_alike(const struct comm *comm);

/* Chooses an algorithm and runs it. For a single rank only applies the scales. */
int coll_run(const struct comm *comm, const struct coll_args *args, hvd_error *err);

/* After an allreduce: each rank of the host updates its chunk of the tensors' weights. Returns
 * when all ranks of the host have done so. `host`: the ranks of this host. */
int coll_update(const struct comm *host, const struct coll_args *args, hvd_error *err);

/* Allreduce and update of tensors that are dealt to several hosts. args->data: `bytes` of working
 * memory. The tensors keep their values. */
int coll_update_dealt(const struct comm *comm, const struct coll_args *args, hvd_error *err);

/* ---- for the algorithms ---- */

/* A barrier on a window: returns when all ranks have called it. */
int coll_meet(const struct comm *host, hvd_error *err);

struct coll_range {
    size_t begin, end; /* bytes */
};

static inline size_t coll_length(struct coll_range r) { return r.end - r.begin; }

/* Cuts `bytes`, a whole number of elements, into n chunks that differ by at most one element. */
struct coll_range coll_chunk(size_t bytes, size_t element, int n, int chunk);

/* Cuts a range in the same way. */
static inline struct coll_range coll_cut(struct coll_range range, size_t element, int n,
                                         int chunk) {
    struct coll_range in = coll_chunk(coll_length(range), element, n, chunk);
    return (struct coll_range){range.begin + in.begin, range.begin + in.end};
}

/* A rank's part; end[i] is where the part of rank i ends. */
static inline struct coll_range coll_part(const size_t *end, int rank) {
    return (struct coll_range){rank ? end[rank - 1] : 0, end[rank]};
}

/* Segment k of a range, of `length` bytes; shorter at the range's end, empty past it. */
struct coll_range coll_segment(struct coll_range range, size_t length, size_t k);

/* One thread's part of a range that several threads share. Parts begin at multiples of a cache
 * line from the begin of the range. */
struct coll_range coll_part_of(struct coll_range range, int part, int parts);

/* The part of a chunk that lies in one tensor: the tensor has `bytes` and begins at `begin` of
 * the batch. */
struct coll_range coll_overlap(struct coll_range chunk, size_t begin, size_t bytes);

/* The number of segments of `length` bytes that hold `bytes`. */
static inline size_t coll_segments(size_t bytes, size_t length) {
    return (bytes + length - 1) / length;
}

/* A send to one peer and a receive from another; either may have 0 bytes. */
struct coll_exchange {
    const char *out;
    char *in;
    size_t out_bytes, in_bytes;
    int to, from;
};

/* An allreduce in pieces, with work of the caller before (prepare) and after (finish) each
 * piece. Ranks may have to do this work together, so its order is the same on all ranks: prepare
 * 1, finish 0, prepare 2, finish 1, ... The caller prepares piece 0 itself. */
struct coll_pieces {
    size_t n;
    struct coll_range (*chunk)(const void *arg, size_t piece,
                               int chunk); /* range of a chunk of a piece in the data */
    size_t longest_chunk;                  /* most bytes of a chunk; equal on all ranks */
    int (*prepare)(const void *arg, size_t piece, hvd_error *err);
    int (*finish)(const void *arg, size_t piece, hvd_error *err); /* NULL: there is no such work */
    /* The ring calls it for each segment that has its final sum; NULL: no call. own: this rank
     * has completed the sum (rank r completes chunk r + 1), and `final` may replace the sum
     * before the ring sends it on. Else the segment has arrived from the rank that has completed
     * the sum. */
    void (*final)(const void *arg, struct coll_range segment, bool own);
    const void *arg;
};

/* Exchanges of up to 2^30 bytes in order, several in flight. An item has the same number on both
 * ranks. */
struct coll_pipeline {
    size_t items;
    struct coll_exchange (*item)(const void *arg, size_t i);
    /* Called in order, when item i has arrived; may be NULL. May run collectives on other comms. */
    int (*received)(const void *arg, size_t i, hvd_error *err);
    const void *arg;
    size_t depth; /* items under way in each direction, 1 .. PACE_MOST_DEPTH */
    /* The number of items, at most `depth`, that are sent before the awaited item has arrived.
     * 0: item i is sent after item i has arrived. */
    size_t send_ahead;
    size_t reuse; /* item i is received into memory from which item i - reuse was sent; 0: never */
    const struct coll_pieces *pieces; /* of items / pieces->n items each; NULL: none */
};
int coll_pipeline(const struct comm *comm, const struct coll_pipeline *p, hvd_error *err);

/* One exchange of any size, by segments. */
int coll_exchange(const struct comm *comm, struct coll_exchange x, hvd_error *err);

/* Folding, for algorithms whose steps need 2^m ranks. If p is no power of two, the first 2 (p -
 * 2^m) ranks form pairs: the even rank gives its data to the odd rank, sits out and receives the
 * result. */
struct coll_fold {
    int positions; /* 2^m */
    int pairs;
};
struct coll_fold coll_fold(int size);

/* Positions in the steps are 0 .. 2^m - 1; a rank that sits out has no position. */
enum { COLL_SITS_OUT = -1 };
int coll_fold_rank(struct coll_fold fold, int position);
int coll_fold_position(struct coll_fold fold, int rank);

coll_function coll_direct_allreduce, coll_window_allreduce, coll_window_broadcast,
    coll_window_allgather, coll_window_reducescatter, coll_window_alltoall, coll_ring_allreduce,
    coll_ring_allgather, coll_pairwise_allreduce, coll_pairwise_reducescatter, coll_alltoall,
    coll_hosts_allreduce, coll_hosts_direct, coll_hosts_broadcast, coll_hosts_allgather,
    coll_hosts_reducescatter, coll_adasum, coll_circulant, coll_doubling, coll_tree, coll_chain;

/* A ring in pieces, without a pause between pieces. It does not apply the prescale. */
int coll_ring_pieces(const struct comm *comm, const struct coll_args *args,
                     const struct coll_pieces *pieces, hvd_error *err);
int coll_pairwise_pieces(const struct comm *comm, const struct coll_args *args,
                         const struct coll_pieces *pieces, hvd_error *err);

#endif

/* Collectives: one algorithm a file, one row of the table each.
 *
 * An algorithm is a function of the transport and a job: no threads, no MPI, no MXNet, no
 * static state. It returns when this rank's part is done, with the same bits on every rank. Costs
 * on top of each file: p ranks, S bytes, a = seconds a message, b = seconds a byte, g = seconds a
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
 *   stretch   the rounds of a pass that are copied in one way (copy_policy.h)
 *   block     the bytes that are added at a time, while the first cache has them
 *   span      bytes that lie together in one tensor */
#ifndef HVDLITE_COLLECTIVES_COLL_H
#define HVDLITE_COLLECTIVES_COLL_H

#include "base/scratch.h"
#include "kernels/reduce.h"
#include "transport/transport.h"

/* One tensor of a batch: `in` may be `out`. */
struct coll_piece {
    const char *in;
    char *out;
    size_t bytes;
};

/* Equal on every rank, except for the pointers, the scratch, and what an alltoall's ranks have. */
struct coll_job {
    hvd_kind kind;
    void *data;   /* allreduce, broadcast: in place; else the output */
    size_t bytes; /* of data; reducescatter: of `in`; alltoall: that all ranks send together */

    /* allreduce, broadcast on a window: the tensors themselves, `bytes` in all, instead of data */
    const struct coll_piece *pieces;
    size_t npieces;
    char *const *memory; /* [local rank]: the parts of the region in which they all lie, or NULL */

    const struct reduce_kernels *reduce; /* allreduce, reducescatter */
    double prescale;
    struct reduce_final final;
    bool adasum; /* allreduce: not by `reduce`, but by the rule of adasum.c */

    int root; /* broadcast */

    /* allgather, reducescatter, alltoall: the input, not inside data. Allreduce whose sums have
     * another size than what is summed (coded.c): the same; else NULL. */
    const void *in;
    const size_t *in_end; /* reducescatter, alltoall: [rank]: where the part for it ends in `in` */
    const size_t *part_end; /* allgather, alltoall: [rank]: where the part from it ends in data */
    size_t longest;         /* of all these parts on all ranks, bytes */

    struct window *window; /* of all ranks, when they are on one host, else NULL */

    struct scratch *scratch; /* the algorithm's own working memory, kept between calls */
};

struct coll_algorithm {
    const char *name;
    hvd_kind kind;
    bool own_accumulator; /* only for dtypes that are their own accumulators */
    bool adasum;          /* for that operation; the others are for the others */
    bool direct;          /* for jobs whose memory is shared; the others are for the others */
    bool on_window;       /* only where all ranks share a window */
    size_t most_bytes;    /* this row takes jobs of up to so many */
    int (*run)(struct transport *t, const struct coll_job *job, hvd_error *err);
};

/* The first row of the table that takes the job; every job is taken by some row. */
const struct coll_algorithm *coll_choose(const struct coll_job *job);

/* All rows, for tests and benchmarks. */
const struct coll_algorithm *coll_table(size_t *rows);
bool coll_takes(const struct coll_algorithm *row, const struct coll_job *job);

/* Chooses and runs; with one rank only the scales are applied. */
int coll_run(struct transport *t, const struct coll_job *job, hvd_error *err);

/* ---- for the algorithms ---- */

/* A chunk is the part of the data that one rank reduces; a segment the part of it in flight at
 * once. */
enum { COLL_SEGMENT = 256 * 1024 };

struct coll_range {
    size_t begin, end; /* bytes */
};

static inline size_t coll_length(struct coll_range r) { return r.end - r.begin; }

/* Cuts `bytes`, a whole number of elements, into n chunks that differ by one element at most. */
struct coll_range coll_chunk(size_t bytes, size_t element, int n, int chunk);

/* The part of a rank, by where each rank's ends. */
static inline struct coll_range coll_part(const size_t *end, int rank) {
    return (struct coll_range){rank ? end[rank - 1] : 0, end[rank]};
}

/* Segment k, of `length` bytes, of a range; shorter at its end, empty past it. */
struct coll_range coll_segment(struct coll_range range, size_t length, size_t k);

/* How many of COLL_SEGMENT there are in so many bytes. */
static inline size_t coll_segments(size_t bytes) {
    return (bytes + COLL_SEGMENT - 1) / COLL_SEGMENT;
}

/* What one rank sends to a peer and receives from another; either may be of 0 bytes. */
struct coll_exchange {
    const char *out;
    char *in;
    size_t out_bytes, in_bytes;
    int to, from;
};

enum { COLL_IN_FLIGHT = 4 }; /* items each way */

/* Exchanges of up to 2^30 bytes, in that order, several of them in flight; peers do theirs under the
 * same number. */
struct coll_pipeline {
    size_t items;
    struct coll_exchange (*item)(const void *arg, size_t i);
    void (*received)(const void *arg, size_t i); /* when item i has come, in order; may be NULL */
    const void *arg;
    /* How far receives and sends are posted ahead of the item that the rank waits for, at most
     * COLL_IN_FLIGHT. send_ahead 0: item i is sent when it has come. */
    size_t receive_ahead, send_ahead;
    size_t reuse; /* item i comes to where item i - reuse was sent from; 0: nothing was */
};
int coll_pipeline(struct transport *t, const struct coll_pipeline *p, hvd_error *err);

/* One exchange of any size, by segments. */
int coll_exchange(struct transport *t, struct coll_exchange x, hvd_error *err);

/* The ranks that take part in steps of a power of two. When p is none, the first 2 (p - 2^m) ranks pair
 * up: the even one gives its data to the odd one, sits the steps out and gets the result at the end. */
struct coll_fold {
    int positions; /* 2^m */
    int pairs;
};
struct coll_fold coll_fold(int size);

/* Positions in the steps are 0 .. 2^m - 1; a rank that sits out has none. */
enum { COLL_SITS_OUT = -1 };
int coll_fold_rank(struct coll_fold fold, int position);
int coll_fold_position(struct coll_fold fold, int rank);

int coll_direct_allreduce(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_window_allreduce(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_window_broadcast(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_window_allgather(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_window_reducescatter(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_window_alltoall(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_ring_allreduce(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_ring_allgather(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_pairwise_allreduce(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_pairwise_reducescatter(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_alltoall(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_adasum(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_doubling(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_tree(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_chain(struct transport *t, const struct coll_job *job, hvd_error *err);

#endif

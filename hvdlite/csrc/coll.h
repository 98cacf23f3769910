/* Collectives: one algorithm a file, one row of the table each.
 *
 * Layer 3. An algorithm is a function of the transport and a job: no threads, no MPI, no MXNet, no
 * static state. It returns when this rank's part is done, with the same bits on every rank. Costs
 * on top of each file: p ranks, S bytes, a = seconds a message, b = seconds a byte, g = seconds a
 * byte reduced. */
#ifndef HVDLITE_COLL_H
#define HVDLITE_COLL_H

#include "reduce.h"
#include "scratch.h"
#include "transport.h"

/* One tensor of a batch: `in` may be `out`. */
struct coll_piece {
    const char *in;
    char *out;
    size_t bytes;
};

/* Equal on every rank, except for the pointers, the scratch and an allgather's `in`. */
struct coll_job {
    hvd_kind kind;
    void *data;   /* allreduce, broadcast: in place; allgather: all parts, in the order of ranks */
    size_t bytes; /* of data */

    /* allreduce, broadcast on a window: the tensors themselves, `bytes` in all, instead of data */
    const struct coll_piece *pieces;
    size_t npieces;
    char *const *memory; /* [local rank]: the parts of the region in which they all lie, or NULL */

    const struct reduce_kernels *reduce; /* allreduce */
    double prescale;
    struct reduce_final final;

    int root; /* broadcast */

    /* allgather: this rank's part, not inside data. Pairwise allreduce: this rank's values, where
     * sums have another size than they and go to data; else NULL. */
    const void *in;
    const size_t *part_end; /* allgather: [rank]: where its part ends in data */

    struct window *window; /* of all ranks, when they are on one host, else NULL */

    struct scratch *scratch; /* the algorithm's own working memory, kept between calls */
};

struct coll_algorithm {
    const char *name;
    hvd_kind kind;
    bool own_accumulator; /* only for dtypes that are their own accumulators */
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

/* Segment k, of `length` bytes, of a range; shorter at its end, empty past it. */
struct coll_range coll_segment(struct coll_range range, size_t length, size_t k);

int coll_direct_allreduce(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_window_allreduce(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_window_broadcast(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_window_allgather(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_ring_allreduce(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_ring_allgather(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_pairwise(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_doubling(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_tree(struct transport *t, const struct coll_job *job, hvd_error *err);
int coll_chain(struct transport *t, const struct coll_job *job, hvd_error *err);

#endif

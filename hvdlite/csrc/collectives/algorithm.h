/* What algorithms share: ranges of the data, exchanges between ranks, folding of rank numbers.
 *
 * The functions keep no state. The thread that runs the collective calls them. */
#ifndef HVDLITE_COLLECTIVES_ALGORITHM_H
#define HVDLITE_COLLECTIVES_ALGORITHM_H

#include "collectives/coll.h"

/* A barrier in a window: returns when all ranks have called it. */
int coll_meet(const struct comm *host, hvd_error *err);

/* Replaces each number, a double, by its largest value on any rank. */
int coll_max(const struct comm *comm, void *numbers, size_t bytes, struct scratch *scratch,
             hvd_error *err);

struct coll_range {
    size_t begin, end; /* bytes */
};

static inline size_t coll_length(struct coll_range r) { return r.end - r.begin; }

/* Cuts `bytes`, a multiple of `element`, into n chunks whose sizes differ by at most one
 * element. */
struct coll_range coll_chunk(size_t bytes, size_t element, int n, int chunk);

/* Cuts a range like coll_chunk. */
static inline struct coll_range coll_cut(struct coll_range range, size_t element, int n,
                                         int chunk) {
    struct coll_range in = coll_chunk(coll_length(range), element, n, chunk);
    return (struct coll_range){range.begin + in.begin, range.begin + in.end};
}

/* Returns a rank's part; end[i] is the end of rank i's part. */
static inline struct coll_range coll_part(const size_t *end, int rank) {
    return (struct coll_range){rank ? end[rank - 1] : 0, end[rank]};
}

/* For an alltoall: return the address of byte `at` of the input or of the output. This byte must be
 * in the part for `rank`, or in the part from `rank`. */
const char *coll_part_for(const struct coll_args *args, int rank, size_t at);
char *coll_part_from(const struct coll_args *args, int rank, size_t at);
/* Copies the part that this rank sends to itself, unless args->listed is set. */
void coll_copy_own_part(const struct comm *comm, const struct coll_args *args);

/* Returns segment k of a range that is cut into segments of `length` bytes. The last segment may be
 * shorter; segments beyond the range's end are empty. */
struct coll_range coll_segment(struct coll_range range, size_t length, size_t k);

/* Returns one thread's part of a range that several threads share. Parts begin at multiples of a
 * cache line, counted from the range's beginning. */
struct coll_range coll_part_of(struct coll_range range, int part, int parts);

/* ---- work that this rank's threads share: share.c ---- */

/* Works on a range; several threads work on different ranges at the same time. */
typedef void coll_work(const void *arg, struct coll_range range);

/* Works on the whole range. `bytes`: how many bytes the work reads or how many it writes, whichever
 * is more. If helpers save time for so many bytes, the threads share the range in parts that begin
 * at multiples of a cache line, counted from the range's beginning. The next functions share their
 * work in the same way. */
void coll_share(const struct comm *comm, size_t bytes, struct coll_range range, coll_work *work,
                const void *arg);
void coll_copy(const struct comm *comm, void *to, const void *from, size_t bytes);
/* Call a kernel of reduce.h for n elements. */
void coll_widen(const struct comm *comm, const struct reduce_kernels *k, void *wide, const void *in,
                size_t n, double scale);
void coll_combine_wide(const struct comm *comm, const struct reduce_kernels *k, void *out,
                       const void *a, const void *b, size_t n);
void coll_narrow(const struct comm *comm, const struct reduce_kernels *k, void *out,
                 const void *wide, size_t n, struct reduce_final final);

/* Returns the range of a chunk that lies in one tensor. The tensor has `bytes` and begins at offset
 * `begin` of the batch. */
struct coll_range coll_overlap(struct coll_range chunk, size_t begin, size_t bytes);

/* Returns the number of segments of `length` bytes that `bytes` bytes need. */
static inline size_t coll_segments(size_t bytes, size_t length) {
    return (bytes + length - 1) / length;
}

/* A send to one rank and a receive from another; either may have 0 bytes. */
struct coll_exchange {
    const char *out;
    char *in;
    size_t out_bytes, in_bytes;
    int to, from;
};

/* An allreduce in slices. The caller has work to do before (prepare) and after (finish) each slice.
 * All ranks use the same order, because the ranks of a host may do this work together: prepare 1,
 * finish 0, prepare 2, finish 1, ... The caller prepares slice 0 before the call. */
struct coll_slices {
    size_t n; /* number of slices */
    /* returns the range of the slice's chunk in the data */
    struct coll_range (*chunk)(const void *arg, size_t slice, int chunk);
    size_t longest_chunk; /* bytes of the longest chunk; equal on all ranks */
    int (*prepare)(const void *arg, size_t slice, hvd_error *err);
    int (*finish)(const void *arg, size_t slice, hvd_error *err); /* NULL: nothing to do */
    /* If not NULL, the ring calls `final` for each segment whose sum is complete. If this rank has
     * completed the sum, `own` is true, and `final` may change the sum before the ring sends it on.
     * Rank r completes the sums of chunk r + 1. */
    void (*final)(const void *arg, struct coll_range segment, bool own);
    const void *arg;
};

/* A sequence of exchanges of up to 2^30 bytes, several in flight. An exchange (item) has the same
 * number on both of its ranks. */
struct coll_pipeline {
    size_t items;
    struct coll_exchange (*item)(const void *arg, size_t i);
    /* Called for each item in order, after it has arrived; may run collectives. NULL: not called */
    int (*received)(const void *arg, size_t i, hvd_error *err);
    const void *arg;
    size_t depth; /* items in flight in each direction, 1 .. PACE_MOST_DEPTH */
    /* How many items, at most `depth`, a rank sends ahead of the item that it waits for. 0: item i
     * is sent after item i has arrived. */
    size_t send_ahead;
    size_t reuse; /* item i is received into the memory that item i - reuse sent; 0: no reuse */
    const struct coll_slices *slices; /* each slice has items / slices->n items; NULL: no slices */
};
int coll_pipeline(const struct comm *comm, const struct coll_pipeline *p, hvd_error *err);

/* Does one exchange of any size, in segments. */
int coll_exchange(const struct comm *comm, struct coll_exchange x, hvd_error *err);

/* Folding, for algorithms that need 2^m ranks. If p is not a power of two, the first 2 (p - 2^m)
 * ranks form pairs. The even rank of a pair gives its data to the odd rank, sits out and receives
 * the result. */
struct coll_fold {
    int positions; /* 2^m */
    int pairs;
};
struct coll_fold coll_fold(int size);

/* Ranks that take part have positions 0 .. 2^m - 1; a rank that sits out has no position. */
enum { COLL_SITS_OUT = -1 };
int coll_fold_rank(struct coll_fold fold, int position);
int coll_fold_position(struct coll_fold fold, int rank);

/* The table of algorithms, whose columns are the members of struct coll_algorithm. The first row
 * that accepts a collective runs it. The functions in coll.c decide whether a row accepts a
 * collective. Some row must accept every collective of a kind; for Adasum this is the row
 * "Adasum". */
#define ALGORITHMS(ROW)                                                                            \
    ROW("direct allreduce", HVD_ALLREDUCE, true, in_region, coll_direct_allreduce)                 \
    ROW("window allreduce in teams", HVD_ALLREDUCE, true, in_teams, coll_window_teams)             \
    ROW("window allreduce", HVD_ALLREDUCE, true, on_window, coll_window_allreduce)                 \
    ROW("window broadcast", HVD_BROADCAST, true, on_window, coll_window_broadcast)                 \
    ROW("window allgather", HVD_ALLGATHER, false, on_window, coll_window_allgather)                \
    ROW("window reducescatter", HVD_REDUCESCATTER, false, on_window, coll_window_reducescatter)    \
    ROW("window alltoall", HVD_ALLTOALL, false, on_window, coll_window_alltoall)                   \
    ROW("direct allreduce by hosts", HVD_ALLREDUCE, true, in_regions, coll_hosts_direct)           \
    ROW("allreduce by hosts", HVD_ALLREDUCE, false, reduces_by_hosts, coll_hosts_allreduce)        \
    ROW("broadcast by hosts", HVD_BROADCAST, false, by_hosts, coll_hosts_broadcast)                \
    ROW("allgather by hosts", HVD_ALLGATHER, false, by_hosts, coll_hosts_allgather)                \
    ROW("reducescatter by hosts", HVD_REDUCESCATTER, false, reduces_by_hosts,                      \
        coll_hosts_reducescatter)                                                                  \
    ROW("Adasum", HVD_ALLREDUCE, false, by_adasum, coll_adasum)                                    \
    ROW("recursive doubling", HVD_ALLREDUCE, false, in_few_steps, coll_doubling)                   \
    ROW("circulant", HVD_ALLREDUCE, false, in_log_rounds, coll_circulant)                          \
    ROW("ring", HVD_ALLREDUCE, false, own_accumulator, coll_ring_allreduce)                        \
    ROW("pairwise allreduce", HVD_ALLREDUCE, false, by_kernels, coll_pairwise_allreduce)           \
    ROW("binomial tree", HVD_BROADCAST, false, by_tree, coll_tree)                                 \
    ROW("pipelined chain", HVD_BROADCAST, false, NULL, coll_chain)                                 \
    ROW("ring allgather", HVD_ALLGATHER, false, NULL, coll_ring_allgather)                         \
    ROW("pairwise reducescatter", HVD_REDUCESCATTER, false, NULL, coll_pairwise_reducescatter)     \
    ROW("pairwise alltoall", HVD_ALLTOALL, false, NULL, coll_alltoall)

#define DECLARE(NAME, KIND, IN_TENSORS, TAKES, RUN) coll_function RUN;
ALGORITHMS(DECLARE)
#undef DECLARE

/* Ring and pairwise allreduces in slices, without a pause between slices. They do not apply the
 * prescale. */
int coll_ring_slices(const struct comm *comm, const struct coll_args *args,
                     const struct coll_slices *slices, hvd_error *err);
int coll_pairwise_slices(const struct comm *comm, const struct coll_args *args,
                         const struct coll_slices *slices, hvd_error *err);

#endif

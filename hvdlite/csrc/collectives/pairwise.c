/* Pairwise exchange: every rank sends every other rank its input of that rank's chunk. Allreduce,
 * and its first half alone, reducescatter.
 *
 * Allreduce of dtypes whose sum needs a wider accumulator (float16, bfloat16, small integers), and
 * of kernels whose results have another size than their elements. The inputs travel as they are.
 * The owner of a chunk adds all p inputs in the accumulator, rounds once, and sends the result to
 * all. p = 3, rank a owns chunk 0:
 *
 *            rank a             rank b             rank c
 *   exchange a0 b0 c0           a1 b1 c1           a2 b2 c2
 *   reduce   S0                 S1                 S2
 *   spread   S0 S1 S2           S0 S1 S2           S0 S1 S2
 *
 * Chunks travel in segments: segment k + 1 is exchanged while k is added and spread.
 *
 * Cost: 2(p-1) a + 2(p-1)/p S b + (p-1)/p S g, as a ring, in two steps. But all pairs of ranks
 * talk: with k ranks a host, k times a ring's bytes cross between hosts. Reducescatter: half of
 * both. */
#include "collectives/coll.h"

#include <string.h>

struct pairwise {
    const struct comm *comm;
    const struct coll_args *args;
    const char *in;                        /* this rank's input, all chunks */
    char *out;                             /* where the result of its own chunk goes */
    size_t segment, nseg;                  /* bytes of a segment; segments of the longest chunk */
    char *slots[2];                        /* the other ranks' inputs of segment k, at k % 2 */
    const char **inputs;                   /* [ranks]: this rank's input and those in the slots */
    struct transfer *exchange[2], *spread; /* 2 (p - 1) transfers each: sends, then receives */
};

/* The peers to send to and to receive from in step d: the pairs of a step are disjoint. */
static int peer_to(const struct pairwise *w, int d) { return (w->comm->rank + d) % w->comm->size; }
static int peer_from(const struct pairwise *w, int d) {
    return (w->comm->rank + w->comm->size - d) % w->comm->size;
}

static struct coll_range chunk_of(const struct pairwise *w, int chunk) {
    if (w->args->kind == HVD_REDUCESCATTER) return coll_part(w->args->in_end, chunk);
    return coll_chunk(w->args->bytes, w->args->reduce->size, w->comm->size, chunk);
}

static struct coll_range segment_of(const struct pairwise *w, int chunk, size_t k) {
    return coll_segment(chunk_of(w, chunk), w->segment, k);
}

/* Where the results of a range lie. */
static struct coll_range results_of(const struct pairwise *w, struct coll_range range) {
    const struct reduce_kernels *k = w->args->reduce;
    return (struct coll_range){range.begin / k->size * k->result, range.end / k->size * k->result};
}

/* Where the result of segment k of the own chunk lies. */
static char *result(const struct pairwise *w, size_t k) {
    size_t first = results_of(w, chunk_of(w, w->comm->rank)).begin;
    return w->out + (results_of(w, segment_of(w, w->comm->rank, k)).begin - first);
}

static int send(struct pairwise *w, const void *data, size_t bytes, int to, struct transfer *x,
                hvd_error *err) {
    return bytes ? comm_isend(w->comm, data, bytes, to, x, err) : HVD_OK;
}

static int receive(struct pairwise *w, void *data, size_t bytes, int from, struct transfer *x,
                   hvd_error *err) {
    return bytes ? comm_irecv(w->comm, data, bytes, from, x, err) : HVD_OK;
}

static int wait_all(struct pairwise *w, struct transfer *x, hvd_error *err) {
    for (int i = 0; i < 2 * (w->comm->size - 1); i++) HVD_TRY(comm_wait(w->comm, &x[i], err));
    return HVD_OK;
}

static int post_exchange(struct pairwise *w, size_t k, hvd_error *err) {
    int others = w->comm->size - 1;
    size_t own = coll_length(segment_of(w, w->comm->rank, k));
    struct transfer *x = w->exchange[k % 2];
    for (int d = 1; d <= others; d++) {
        char *slot = w->slots[k % 2] + (size_t)(d - 1) * w->segment;
        HVD_TRY(receive(w, slot, own, peer_from(w, d), &x[others + d - 1], err));
        struct coll_range theirs = segment_of(w, peer_to(w, d), k);
        HVD_TRY(send(w, w->in + theirs.begin, coll_length(theirs), peer_to(w, d), &x[d - 1], err));
    }
    return HVD_OK;
}

static void reduce(struct pairwise *w, size_t k) {
    struct coll_range own = segment_of(w, w->comm->rank, k);
    const char *slot = w->slots[k % 2];
    w->inputs[0] = w->in + own.begin;
    for (int d = 1; d < w->comm->size; d++, slot += w->segment) w->inputs[d] = slot;
    reduce_all(w->args->reduce, result(w, k), w->inputs, w->comm->size,
               coll_length(own) / w->args->reduce->size, w->args->prescale, w->args->final);
}

static int post_spread(struct pairwise *w, size_t k, hvd_error *err) {
    int others = w->comm->size - 1;
    size_t own = coll_length(results_of(w, segment_of(w, w->comm->rank, k)));
    for (int d = 1; d <= others; d++) {
        struct coll_range theirs = results_of(w, segment_of(w, peer_from(w, d), k));
        HVD_TRY(receive(w, (char *)w->args->data + theirs.begin, coll_length(theirs),
                        peer_from(w, d), &w->spread[others + d - 1], err));
        HVD_TRY(send(w, result(w, k), own, peer_to(w, d), &w->spread[d - 1], err));
    }
    return HVD_OK;
}

static int run_segments(struct pairwise *w, hvd_error *err) {
    HVD_TRY(post_exchange(w, 0, err));
    for (size_t k = 0; k < w->nseg; k++) {
        HVD_TRY(wait_all(w, w->exchange[k % 2], err));
        if (k + 1 < w->nseg) HVD_TRY(post_exchange(w, k + 1, err));
        reduce(w, k);
        HVD_TRY(wait_all(w, w->spread, err));
        if (w->args->kind == HVD_ALLREDUCE) HVD_TRY(post_spread(w, k, err));
    }
    return wait_all(w, w->spread, err);
}

/* The segments of all peers are about one COLL_SEGMENT together, so they stay in the cache. */
static size_t segment_bytes(int others) {
    size_t bytes = (size_t)COLL_SEGMENT / (size_t)others;
    return bytes < 8192 ? 8192 : bytes & ~(size_t)63;
}

static int run_pairwise(struct pairwise *w, hvd_error *err) {
    const struct coll_args *args = w->args;
    size_t others = (size_t)w->comm->size - 1, transfers = 2 * others * sizeof(struct transfer);
    w->segment = segment_bytes((int)others);
    w->nseg = (coll_length(chunk_of(w, 0)) + w->segment - 1) / w->segment; /* the longest */
    size_t slots = others * w->segment;
    void *memory;
    size_t pointers = (others + 1) * sizeof *w->inputs;
    HVD_TRY(scratch_get(args->scratch, 2 * slots + pointers + 3 * transfers, &memory, err));
    char *at = memory;
    for (int i = 0; i < 2; i++, at += slots) w->slots[i] = at;
    w->inputs = (const char **)(void *)at;
    at += pointers;
    memset(at, 0, 3 * transfers);
    w->spread = (struct transfer *)(void *)at;
    for (int i = 0; i < 2; i++) w->exchange[i] = w->spread + (size_t)(i + 1) * 2 * others;
    return run_segments(w, err);
}

int coll_pairwise_allreduce(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct pairwise w = {.comm = comm, .args = args, .in = args->in ? args->in : args->data};
    w.out = (char *)args->data + results_of(&w, chunk_of(&w, comm->rank)).begin;
    return run_pairwise(&w, err);
}

int coll_pairwise_reducescatter(const struct comm *comm, const struct coll_args *args,
                                hvd_error *err) {
    struct pairwise w = {.comm = comm, .args = args, .in = args->in, .out = args->data};
    return run_pairwise(&w, err);
}

/* Circulant allreduce: reduce-scatter, then allgather, in few rounds for any number of ranks.
 *
 *   Traeff, "Optimal, Non-pipelined Reduce-scatter and Allreduce Algorithms" (2024),
 *   arXiv:2410.14234.
 *
 * A rank keeps its chunks in a row that begins with its own chunk: block i of rank r is chunk r + i
 * (mod p). The first distance is p; each next distance is half of the last, rounded up: p = 5 gives
 * 5 3 2 1. In the round from distance d' to the next distance d, rank r sends its blocks from d to
 * d' - 1 to rank r + d. The blocks from 0 to d' - d - 1 of rank r + d are the same chunks; rank
 * r + d adds the received blocks to them. After the last round, block 0 is the sum of the rank's
 * own chunk. The allgather runs the same rounds in reverse. p = 5, what rank a has; a2 is chunk 2
 * of rank a, acd0 the sum of the chunks 0 of ranks a, c and d, S0 the sum of all chunks 0:
 *
 *   start    a0      a1      a2     a3  a4
 *   3        ac0     ac1     a2                  sends a3 a4 to d, receives c0 c1 from c
 *   2        acd0    ac1                         sends a2 to c, receives d0 from d
 *   1        S0                                  sends ac1 to b, receives be0 from e
 *   1        S0      S1                          sends S0 to e, receives S1 from b
 *   2        S0      S1      S2                  sends S0 to d, receives S2 from c
 *   3        S0      S1      S2     S3  S4       sends S0 S1 to c, receives S3 S4 from d
 *
 * Sums travel in the accumulator type. The owner of a chunk rounds its sum once, so all ranks get
 * the same bits.
 *
 * Cost: 2 ceil(log2 p) a + 2(p-1)/p S b + (p-1)/p S g and two copies of S. A circulant sends as
 * many bytes as a ring in fewer steps, but nothing overlaps, so it is good for small data, where
 * the number of steps decides. A wider accumulator increases the bytes of the reduce-scatter. */
#include "collectives/algorithm.h"

enum { MOST_ROUNDS = 32 }; /* enough for 2^31 ranks, because each round halves the distance */

struct circulant {
    const struct comm *comm;
    const struct coll_args *args;
    char *row, *arriving, *results; /* the sums, the arriving blocks, the finished blocks */
    int rounds;
    int distance[MOST_ROUNDS + 1]; /* distances of the reduce-scatter's rounds, in rising order */
};

/* Returns the offset of a chunk. For chunk >= p: as if a second copy of the data followed the
 * data. */
static size_t begin_of(const struct circulant *c, int chunk) {
    int p = c->comm->size;
    size_t begin = coll_chunk(c->args->bytes, c->args->reduce->size, p, chunk % p).begin;
    return chunk < p ? begin : begin + c->args->bytes;
}

/* Returns the number of elements before block i of the row. */
static size_t elements_before(const struct circulant *c, int i) {
    int r = c->comm->rank;
    return (begin_of(c, r + i) - begin_of(c, r)) / c->args->reduce->size;
}

static int neighbor(const struct circulant *c, int distance) {
    int p = c->comm->size;
    return (c->comm->rank + p + distance) % p;
}

/* Sends the blocks with number distance[k] and higher to the rank that adds to them next. Adds the
 * received blocks to this rank's first blocks. */
static int reduce_round(const struct circulant *c, int k, hvd_error *err) {
    const struct reduce_kernels *kernels = c->args->reduce;
    int from = c->distance[k], to = c->distance[k + 1];
    size_t first = elements_before(c, from), sent = elements_before(c, to) - first;
    size_t kept = elements_before(c, to - from);
    struct coll_exchange x = {.out = c->row + first * kernels->wide,
                              .in = c->arriving,
                              .out_bytes = sent * kernels->wide,
                              .in_bytes = kept * kernels->wide,
                              .to = neighbor(c, from),
                              .from = neighbor(c, -from)};
    HVD_TRY(coll_exchange(c->comm, x, err));
    coll_combine_wide(c->comm, kernels, c->row, c->row, c->arriving, kept);
    return HVD_OK;
}

/* Runs reduce_round in reverse, with finished blocks. */
static int gather_round(const struct circulant *c, int k, hvd_error *err) {
    size_t size = c->args->reduce->size;
    int from = c->distance[k], to = c->distance[k + 1];
    size_t first = elements_before(c, from), received = elements_before(c, to) - first;
    struct coll_exchange x = {.out = c->results,
                              .in = c->results + first * size,
                              .out_bytes = elements_before(c, to - from) * size,
                              .in_bytes = received * size,
                              .to = neighbor(c, -from),
                              .from = neighbor(c, from)};
    return coll_exchange(c->comm, x, err);
}

static void find_distances(struct circulant *c) {
    int halvings[MOST_ROUNDS], n = 0;
    for (int d = c->comm->size; d > 1; d = (d + 1) / 2) halvings[n++] = d;
    c->rounds = n;
    c->distance[0] = 1;
    for (int k = 1; k <= n; k++) c->distance[k] = halvings[n - k];
}

static int get_memory(struct circulant *c, hvd_error *err) {
    const struct reduce_kernels *k = c->args->reduce;
    size_t row = c->args->bytes / k->size * k->wide;
    size_t arriving = elements_before(c, c->comm->size - c->distance[c->rounds - 1]) * k->wide;
    void *memory;
    HVD_TRY(scratch_get(c->args->scratch, row + arriving + c->args->bytes, &memory, err));
    c->row = memory;
    c->arriving = c->row + row;
    c->results = c->arriving + arriving;
    return HVD_OK;
}

int coll_circulant(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    const struct reduce_kernels *k = args->reduce;
    struct circulant c = {.comm = comm, .args = args};
    find_distances(&c);
    HVD_TRY(get_memory(&c, err));
    size_t own = begin_of(&c, comm->rank), tail = args->bytes - own, n = tail / k->size;
    char *data = args->data;
    coll_widen(comm, k, c.row, data + own, n, args->prescale);
    coll_widen(comm, k, c.row + n * k->wide, data, own / k->size, args->prescale);
    for (int round = c.rounds - 1; round >= 0; round--) HVD_TRY(reduce_round(&c, round, err));
    coll_narrow(comm, k, c.results, c.row, elements_before(&c, 1), args->final);
    for (int round = 0; round < c.rounds; round++) HVD_TRY(gather_round(&c, round, err));
    coll_copy(comm, data + own, c.results, tail);
    coll_copy(comm, data, c.results + tail, own);
    return HVD_OK;
}

/* Pairwise exchange: every rank sends each chunk to the rank that adds up this chunk. A
 * reducescatter is the first half of the allreduce.
 *
 * The allreduce is used for dtypes with a wider accumulator (float16, bfloat16, integers of up to
 * 32 bits) and for kernels whose results and elements differ in size. Inputs are sent unchanged.
 * The owner of a chunk adds all p inputs in the accumulator, rounds once, and sends the result to
 * all ranks. p = 3, rank a owns chunk 0:
 *
 *            rank a             rank b             rank c
 *   exchange a0 b0 c0           a1 b1 c1           a2 b2 c2
 *   reduce   S0                 S1                 S2
 *   spread   S0 S1 S2           S0 S1 S2           S0 S1 S2
 *
 * Chunks travel in segments; each segment for each peer is one item of the pipeline. In a round
 * every rank exchanges one segment of its inputs with all peers. Then every rank sends the result
 * of the segment of `lag` rounds before to all peers:
 *
 *   round      0       1     ...   lag           lag + 1       ...
 *   items      E0      E1    ...   E(lag) S0     E(lag+1) S1   ...      p - 1 of each
 *
 * Data may be processed in slices; each slice has its own rounds.
 *
 * Cost (units: coll.h): 2(p-1) a + 2(p-1)/p S b + (p-1)/p S g, as a ring, but in two steps. All
 * pairs of ranks exchange data, so k ranks per host send k times as many bytes between hosts as a
 * ring. A reducescatter takes half of this time and sends half of these bytes. */
#include "collectives/algorithm.h"

#include <string.h>

struct pairwise {
    const struct comm *comm;
    const struct coll_args *args;
    const char *in;       /* this rank's input, with all chunks */
    size_t segment, nseg; /* bytes of a segment; number of segments of the longest chunk */
    /* peers: p - 1. lag: number of rounds between the sending of a segment and of its sum */
    size_t peers, lag;
    size_t rounds;       /* number of rounds of a slice */
    char *slots;         /* the peers' inputs for the last lag + 1 rounds, by k % (lag + 1) */
    const char **inputs; /* array of p: this rank's input, then the peers' inputs in `slots` */
    const struct coll_slices *slices; /* NULL: the data is not in slices */
};

/* Round k of a slice exchanges segment k of each chunk. */
struct round {
    size_t slice, k;
};

static struct coll_range chunk_of(const struct pairwise *w, size_t slice, int chunk) {
    if (w->args->kind == HVD_REDUCESCATTER) return coll_part(w->args->in_end, chunk);
    if (w->slices) return w->slices->chunk(w->slices->arg, slice, chunk);
    return coll_chunk(w->args->bytes, w->args->reduce->size, w->comm->size, chunk);
}

static struct coll_range segment_of(const struct pairwise *w, int chunk, struct round at) {
    return coll_segment(chunk_of(w, at.slice, chunk), w->segment, at.k);
}

/* Converts a range of elements to the range of their results. */
static struct coll_range results_of(const struct pairwise *w, struct coll_range range) {
    const struct reduce_kernels *k = w->args->reduce;
    return (struct coll_range){range.begin / k->size * k->result, range.end / k->size * k->result};
}

/* Returns where to store the result of a segment of this rank's chunk. */
static char *result(const struct pairwise *w, struct round at) {
    size_t begin = results_of(w, segment_of(w, w->comm->rank, at)).begin;
    if (w->args->kind == HVD_REDUCESCATTER)
        begin -= results_of(w, chunk_of(w, at.slice, w->comm->rank)).begin;
    return (char *)w->args->data + begin;
}

static char *slot_of(const struct pairwise *w, size_t k, size_t d) {
    return w->slots + (k % (w->lag + 1) * w->peers + d - 1) * w->segment;
}

/* Sends this rank's input for a segment of rank (r + d)'s chunk to that rank; receives the input of
 * rank r - d for a segment of this rank's chunk. */
static struct coll_exchange exchange(const struct pairwise *w, struct round at, size_t d) {
    int p = w->comm->size, self = w->comm->rank, to = (self + (int)d) % p;
    struct coll_range theirs = segment_of(w, to, at);
    return (struct coll_exchange){.out = w->in + theirs.begin,
                                  .out_bytes = coll_length(theirs),
                                  .to = to,
                                  .in = slot_of(w, at.k, d),
                                  .in_bytes = coll_length(segment_of(w, self, at)),
                                  .from = (self + p - (int)d) % p};
}

/* This rank, r, sends its result to rank r - d. It receives the result of rank r + d in the place
 * of its own input for rank r + d, which it sent a fixed number of items before. */
static struct coll_exchange spread(const struct pairwise *w, struct round at, size_t d) {
    int p = w->comm->size, self = w->comm->rank, from = (self + (int)d) % p;
    struct coll_range own = results_of(w, segment_of(w, self, at));
    struct coll_range theirs = results_of(w, segment_of(w, from, at));
    return (struct coll_exchange){.out = result(w, at),
                                  .out_bytes = coll_length(own),
                                  .to = (self + p - (int)d) % p,
                                  .in = (char *)w->args->data + theirs.begin,
                                  .in_bytes = coll_length(theirs),
                                  .from = from};
}

static size_t items_a_round(const struct pairwise *w) {
    return w->args->kind == HVD_ALLREDUCE ? 2 * w->peers : w->peers;
}

/* Returns the slice of item i of the pipeline, and the number of its segment in each chunk. */
static struct round round_of(const struct pairwise *w, size_t i) {
    size_t round = i / items_a_round(w);
    return (struct round){round / w->rounds, round % w->rounds};
}

static struct coll_exchange item_of(const void *arg, size_t i) {
    const struct pairwise *w = arg;
    struct round at = round_of(w, i);
    size_t d = i % items_a_round(w);
    if (d < w->peers) return exchange(w, at, d + 1);
    if (at.k < w->lag) return (struct coll_exchange){0};
    at.k -= w->lag;
    return spread(w, at, d - w->peers + 1);
}

/* An addition of the inputs of one segment, which are in w->inputs. */
struct addition {
    const struct pairwise *w;
    char *result;
};

static void add_range(const void *arg, struct coll_range range) {
    const struct addition *a = arg;
    const struct coll_args *args = a->w->args;
    const char *in[a->w->comm->size];
    for (int i = 0; i < a->w->comm->size; i++) in[i] = a->w->inputs[i] + range.begin;
    reduce_all(args->reduce, a->result + results_of(a->w, range).begin, in, a->w->comm->size,
               coll_length(range) / args->reduce->size, args->prescale, args->final);
}

static void reduce(const struct pairwise *w, struct round at) {
    struct coll_range own = segment_of(w, w->comm->rank, at);
    size_t bytes = coll_length(own);
    w->inputs[0] = w->in + own.begin;
    for (size_t d = 1; d <= w->peers; d++) w->inputs[d] = slot_of(w, at.k, d);
    coll_share(w->comm, bytes * (w->peers + 1), (struct coll_range){0, bytes}, add_range,
               &(struct addition){w, result(w, at)});
}

/* Called after each item. Adds a segment as soon as the inputs of all peers have arrived. */
static int reduce_if_whole(const void *arg, size_t i, hvd_error *err) {
    const struct pairwise *w = arg;
    struct round at = round_of(w, i);
    (void)err;
    if (i % items_a_round(w) == w->peers - 1 && at.k < w->nseg) reduce(w, at);
    return HVD_OK;
}

/* Returns the bytes of a segment. The p segments that are added together must fit the cache, and no
 * segment may be longer than the transport's segments (struct pace). */
static size_t segment_bytes(const struct pairwise *w, size_t longest) {
    /* chosen, not measured: a part of a usual L2 cache; shorter segments cost too many messages */
    static const size_t CACHED = 256 * 1024, LEAST = 8192;
    const struct reduce_kernels *k = w->args->reduce;
    size_t bytes = CACHED / w->peers > LEAST ? CACHED / w->peers : LEAST;
    if (k->result > k->size) longest = longest / k->result * k->size;
    bytes = (bytes < longest ? bytes : longest) / PACE_UNIT * PACE_UNIT;
    return bytes ? bytes : PACE_UNIT;
}

static int get_memory(struct pairwise *w, hvd_error *err) {
    size_t slots = (w->lag + 1) * w->peers * w->segment;
    void *memory;
    HVD_TRY(
        scratch_get(w->args->scratch, slots + (w->peers + 1) * sizeof *w->inputs, &memory, err));
    w->slots = memory;
    w->inputs = (const char **)(void *)(w->slots + slots);
    return HVD_OK;
}

/* A result is sent only after all inputs of its segment have arrived: it is sent `lag` rounds after
 * the inputs, these rounds have at least `depth` items, and a rank sends at most `depth` items
 * ahead of the item that it waits for. */
static int run_pairwise(struct pairwise *w, hvd_error *err) {
    struct pace pace = comm_pace(w->comm);
    bool spreads = w->args->kind == HVD_ALLREDUCE;
    w->peers = (size_t)w->comm->size - 1;
    w->segment = segment_bytes(w, pace.segment);
    size_t longest = w->slices ? w->slices->longest_chunk
                     : spreads ? coll_length(chunk_of(w, 0, 0))
                               : w->args->longest;
    w->nseg = coll_segments(longest, w->segment);
    w->lag = (pace.depth + items_a_round(w) - 1) / items_a_round(w);
    w->rounds = w->nseg + (spreads ? w->lag : 0);
    HVD_TRY(get_memory(w, err));
    size_t items = w->rounds * items_a_round(w);
    struct coll_pipeline p = {.items = items * (w->slices ? w->slices->n : 1),
                              .item = item_of,
                              .received = reduce_if_whole,
                              .arg = w,
                              .depth = pace.depth,
                              .send_ahead = pace.depth,
                              .reuse = spreads ? w->lag * items_a_round(w) + w->peers : 0,
                              .slices = w->slices};
    return w->nseg ? coll_pipeline(w->comm, &p, err) : HVD_OK;
}

int coll_pairwise_slices(const struct comm *comm, const struct coll_args *args,
                         const struct coll_slices *slices, hvd_error *err) {
    struct pairwise w = {
        .comm = comm, .args = args, .in = args->in ? args->in : args->data, .slices = slices};
    return run_pairwise(&w, err);
}

int coll_pairwise_allreduce(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    return coll_pairwise_slices(comm, args, NULL, err);
}

int coll_pairwise_reducescatter(const struct comm *comm, const struct coll_args *args,
                                hvd_error *err) {
    struct pairwise w = {.comm = comm, .args = args, .in = args->in};
    return run_pairwise(&w, err);
}

/* Adasum: an allreduce that adds orthogonal vectors and averages parallel vectors.
 *
 *   Maleki, Musuvathi, Mytkowicz et al., "Scaling Distributed Training with Adaptive Summation"
 *   (2020), and its algorithm AdasumRVH: recursive vector halving, then doubling.
 *
 * Two vectors a and b, a from the lower ranks, combine to (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2)
 * b. 2^m ranks combine the results of their two halves. In step k a rank exchanges half of its
 * elements with the partner at distance 2^k; then each of the two has one half of both vectors. The
 * 2^(k+1) ranks with parts of these two vectors add up their dot products. At the end the halves
 * travel back. Example: p = 4, vectors of 4 elements. A column shows the results on a rank; ab is
 * the result of a and b:
 *
 *            rank a        rank b        rank c        rank d
 *   start    a0 a1 a2 a3   b0 b1 b2 b3   c0 c1 c2 c3   d0 d1 d2 d3
 *   step 0   ab0 ab1       ab2 ab3       cd0 cd1       cd2 cd3       a <-> b, c <-> d
 *   step 1   S0            S2            S1            S3            a <-> c, b <-> d
 *   back 1   S0 S1         S2 S3         S0 S1         S2 S3
 *   back 0   S0 S1 S2 S3   on all ranks
 *
 * Ranks are numbered host by host here: a, b, ... are the ranks of the first host, then those of
 * the second. So the long vectors of the first steps stay on a host. Hosts of k ranks, k a power of
 * two, send 2(h-1)/h S bytes each, the least possible, for any numbering of the ranks.
 *
 * If p is not a power of two, ranks fold first (algorithm.h). Each element of the result is
 * computed on only one rank. Vectors stay in the accumulator type until the results travel back;
 * dot products are summed in double. If a vector has norm 0, the result is the other vector.
 *
 * Cost (units: coll.h): (2 m + m (m+1) / 2) a + 2 (p-1)/p S b + 3 (p-1)/p S g; if p is not a power
 * of two, two more messages of S bytes. */
#include "collectives/algorithm.h"
#include "transport/comm.h"

struct adasum {
    const struct comm *comm;
    int index; /* this rank's number if the ranks are numbered host by host */
    const struct coll_args *args;
    const struct reduce_kernels *k;
    size_t n; /* number of elements of a vector */
    struct coll_fold fold;
    /* accumulators: this rank's whole vector; the partner's elements */
    char *mine, *theirs;
};

static int rank_at(const struct adasum *w, int index) {
    return w->comm->layout ? w->comm->layout->by_host[index] : index;
}

static int own_index(const struct adasum *w) {
    int index = 0;
    while (rank_at(w, index) != w->comm->rank) index++;
    return index;
}

static int rank_of(const struct adasum *w, int position) {
    return rank_at(w, coll_fold_rank(w->fold, position));
}

/* `position` is a rank's number after folding (algorithm.h). Returns the elements that this rank
 * has when the steps of all distances below `distance` are done. */
static struct coll_range held_by(const struct adasum *w, int position, int distance) {
    struct coll_range range = {0, w->n};
    for (int d = 1; d < distance; d *= 2) {
        size_t middle = range.begin + coll_length(range) / 2;
        *(position & d ? &range.begin : &range.end) = middle;
    }
    return range;
}

static int swap(const struct adasum *w, const void *out, size_t out_bytes, void *in,
                size_t in_bytes, int peer, hvd_error *err) {
    struct coll_exchange x = {out, in, out_bytes, in_bytes, peer, peer};
    return coll_exchange(w->comm, x, err);
}

/* Adds up the dot products of all ranks that have parts of the same two vectors. */
static int sum_dots(const struct adasum *w, struct reduce_dots *sums, int position, int distance,
                    hvd_error *err) {
    for (int d = 1; d <= distance; d *= 2) {
        struct reduce_dots other;
        HVD_TRY(swap(w, sums, sizeof *sums, &other, sizeof other, rank_of(w, position ^ d), err));
        sums->aa += other.aa;
        sums->bb += other.bb;
        sums->ab += other.ab;
    }
    return HVD_OK;
}

/* mine = x a + y b; `mine` is a or b. */
struct blending {
    const struct reduce_kernels *k;
    char *mine;
    double x, y;
    const char *a, *b;
};

static void blend_range(const void *arg, struct coll_range range) {
    const struct blending *m = arg;
    size_t at = range.begin * m->k->wide;
    reduce_blend(m->k, m->mine + at, m->x, m->a + at, m->y, m->b + at, coll_length(range));
}

/* Computes mine = Adasum(mine, theirs) for a range of elements. `first`: `mine` is the vector of
 * the lower ranks. */
static void blend(const struct adasum *w, struct coll_range range, bool first,
                  struct reduce_dots dots) {
    char *mine = w->mine + range.begin * w->k->wide;
    size_t n = coll_length(range);
    struct blending m = {.k = w->k,
                         .mine = mine,
                         .x = dots.aa == 0 ? 1 : 1 - dots.ab / (2 * dots.aa),
                         .y = dots.bb == 0 ? 1 : 1 - dots.ab / (2 * dots.bb),
                         .a = first ? mine : w->theirs,
                         .b = first ? w->theirs : mine};
    coll_share(w->comm, 2 * n * w->k->wide, (struct coll_range){0, n}, blend_range, &m);
}

/* One thread adds the products: the order of additions, which decides the bits of the result, must
 * not depend on the number of threads. */
static struct reduce_dots dots_of(const struct adasum *w, struct coll_range range, bool first) {
    const char *mine = w->mine + range.begin * w->k->wide;
    return reduce_dots(w->k, first ? mine : w->theirs, first ? w->theirs : mine,
                       coll_length(range));
}

static int halve(const struct adasum *w, int position, int distance, hvd_error *err) {
    int partner = position ^ distance;
    bool first = position < partner;
    size_t wide = w->k->wide;
    struct coll_range kept = held_by(w, position, 2 * distance);
    struct coll_range sent = held_by(w, partner, 2 * distance);
    HVD_TRY(swap(w, w->mine + sent.begin * wide, coll_length(sent) * wide, w->theirs,
                 coll_length(kept) * wide, rank_of(w, partner), err));
    struct reduce_dots dots = dots_of(w, kept, first);
    HVD_TRY(sum_dots(w, &dots, position, distance, err));
    blend(w, kept, first, dots);
    return HVD_OK;
}

/* Undoes one halving. Results travel back in the dtype, not in the accumulator type. */
static int restore(const struct adasum *w, int position, int distance, hvd_error *err) {
    int partner = position ^ distance;
    size_t size = w->k->size;
    struct coll_range own = held_by(w, position, 2 * distance);
    struct coll_range other = held_by(w, partner, 2 * distance);
    char *data = w->args->data;
    return swap(w, data + own.begin * size, coll_length(own) * size, data + other.begin * size,
                coll_length(other) * size, rank_of(w, partner), err);
}

static int run_steps(const struct adasum *w, int position, hvd_error *err) {
    for (int d = 1; d < w->fold.positions; d *= 2) HVD_TRY(halve(w, position, d, err));
    struct coll_range own = held_by(w, position, w->fold.positions);
    coll_narrow(w->comm, w->k, (char *)w->args->data + own.begin * w->k->size,
                w->mine + own.begin * w->k->wide, coll_length(own), w->args->final);
    for (int d = w->fold.positions / 2; d > 0; d /= 2) HVD_TRY(restore(w, position, d, err));
    return HVD_OK;
}

static int run_all(const struct adasum *w, hvd_error *err) {
    int position = coll_fold_position(w->fold, w->index);
    size_t vector = w->n * w->k->wide;
    if (position >= w->fold.pairs) return run_steps(w, position, err);
    int other = rank_at(w, w->index ^ 1);
    if (position == COLL_SITS_OUT) {
        HVD_TRY(swap(w, w->mine, vector, NULL, 0, other, err));
        return swap(w, NULL, 0, w->args->data, w->args->bytes, other, err);
    }
    struct coll_range all = {0, w->n};
    HVD_TRY(swap(w, NULL, 0, w->theirs, vector, other, err));
    blend(w, all, false, dots_of(w, all, false));
    HVD_TRY(run_steps(w, position, err));
    return swap(w, w->args->data, w->args->bytes, NULL, 0, other, err);
}

int coll_adasum(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    const struct reduce_kernels *k = args->reduce;
    struct adasum w = {.comm = comm, .args = args, .k = k, .n = args->bytes / k->size};
    w.fold = coll_fold(comm->size);
    w.index = own_index(&w);
    bool in_place = k->wide == k->size; /* false: the accumulator is wider than the dtype */
    size_t vector = w.n * k->wide;
    size_t theirs = w.fold.pairs ? vector : (w.n - w.n / 2) * k->wide;
    void *memory;
    HVD_TRY(scratch_get(args->scratch, theirs + (in_place ? 0 : vector), &memory, err));
    w.theirs = memory;
    w.mine = in_place ? args->data : w.theirs + theirs;
    if (!in_place || args->prescale != 1)
        coll_widen(comm, k, w.mine, args->data, w.n, args->prescale);
    return run_all(&w, err);
}

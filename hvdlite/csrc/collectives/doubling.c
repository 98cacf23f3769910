/* Recursive doubling: in each step a rank exchanges its sums with a partner, at twice the distance
 * of the step before.
 *
 *   Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH",
 *   Int. J. High Perform. Comput. Appl. 19 (2005).
 *
 * p = 4: after step 0 ranks 0, 1 have a+b and ranks 2, 3 have c+d; after step 1 all have
 * (a+b)+(c+d). If p is not a power of two, ranks fold first (algorithm.h).
 *
 * Sums travel in the accumulator type and are rounded once. Both partners add in the same order,
 * the lower rank's sum first, so all ranks have the same bits, even of NaNs.
 *
 * Cost: floor(log2 p) (a + S b + S g); two more messages if p is not a power of two. */
#include "collectives/algorithm.h"

struct doubling {
    const struct comm *comm;
    const struct reduce_kernels *k;
    size_t n, bytes; /* number of elements; their bytes in the accumulator type */
    void *mine, *theirs;
};

/* Sends this rank's sums and receives the partner's sums; either may have 0 bytes. */
static int swap(struct doubling *w, size_t out_bytes, void *in, size_t in_bytes, int peer,
                hvd_error *err) {
    struct coll_exchange x = {w->mine, in, out_bytes, in_bytes, peer, peer};
    return coll_exchange(w->comm, x, err);
}

static void add_in_order(struct doubling *w, int peer) {
    bool lower = w->comm->rank < peer;
    coll_combine_wide(w->comm, w->k, w->mine, lower ? w->mine : w->theirs,
                      lower ? w->theirs : w->mine, w->n);
}

static int swap_and_add(struct doubling *w, int peer, hvd_error *err) {
    HVD_TRY(swap(w, w->bytes, w->theirs, w->bytes, peer, err));
    add_in_order(w, peer);
    return HVD_OK;
}

static int run_steps(struct doubling *w, struct coll_fold fold, int position, hvd_error *err) {
    for (int distance = 1; distance < fold.positions; distance *= 2)
        HVD_TRY(swap_and_add(w, coll_fold_rank(fold, position ^ distance), err));
    return HVD_OK;
}

static int run_all(struct doubling *w, hvd_error *err) {
    int rank = w->comm->rank;
    struct coll_fold fold = coll_fold(w->comm->size);
    int position = coll_fold_position(fold, rank);
    if (position >= fold.pairs) return run_steps(w, fold, position, err);
    if (position == COLL_SITS_OUT) {
        HVD_TRY(swap(w, w->bytes, NULL, 0, rank + 1, err));
        return swap(w, 0, w->mine, w->bytes, rank + 1, err);
    }
    HVD_TRY(swap(w, 0, w->theirs, w->bytes, rank - 1, err));
    add_in_order(w, rank - 1);
    HVD_TRY(run_steps(w, fold, position, err));
    return swap(w, w->bytes, NULL, 0, rank - 1, err);
}

int coll_doubling(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    const struct reduce_kernels *k = args->reduce;
    struct doubling w = {.comm = comm, .k = k, .n = args->bytes / k->size};
    w.bytes = w.n * k->wide;
    HVD_TRY(scratch_get(args->scratch, 2 * w.bytes, &w.mine, err));
    w.theirs = (char *)w.mine + w.bytes;
    coll_widen(comm, k, w.mine, args->data, w.n, args->prescale);
    HVD_TRY(run_all(&w, err));
    coll_narrow(comm, k, args->data, w.mine, w.n, args->final);
    return HVD_OK;
}

int coll_max(const struct comm *comm, void *numbers, size_t bytes, struct scratch *scratch,
             hvd_error *err) {
    struct coll_args args = {.kind = HVD_ALLREDUCE,
                             .data = numbers,
                             .bytes = bytes,
                             .reduce = reduce_kernels(HVD_FLOAT64, HVD_MAX),
                             .prescale = 1,
                             .final = {1, 1},
                             .scratch = scratch};
    return comm->size > 1 ? coll_doubling(comm, &args, err) : HVD_OK;
}

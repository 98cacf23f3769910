/* Window collectives in which every rank has a part for every other rank.
 *
 * A slot is cut into p - 1 sub-slots, one for each other rank. In a round every rank stages the
 * next segment of each part in the sub-slot of the receiver, and the receiver takes it from there.
 * p = 3; ab is a's part for b:
 *
 *            slot of a          slot of b          slot of c
 *   stage    ab ac              ba bc              ca cb
 *   take     a reads ba, ca     b reads ab, cb     c reads ac, bc
 *
 * alltoall copies the segments that it takes. reducescatter adds them in the order of ranks and
 * rounds once, so it gives the same bits as a window allreduce. The rounds overlap: a rank stages
 * round k before it takes round k - 1, and waits only for ranks that have a part for it.
 *
 * Cost on each rank, S = all its parts: 2 (p-1)/p S b in the cache, S read and written; 1 flag per
 * round. */
#include "collectives/algorithm.h"

#include "shm/window.h"

enum { BLOCK = 1024 }; /* bytes that are added at a time, a multiple of every dtype's size */

struct parts {
    const struct comm *comm;
    const struct coll_args *args;
    struct window *w;
    size_t rounds, segment; /* segment: bytes of a sub-slot */
    const char **in;        /* reducescatter: by rank, address of the rank's segment */
};

typedef int take_round(const struct parts *p, size_t k, hvd_error *err);

/* Returns the sub-slot in which `from` stages its segment for `to`. */
static char *sub_slot(const struct parts *p, int from, int to, size_t k) {
    size_t offset = (size_t)(to < from ? to : to - 1);
    return window_slot(p->w, from, p->w->rounds + k) + offset * p->segment;
}

static struct coll_range in_segment(const struct parts *p, int to, size_t k) {
    return coll_segment(coll_part(p->args->in_end, to), p->segment, k);
}

static int stage(const struct parts *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    int self = p->w->self;
    HVD_TRY(comm_wait_slot(p->comm, round, err));
    for (int to = 0; to < p->w->n; to++) {
        struct coll_range range = in_segment(p, to, k);
        if (to != self && coll_length(range))
            lines_copy(sub_slot(p, self, to, k), coll_part_for(p->args, to, range.begin),
                       coll_length(range));
        if (to != self) comm_count_window(p->comm, coll_length(range));
    }
    window_raise(p->w, WINDOW_STAGED, round);
    window_raise(p->w, WINDOW_REDUCED,
                 round); /* no rank waits for this flag, but all flags count the same rounds */
    return HVD_OK;
}

static int await_staged(const struct parts *p, int local_rank, size_t k, hvd_error *err) {
    if (local_rank == p->w->self) return HVD_OK;
    return comm_wait_flag(p->comm, local_rank, WINDOW_STAGED, p->w->rounds + k, err);
}

static int await_all(const struct parts *p, size_t k, hvd_error *err) {
    for (int i = 0; i < p->w->n; i++) HVD_TRY(await_staged(p, i, k, err));
    return HVD_OK;
}

/* Adds the blocks at one offset of the segments for this rank. */
static void add_block(const struct parts *p, size_t k, size_t offset, size_t bytes) {
    const struct reduce_kernels *kernels = p->args->reduce;
    int self = p->w->self;
    size_t at = in_segment(p, self, k).begin + offset;
    for (int i = 0; i < p->w->n; i++)
        p->in[i] = i == self ? (const char *)p->args->in + at : sub_slot(p, i, self, k) + offset;
    char *out = (char *)p->args->data + at - coll_part(p->args->in_end, self).begin;
    reduce_all(kernels, out, p->in, p->w->n, bytes / kernels->size, p->args->prescale,
               p->args->final);
    for (int i = 0; i < p->w->n; i++)
        if (i != self) lines_take_over(sub_slot(p, i, self, k) + offset, bytes);
}

static int add_segment(const struct parts *p, size_t k, hvd_error *err) {
    size_t all = coll_length(in_segment(p, p->w->self, k));
    if (all) HVD_TRY(await_all(p, k, err));
    for (size_t offset = 0, bytes; offset < all; offset += bytes) {
        bytes = all - offset < BLOCK ? all - offset : BLOCK;
        add_block(p, k, offset, bytes);
    }
    return HVD_OK;
}

static int copy_segments(const struct parts *p, size_t k, hvd_error *err) {
    int self = p->w->self;
    for (int d = 1; d < p->w->n; d++) {
        int from = (self + d) % p->w->n;
        struct coll_range range = coll_segment(coll_part(p->args->part_end, from), p->segment, k);
        if (!coll_length(range)) continue;
        HVD_TRY(await_staged(p, from, k, err));
        lines_copy_over(coll_part_from(p->args, from, range.begin), sub_slot(p, from, self, k),
                        coll_length(range));
    }
    return HVD_OK;
}

static int run_rounds(struct parts *p, take_round *take, hvd_error *err) {
    for (size_t k = 0; k < p->rounds + 1; k++) {
        if (k < p->rounds) HVD_TRY(stage(p, k, err));
        if (k == 0) continue;
        HVD_TRY(take(p, k - 1, err));
        window_raise(p->w, WINDOW_TAKEN, p->w->rounds + k - 1);
    }
    p->w->rounds += p->rounds;
    return HVD_OK;
}

static struct parts open_parts(const struct comm *comm, const struct coll_args *args) {
    struct parts p = {.comm = comm, .args = args, .w = comm->window};
    p.segment = (size_t)WINDOW_SLOT / (size_t)(p.w->n - 1) & ~(size_t)63;
    p.rounds = (args->longest + p.segment - 1) / p.segment;
    return p;
}

int coll_window_reducescatter(const struct comm *comm, const struct coll_args *args,
                              hvd_error *err) {
    struct parts p = open_parts(comm, args);
    void *memory;
    HVD_TRY(scratch_get(args->scratch, (size_t)p.w->n * sizeof *p.in, &memory, err));
    p.in = memory;
    return run_rounds(&p, add_segment, err);
}

int coll_window_alltoall(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct parts p = open_parts(comm, args);
    coll_copy_own_part(comm, args);
    return run_rounds(&p, copy_segments, err);
}

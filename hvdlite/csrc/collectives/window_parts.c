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
 * alltoall copies the segments that it takes. reducescatter adds them in the order of ranks, and
 * then rounds the sum, so it gives the same bits as a window allreduce. The rounds overlap: a rank
 * stages round k before it takes round k - 1, and waits only for ranks that have a part for it.
 *
 * Cost on each rank, whose parts have S bytes: 2 (p-1)/p S b in the cache (b as in coll.h), S bytes
 * read and S bytes written in memory; one wait for other ranks in each round. */
#include "collectives/window_pass.h"

enum { BLOCK = 1024 }; /* bytes that are added at a time, a multiple of every dtype's size */

/* Returns the part of rank `from`'s slot that has its segment for rank `to`. */
static char *sub_slot(const struct pass *p, int from, int to, size_t k) {
    size_t offset = (size_t)(to < from ? to : to - 1);
    return slot_of(p, from, p->w->rounds + k) + offset * p->segment;
}

static struct coll_range segment_for(const struct pass *p, int to, size_t k) {
    return coll_segment(coll_part(p->args->in_end, to), p->segment, k);
}

/* Returns the range of the segment from a rank, in this rank's output. In a reducescatter every
 * rank has a segment of the same length for this rank. */
static struct coll_range segment_from(const struct pass *p, int from, size_t k) {
    if (p->args->kind == HVD_REDUCESCATTER) return segment_for(p, p->w->self, k);
    return coll_segment(coll_part(p->args->part_end, from), p->segment, k);
}

static void stage(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    (void)c;
    for (int d = 1; d < p->w->n; d++) {
        int to = (p->w->self + d) % p->w->n;
        struct coll_range all = segment_for(p, to, k), own = coll_part_of(all, part, parts);
        if (coll_length(own))
            lines_copy(sub_slot(p, p->w->self, to, k) + (own.begin - all.begin),
                       coll_part_for(p->args, to, own.begin), coll_length(own));
    }
}

/* Waits for the ranks that have a segment for this rank. */
static int await_staged(const struct pass *p, size_t k, hvd_error *err) {
    for (int d = 1; d < p->w->n; d++) {
        int from = (p->w->self + d) % p->w->n;
        if (coll_length(segment_from(p, from, k)))
            HVD_TRY(comm_wait_flag(p->comm, from, WINDOW_STAGED, p->w->rounds + k, err));
    }
    return HVD_OK;
}

/* All ranks have a segment for this rank: adds the blocks at the same offset of these segments. */
static void add_block(const struct pass *p, size_t k, size_t offset, size_t bytes) {
    const struct reduce_kernels *kernels = p->args->reduce;
    int self = p->w->self;
    const char *in[p->w->n];
    size_t at = segment_for(p, self, k).begin + offset;
    for (int i = 0; i < p->w->n; i++)
        in[i] = i == self ? (const char *)p->args->in + at : sub_slot(p, i, self, k) + offset;
    char *out = (char *)p->args->data + at - coll_part(p->args->in_end, self).begin;
    reduce_all(kernels, out, in, p->w->n, bytes / kernels->size, p->args->prescale, p->args->final);
    for (int i = 0; i < p->w->n; i++)
        if (i != self) lines_take_over(sub_slot(p, i, self, k) + offset, bytes);
}

static void add_segment(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    struct coll_range all = {0, coll_length(segment_for(p, p->w->self, k))}, own, block;
    (void)c;
    own = coll_part_of(all, part, parts);
    for (size_t i = 0; coll_length(block = coll_segment(own, BLOCK, i)); i++)
        add_block(p, k, block.begin, coll_length(block));
}

static void copy_segments(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    (void)c;
    for (int d = 1; d < p->w->n; d++) {
        int from = (p->w->self + d) % p->w->n;
        struct coll_range all = segment_from(p, from, k), own = coll_part_of(all, part, parts);
        if (coll_length(own))
            lines_copy_over(coll_part_from(p->args, from, own.begin),
                            sub_slot(p, from, p->w->self, k) + (own.begin - all.begin),
                            coll_length(own));
    }
}

static int run(const struct comm *comm, const struct coll_args *args, const struct stage *stages,
               size_t bytes, hvd_error *err) {
    size_t segment = (size_t)WINDOW_SLOT / (size_t)(comm->size - 1) & ~(size_t)63;
    struct pass p = open_pass(comm, args, args->longest, segment);
    comm_count_window(comm, args->in_end[comm->size - 1] -
                                coll_length(coll_part(args->in_end, comm->rank)));
    return pass_run(&p, stages, 2, bytes, err);
}

int coll_window_reducescatter(const struct comm *comm, const struct coll_args *args,
                              hvd_error *err) {
    static const struct stage STAGES[] = {{await_slot, stage, raise_input},
                                          {await_staged, add_segment, raise_taken}};
    return run(comm, args, STAGES, args->bytes, err);
}

int coll_window_alltoall(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    static const struct stage STAGES[] = {{await_slot, stage, raise_input},
                                          {await_staged, copy_segments, raise_taken}};
    int last = comm->size - 1;
    coll_copy_own_part(comm, args);
    /* the work of this rank: the mean of the bytes that it sends and receives */
    return run(comm, args, STAGES, (args->in_end[last] + args->part_end[last]) / 2, err);
}

/* Window collectives that only copy: one rank (broadcast) or each rank (allgather) stages data in
 * its slot, and the other ranks take the data from there.
 *
 * Cost on each rank, in the cache: a broadcast of S bytes copies S bytes on each rank. An allgather
 * with S bytes of output copies S/p bytes to the slot and (p-1)/p S bytes from other slots. */
#include "collectives/window_pass.h"

/* ---- broadcast ---- */

/* Packs or unpacks a thread's part of a round's data, which is in the root's slot (window.h). */
static void pass_part(const struct pass *p, size_t k, struct cursor *c, int part, int parts,
                      void (*pass)(const struct pass *, struct cursor *, char *slot, size_t)) {
    struct coll_range all = {0, round_bytes(p, k)}, own = coll_part_of(all, part, parts);
    skip(p, c, own.begin);
    pass(p, c, slot_of(p, p->args->root, p->w->rounds + k) + own.begin, coll_length(own));
    skip(p, c, all.end - own.end);
}

static void give(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    pass_part(p, k, c, part, parts, pack);
}

static void raise_given(const struct pass *p, size_t k) {
    raise_input(p, k);
    raise_taken(p, k);
}

static int await_root(const struct pass *p, size_t k, hvd_error *err) {
    raise_input(p, k);
    return comm_wait_flag(p->comm, p->args->root, WINDOW_STAGED, p->w->rounds + k, err);
}

static void receive(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    pass_part(p, k, c, part, parts, unpack);
}

int coll_window_broadcast(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    static const struct stage ROOT = {await_slot, give, raise_given},
                              OTHER = {await_root, receive, raise_taken};
    struct pass p = open_pass(comm, args, args->bytes, WINDOW_SLOT);
    bool root = comm->rank == args->root;
    for (size_t i = 0; root && i < args->ntensors; i++) {
        const struct coll_tensor *tensor = &args->tensors[i];
        if (tensor->in != tensor->out) coll_copy(comm, tensor->out, tensor->in, tensor->bytes);
    }
    if (root) comm_count_window(comm, args->bytes);
    return pass_run(&p, root ? &ROOT : &OTHER, 1, args->bytes, err);
}

/* ---- allgather ---- */

/* Copies a thread's part of a rank's segment between the data and the rank's part of the window. */
static void copy_part(const struct pass *p, size_t k, int local_rank, int part, int parts) {
    struct coll_range all = coll_segment(coll_part(p->args->part_end, local_rank), WINDOW_SLOT, k);
    struct coll_range own = coll_part_of(all, part, parts);
    char *slot = slot_of(p, local_rank, p->w->rounds + k) + (own.begin - all.begin);
    char *data = (char *)p->args->data + own.begin;
    if (local_rank == p->w->self)
        lines_copy(slot, data, coll_length(own));
    else
        take_copy(p, data, slot, coll_length(own));
}

static void stage_own(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    (void)c;
    copy_part(p, k, p->w->self, part, parts);
}

static int await_inputs(const struct pass *p, size_t k, hvd_error *err) {
    return comm_wait_flags(p->comm, WINDOW_STAGED, p->w->rounds + k, err);
}

static void take_others(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    (void)c;
    for (int d = 1; d < p->w->n; d++) copy_part(p, k, (p->w->self + d) % p->w->n, part, parts);
}

int coll_window_allgather(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    static const struct stage STAGES[] = {{await_slot, stage_own, raise_input},
                                          {await_inputs, take_others, raise_taken}};
    struct pass p = open_pass(comm, args, args->longest, WINDOW_SLOT);
    struct coll_range own = coll_part(args->part_end, comm->rank);
    char *place = (char *)args->data + own.begin;
    if (args->in != place) coll_copy(comm, place, args->in, coll_length(own));
    comm_count_window(comm, coll_length(own));
    return pass_run(&p, STAGES, 2, args->bytes, err);
}

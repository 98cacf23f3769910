/* Window collectives that only copy: some ranks stage data in their slots, all other ranks take it.
 *
 * Cost on each rank, in the cache. Broadcast: the root copies S, every other rank copies S.
 * Allgather of S in total: S/p staged, (p-1)/p S taken. 1 flag per round and rank. */
#include "collectives/window_pass.h"

static void raise_input(const struct pass *p, uint64_t round) {
    window_raise(p->w, WINDOW_STAGED, round);
    window_raise(p->w, WINDOW_REDUCED, round);
}

/* The broadcast on the root: packs the data for the other ranks. */
static int give(struct pass *p, hvd_error *err) {
    for (size_t i = 0; i < p->args->ntensors; i++) {
        const struct coll_tensor *tensor = &p->args->tensors[i];
        if (tensor->in != tensor->out) lines_copy(tensor->out, tensor->in, tensor->bytes);
    }
    comm_count_window(p->comm, p->args->bytes);
    for (size_t k = 0; k < p->rounds; k++) {
        uint64_t round = p->w->rounds + k;
        HVD_TRY(comm_wait_slot(p->comm, round, err));
        pack(p, &p->at[0], slot_of(p, p->w->self, round), round_bytes(p, k));
        raise_input(p, round);
        window_raise(p->w, WINDOW_TAKEN, round);
    }
    return HVD_OK;
}

static int receive(struct pass *p, hvd_error *err) {
    for (size_t k = 0; k < p->rounds; k++) {
        uint64_t round = p->w->rounds + k;
        raise_input(p, round);
        HVD_TRY(comm_wait_flag(p->comm, p->args->root, WINDOW_STAGED, round, err));
        unpack(p, &p->at[2], slot_of(p, p->args->root, round), round_bytes(p, k));
        window_raise(p->w, WINDOW_TAKEN, round);
    }
    return HVD_OK;
}

int coll_window_broadcast(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct pass p = open_pass(comm, args, args->bytes);
    HVD_TRY(comm->rank == args->root ? give(&p, err) : receive(&p, err));
    p.w->rounds += p.rounds;
    return HVD_OK;
}

static int stage_part(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    struct coll_range segment =
        coll_segment(coll_part(p->args->part_end, p->w->self), WINDOW_SLOT, k);
    HVD_TRY(comm_wait_slot(p->comm, round, err));
    lines_copy(slot_of(p, p->w->self, round), (const char *)p->args->data + segment.begin,
               coll_length(segment));
    raise_input(p, round);
    return HVD_OK;
}

static int take_parts(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    HVD_TRY(comm_wait_flags(p->comm, WINDOW_STAGED, round, err));
    for (int d = 1; d < p->w->n; d++) {
        int local_rank = (p->w->self + d) % p->w->n;
        struct coll_range segment =
            coll_segment(coll_part(p->args->part_end, local_rank), WINDOW_SLOT, k);
        take_copy(p, (char *)p->args->data + segment.begin, slot_of(p, local_rank, round),
                  coll_length(segment));
    }
    window_raise(p->w, WINDOW_TAKEN, round);
    return HVD_OK;
}

int coll_window_allgather(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct pass p = open_pass(comm, args, args->longest);
    struct coll_range own = coll_part(args->part_end, comm->rank);
    char *place = (char *)args->data + own.begin;
    if (args->in != place) lines_copy(place, args->in, coll_length(own));
    comm_count_window(comm, coll_length(own));
    for (size_t k = 0; k < p.rounds + 1; k++) {
        if (k < p.rounds) HVD_TRY(stage_part(&p, k, err));
        if (k >= 1) HVD_TRY(take_parts(&p, k - 1, err));
    }
    p.w->rounds += p.rounds;
    return HVD_OK;
}

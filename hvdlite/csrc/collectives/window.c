/* Window collectives: on one host, in memory that all ranks map.
 *
 *   Jain et al., "Framework for Scalable Intra-Node Collective Operations using Shared Memory",
 *   SC'18: its reduction by slices, with flags instead of barriers.
 *
 * The data is processed in rounds of one slot. In a round every rank stages its input in its slot,
 * except its own chunk. Rank r adds chunk r of its own memory and of all slots, in the order of
 * ranks; it writes the sum to its memory and, in the slots, over the inputs. Then every rank takes
 * the other sums from its own slot. p = 3, contents of the slots; a0 is chunk 0 of rank a, S0 the
 * sum a0 + b0 + c0:
 *
 *            slot of a          slot of b          slot of c
 *   stage    .  a1 a2           b0 .  b2           c0 c1 .
 *   reduce   .  S1 S2           S0 .  S2           S0 S1 .
 *
 * So the rank that reads a line also writes it; shm/window.h explains why. On two cores of an AMD
 * EPYC 64 KB take 5.5 us this way, and 42 us if each rank leaves its sums in its own slot.
 *
 * The rounds overlap: a rank stages round k before it reduces round k - 1 and takes round k - 2, so
 * it waits only if it has no work. Tensors are packed directly into the slots and unpacked directly
 * from them. The slots stay in the caches, so each input is read from memory once and each result
 * written once. Small data is not cut: every rank adds all inputs, which needs one wait instead of
 * two. Sums are computed in the accumulator, in the order of ranks, and rounded once, for any size
 * and any fusion.
 *
 * Cost on each rank, in the cache: (p-1)/p S packed, the same unpacked, S added; 2 flags per
 * round. */
#include "collectives/window_pass.h"

enum {
    SMALL = 2 * 1024, /* bytes; data up to this size is not cut into chunks */
    BLOCK = 1024 /* bytes that are added at a time, then copied while they are in the L1 cache */
};

/* Returns the chunk of round k that a rank adds. */
static struct coll_range chunk_of(const struct pass *p, size_t k, int local_rank) {
    return coll_chunk(round_bytes(p, k), p->args->reduce->size, p->w->n, local_rank);
}

/* Moves the cursor from offset *at of the round to offset `to`. */
static void go_on(const struct pass *p, struct cursor *c, size_t *at, size_t to) {
    skip(p, c, to - *at);
    *at = to;
}

/* Packs or unpacks the chunks of the round that other ranks add. */
static void pass_others(const struct pass *p, size_t k, struct cursor *c, int part, int parts,
                        void (*pass)(const struct pass *, struct cursor *, char *slot, size_t)) {
    char *slot = slot_of(p, p->w->self, p->w->rounds + k);
    size_t at = 0, before = 0, bytes = round_bytes(p, k);
    struct coll_range work = coll_part_of(
        (struct coll_range){0, bytes - coll_length(chunk_of(p, k, p->w->self))}, part, parts);
    for (int i = 0; i < p->w->n; i++) {
        struct coll_range chunk = chunk_of(p, k, i);
        if (i == p->w->self) continue;
        struct coll_range mine = coll_overlap(work, before, coll_length(chunk));
        before += coll_length(chunk);
        if (!coll_length(mine)) continue;
        go_on(p, c, &at, chunk.begin + mine.begin);
        pass(p, c, slot + at, coll_length(mine));
        at += coll_length(mine);
    }
    go_on(p, c, &at, bytes);
}

/* Adds the blocks at one offset of all slots, in the order of ranks. `own`: this rank's block. */
static void add_block(const struct pass *p, uint64_t round, size_t offset, const char *own,
                      size_t bytes, char *out) {
    const struct reduce_kernels *kernels = p->args->reduce;
    const char *in[p->w->n];
    for (int i = 0; i < p->w->n; i++) in[i] = i == p->w->self ? own : slot_of(p, i, round) + offset;
    reduce_all(kernels, out, in, p->w->n, bytes / kernels->size, p->args->prescale, p->args->final);
}

/* Adds the next `bytes` of all ranks; writes the sums to this rank's tensors and to the other
 * ranks' slots. */
static void add_own(const struct pass *p, struct cursor *c, uint64_t round, size_t offset,
                    size_t bytes) {
    for (size_t end = offset + bytes; offset < end;) {
        struct span span = next_span(p, c, end - offset < BLOCK ? end - offset : BLOCK);
        char *sum = span.tensor->out + span.at;
        add_block(p, round, offset, span.tensor->in + span.at, span.bytes, sum);
        for (int i = 0; i < p->w->n; i++)
            if (i != p->w->self) lines_copy(slot_of(p, i, round) + offset, sum, span.bytes);
        offset += span.bytes;
    }
}

/* ---- the three stages of a round; a stage is a wait, work that threads may share, and flags
 * ---- */

static int await_slot(const struct pass *p, size_t k, hvd_error *err) {
    return comm_wait_slot(p->comm, p->w->rounds + k, err);
}

static void stage(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    pass_others(p, k, c, part, parts, pack);
}

static void staged(const struct pass *p, size_t k) {
    window_raise(p->w, WINDOW_STAGED, p->w->rounds + k);
}

static int await_staged(const struct pass *p, size_t k, hvd_error *err) {
    return comm_wait_flags(p->comm, WINDOW_STAGED, p->w->rounds + k, err);
}

static void reduce(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    struct coll_range work = coll_part_of(chunk_of(p, k, p->w->self), part, parts);
    size_t at = 0;
    go_on(p, c, &at, work.begin);
    add_own(p, c, p->w->rounds + k, at, coll_length(work));
    at += coll_length(work);
    go_on(p, c, &at, round_bytes(p, k));
}

static void reduced(const struct pass *p, size_t k) {
    window_raise(p->w, WINDOW_REDUCED, p->w->rounds + k);
    window_raise(p->w, WINDOW_TAKEN,
                 p->w->rounds + k); /* this rank no longer reads other ranks' slots */
}

static int await_reduced(const struct pass *p, size_t k, hvd_error *err) {
    return comm_wait_flags(p->comm, WINDOW_REDUCED, p->w->rounds + k, err);
}

static void take(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    pass_others(p, k, c, part, parts, unpack);
}

static void taken(const struct pass *p, size_t k) { (void)p, (void)k; }

enum { STAGES = 3 };
static const struct stage {
    int (*await)(const struct pass *p, size_t k, hvd_error *err);
    void (*work)(const struct pass *p, size_t k, struct cursor *c, int part, int parts);
    void (*done)(const struct pass *p, size_t k);
} STAGE[STAGES] = {
    {await_slot, stage, staged}, {await_staged, reduce, reduced}, {await_reduced, take, taken}};

/* In step k stage i works on round k - i. Returns whether that round exists. */
static bool is_in_step(const struct pass *p, size_t step, size_t i) {
    return step >= i && step - i < p->rounds;
}

struct step {
    const struct pass *p;
    size_t number;
};

/* Does a thread's part of a step. */
static void do_part(const void *arg, int part, int parts) {
    const struct step *s = arg;
    for (size_t i = 0; i < STAGES; i++) {
        struct cursor c = s->p->at[i];
        if (is_in_step(s->p, s->number, i)) STAGE[i].work(s->p, s->number - i, &c, part, parts);
    }
}

/* All threads share the stages of a step. The flags are checked only once per step, because sharing
 * work among threads costs some microseconds each time. */
static int do_together(struct pass *p, size_t step, hvd_error *err) {
    for (size_t i = 0; i < STAGES; i++)
        if (is_in_step(p, step, i)) HVD_TRY(STAGE[i].await(p, step - i, err));
    helpers_run(comm_helpers(p->comm), do_part, &(struct step){p, step});
    for (size_t i = 0; i < STAGES; i++) {
        if (!is_in_step(p, step, i)) continue;
        skip(p, &p->at[i], round_bytes(p, step - i));
        STAGE[i].done(p, step - i);
    }
    return HVD_OK;
}

/* One thread does the stages of a step, so it can pack while other ranks are not ready yet. */
static int do_alone(struct pass *p, size_t step, hvd_error *err) {
    for (size_t i = 0; i < STAGES; i++) {
        if (!is_in_step(p, step, i)) continue;
        HVD_TRY(STAGE[i].await(p, step - i, err));
        STAGE[i].work(p, step - i, &p->at[i], 0, 1);
        STAGE[i].done(p, step - i);
    }
    return HVD_OK;
}

/* For small data, in one round: every rank adds all inputs. */
static int add_at_once(struct pass *p, hvd_error *err) {
    uint64_t round = p->w->rounds;
    char *own = slot_of(p, p->w->self, round);
    void *sums;
    HVD_TRY(scratch_get(p->args->scratch, SMALL, &sums, err));
    HVD_TRY(comm_wait_slot(p->comm, round, err));
    pack(p, &p->at[0], own, p->args->bytes);
    window_raise(p->w, WINDOW_STAGED, round);
    /* no rank waits for this flag, but all flags count the same rounds */
    window_raise(p->w, WINDOW_REDUCED, round);
    HVD_TRY(comm_wait_flags(p->comm, WINDOW_STAGED, round, err));
    add_block(p, round, 0, own, p->args->bytes, sums);
    unpack(p, &p->at[2], sums, p->args->bytes);
    window_raise(p->w, WINDOW_TAKEN, round);
    return HVD_OK;
}

static int add_in_rounds(struct pass *p, hvd_error *err) {
    struct helpers *helpers = comm_helpers(p->comm);
    int code = HVD_OK, parts = helpers_begin(helpers, p->args->bytes);
    for (size_t step = 0; !code && step < p->rounds + STAGES - 1; step++)
        code = (parts > 1 ? do_together : do_alone)(p, step, err);
    helpers_end(helpers, parts);
    return code;
}

int coll_window_allreduce(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct pass p = open_pass(comm, args, args->bytes);
    if (!args->bytes) return HVD_OK;
    HVD_TRY((args->bytes <= SMALL ? add_at_once : add_in_rounds)(&p, err));
    /* the bytes staged plus the bytes of this rank's chunks */
    comm_count_window(comm, args->bytes);
    p.w->rounds += p.rounds;
    return HVD_OK;
}

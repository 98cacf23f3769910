/* Window collectives: on one host, through memory that all ranks map.
 *
 *   The reduction by slices in shared memory is that of Jain et al., "Framework for Scalable
 *   Intra-Node Collective Operations using Shared Memory", SC'18; flags instead of barriers.
 *
 * The data goes in rounds of one slot. In a round every rank stages its input in its slot; rank r adds
 * chunk r of all slots, in the order of ranks, and leaves the sum in its own; all take all sums.
 * p = 3, what the slots hold; a0 is chunk 0 of rank a, S0 the sum a0 + b0 + c0:
 *
 *            slot of a          slot of b          slot of c
 *   stage    a0 a1 a2           b0 b1 b2           c0 c1 c2
 *   reduce   S0 a1 a2           b0 S1 b2           c0 c1 S2
 *   take     all ranks read S0, S1, S2
 *
 * The rounds overlap: round k is staged before round k - 1 is reduced and k - 2 taken, so that nobody
 * waits who has work. Tensors are packed straight into the slots and unpacked straight from them, and
 * the slots stay in the cache: memory sees each input read and each result written once. Small data is
 * not cut: every rank adds all inputs itself, one hop instead of two. Sums are made in the accumulator
 * and rounded once; their order is the ranks', whatever the size or what they were fused with.
 *
 * Cost: S/B packed, S/B added, S/B unpacked on each rank at bandwidth B of the cache; 2 flags. */
#include "coll.h"

#include <string.h>

/* How far the pieces have been gone through. */
struct cursor {
    size_t piece, at; /* bytes of that piece */
};

struct pass {
    struct transport *t;
    const struct coll_job *job;
    struct window *w;
    size_t rounds;
    struct cursor staged, taken;
    char *sum, *scaled; /* accumulators of one slot */
};

static char *slot_of(const struct pass *p, int member, uint64_t round) {
    return window_slot(p->w, member, round);
}

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes) memcpy(to, from, bytes);
}

/* Bytes that lie together in one piece. */
struct run {
    const struct coll_piece *piece;
    size_t at, bytes;
};

/* The next of them, at most `most`; the cursor moves behind them. */
static struct run next_run(const struct pass *p, struct cursor *c, size_t most) {
    const struct coll_piece *piece = &p->job->pieces[c->piece];
    size_t left = piece->bytes - c->at;
    struct run run = {piece, c->at, left < most ? left : most};
    c->at += run.bytes;
    if (c->at == piece->bytes) *c = (struct cursor){c->piece + 1, 0};
    return run;
}

/* The next `bytes` of the pieces. */
static void pack(const struct pass *p, struct cursor *c, char *to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        struct run run = next_run(p, c, bytes - done);
        copy(to + done, run.piece->in + run.at, run.bytes);
        done += run.bytes;
    }
}

static void unpack(const struct pass *p, struct cursor *c, const char *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        struct run run = next_run(p, c, bytes - done);
        copy(run.piece->out + run.at, from + done, run.bytes);
        done += run.bytes;
    }
}

/* ---- allreduce ---- */

/* Bytes of round k, and the chunk of it that one rank adds. */
static size_t round_bytes(const struct pass *p, size_t k) {
    return coll_length(coll_segment((struct coll_range){0, p->job->bytes}, WINDOW_SLOT, k));
}

static struct coll_range chunk_of(const struct pass *p, size_t k, int member) {
    return coll_chunk(round_bytes(p, k), p->job->reduce->size, p->w->n, member);
}

static int stage(struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    HVD_TRY(transport_wait_slot(p->t, round, err));
    pack(p, &p->staged, slot_of(p, p->w->self, round), round_bytes(p, k));
    transport_count_window(p->t, round_bytes(p, k));
    window_raise(p->w, WINDOW_STAGED, round);
    return HVD_OK;
}

/* Adds the range of all slots, in the order of ranks. */
static void add_all(const struct pass *p, uint64_t round, struct coll_range range, char *out) {
    const struct reduce_kernels *kernels = p->job->reduce;
    size_t n = coll_length(range) / kernels->size;
    kernels->widen(p->sum, slot_of(p, 0, round) + range.begin, n, p->job->prescale);
    for (int i = 1; i < p->w->n; i++) {
        const char *in = slot_of(p, i, round) + range.begin;
        reduce_combine(kernels, p->sum, in, n, p->job->prescale, p->scaled);
    }
    kernels->narrow(out, p->sum, n, p->job->final);
}

static int reduce(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    struct coll_range own = chunk_of(p, k, p->w->self);
    HVD_TRY(transport_wait_flags(p->t, WINDOW_STAGED, round, err));
    add_all(p, round, own, slot_of(p, p->w->self, round) + own.begin);
    transport_count_window(p->t, coll_length(own));
    window_raise(p->w, WINDOW_REDUCED, round);
    return HVD_OK;
}

static int take(struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    HVD_TRY(transport_wait_flags(p->t, WINDOW_REDUCED, round, err));
    for (int i = 0; i < p->w->n; i++) {
        struct coll_range chunk = chunk_of(p, k, i);
        unpack(p, &p->taken, slot_of(p, i, round) + chunk.begin, coll_length(chunk));
    }
    window_raise(p->w, WINDOW_TAKEN, round);
    return HVD_OK;
}

/* Small data, one round: everyone adds everything. */
static int add_at_once(struct pass *p, hvd_error *err) {
    uint64_t round = p->w->rounds;
    HVD_TRY(stage(p, 0, err));
    window_raise(p->w, WINDOW_REDUCED, round); /* nobody waits for it, but flags never go back */
    HVD_TRY(transport_wait_flags(p->t, WINDOW_STAGED, round, err));
    add_all(p, round, (struct coll_range){0, p->job->bytes}, p->scaled);
    unpack(p, &p->taken, p->scaled, p->job->bytes);
    window_raise(p->w, WINDOW_TAKEN, round);
    return HVD_OK;
}

static int open_pass(struct pass *p, struct transport *t, const struct coll_job *job,
                     size_t longest, hvd_error *err) {
    *p = (struct pass){.t = t, .job = job, .w = job->window};
    p->rounds = (longest + WINDOW_SLOT - 1) / WINDOW_SLOT;
    if (job->kind != HVD_ALLREDUCE) return HVD_OK;
    size_t wide = WINDOW_SLOT / job->reduce->size * job->reduce->wide;
    void *memory;
    HVD_TRY(scratch_get(job->scratch, 2 * wide, &memory, err));
    p->sum = memory;
    p->scaled = p->sum + wide;
    return HVD_OK;
}

int coll_window_allreduce(struct transport *t, const struct coll_job *job, hvd_error *err) {
    static const size_t AT_ONCE = 8 * 1024;
    struct pass p;
    if (!job->bytes) return HVD_OK;
    HVD_TRY(open_pass(&p, t, job, job->bytes, err));
    if (job->bytes <= AT_ONCE) HVD_TRY(add_at_once(&p, err));
    for (size_t k = 0; job->bytes > AT_ONCE && k < p.rounds + 2; k++) {
        if (k < p.rounds) HVD_TRY(stage(&p, k, err));
        if (k >= 1 && k - 1 < p.rounds) HVD_TRY(reduce(&p, k - 1, err));
        if (k >= 2) HVD_TRY(take(&p, k - 2, err));
    }
    p.w->rounds += p.rounds;
    return HVD_OK;
}

/* ---- broadcast and allgather: what some ranks stage, all take ---- */

static void raise_staged(const struct pass *p, uint64_t round) {
    window_raise(p->w, WINDOW_STAGED, round);
    window_raise(p->w, WINDOW_REDUCED, round);
}

/* Broadcast on the root: the others take what it packs. */
static int give(struct pass *p, hvd_error *err) {
    for (size_t i = 0; i < p->job->npieces; i++) {
        const struct coll_piece *piece = &p->job->pieces[i];
        if (piece->in != piece->out) copy(piece->out, piece->in, piece->bytes);
    }
    for (size_t k = 0; k < p->rounds; k++) {
        uint64_t round = p->w->rounds + k;
        HVD_TRY(transport_wait_slot(p->t, round, err));
        pack(p, &p->staged, slot_of(p, p->w->self, round), round_bytes(p, k));
        transport_count_window(p->t, round_bytes(p, k));
        raise_staged(p, round);
        window_raise(p->w, WINDOW_TAKEN, round);
    }
    return HVD_OK;
}

static int receive(struct pass *p, hvd_error *err) {
    for (size_t k = 0; k < p->rounds; k++) {
        uint64_t round = p->w->rounds + k;
        raise_staged(p, round);
        HVD_TRY(transport_wait_flag(p->t, p->job->root, WINDOW_STAGED, round, err));
        unpack(p, &p->taken, slot_of(p, p->job->root, round), round_bytes(p, k));
        window_raise(p->w, WINDOW_TAKEN, round);
    }
    return HVD_OK;
}

int coll_window_broadcast(struct transport *t, const struct coll_job *job, hvd_error *err) {
    struct pass p;
    HVD_TRY(open_pass(&p, t, job, job->bytes, err));
    HVD_TRY(t->at.rank == job->root ? give(&p, err) : receive(&p, err));
    p.w->rounds += p.rounds;
    return HVD_OK;
}

static int stage_part(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    struct coll_range piece = coll_segment(coll_part(p->job->part_end, p->w->self), WINDOW_SLOT, k);
    HVD_TRY(transport_wait_slot(p->t, round, err));
    copy(slot_of(p, p->w->self, round), (const char *)p->job->data + piece.begin,
         coll_length(piece));
    transport_count_window(p->t, coll_length(piece));
    raise_staged(p, round);
    return HVD_OK;
}

static int take_parts(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    HVD_TRY(transport_wait_flags(p->t, WINDOW_STAGED, round, err));
    for (int d = 1; d < p->w->n; d++) {
        int member = (p->w->self + d) % p->w->n;
        struct coll_range piece = coll_segment(coll_part(p->job->part_end, member), WINDOW_SLOT, k);
        copy((char *)p->job->data + piece.begin, slot_of(p, member, round), coll_length(piece));
    }
    window_raise(p->w, WINDOW_TAKEN, round);
    return HVD_OK;
}

int coll_window_allgather(struct transport *t, const struct coll_job *job, hvd_error *err) {
    struct pass p;
    struct coll_range own = coll_part(job->part_end, t->at.rank);
    HVD_TRY(open_pass(&p, t, job, job->longest, err));
    copy((char *)job->data + own.begin, job->in, coll_length(own));
    for (size_t k = 0; k < p.rounds + 1; k++) {
        if (k < p.rounds) HVD_TRY(stage_part(&p, k, err));
        if (k >= 1) HVD_TRY(take_parts(&p, k - 1, err));
    }
    p.w->rounds += p.rounds;
    return HVD_OK;
}

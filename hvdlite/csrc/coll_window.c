/* Window collectives: on one host, through memory that all ranks map.
 *
 *   The reduction by slices in shared memory is that of Jain et al., "Framework for Scalable
 *   Intra-Node Collective Operations using Shared Memory", SC'18; flags instead of barriers.
 *
 * The data goes in rounds of one slot. In a round every rank stages its input in its slot; rank r adds
 * chunk r of all inputs, in the order of ranks, and leaves the sum in its slot; all take all sums.
 * p = 3, what the slots hold; a0 is chunk 0 of rank a, S0 the sum a0 + b0 + c0:
 *
 *            slot of a          slot of b          slot of c
 *   stage    .  a1 a2           b0 .  b2           c0 c1 .
 *   reduce   S0 a1 a2           b0 S1 b2           c0 c1 S2
 *   take     all ranks read S0, S1, S2
 *
 * The rounds overlap: round k is staged before round k - 1 is reduced and k - 2 taken, so that nobody
 * waits who has work. Four slots a rank stay in the cache: memory sees each input read and each
 * result written once. Small data is not cut: every rank adds all inputs itself, one hop instead of
 * two. Sums are made in the accumulator and rounded once; their order is the ranks', whatever the
 * size of the data or what it was fused with.
 *
 * Cost: S/B copied in, S/B reduced, S/B copied out, of p S bytes at memory bandwidth B; 2 flags. */
#include "coll.h"

#include <string.h>

struct pass {
    struct transport *t;
    const struct coll_job *job;
    struct window *w;
    size_t rounds;
    char *sum, *scaled; /* accumulators of one slot */
};

/* ---- slots and flags ---- */

static char *slot_of(const struct pass *p, int member, uint64_t round) {
    return (char *)p->w->members[member].slots[round % WINDOW_SLOTS];
}

static struct window_flags *own_flags(const struct pass *p) { return &window_self(p->w)->flags; }

static void raise_flag(_Atomic uint64_t *flag, uint64_t round) {
    atomic_store_explicit(flag, round + 1, memory_order_release);
}

/* Waits until every other rank's flag, at that place in its flags, has passed the round. */
static int wait_flags(const struct pass *p, size_t flag, uint64_t round, hvd_error *err) {
    for (int d = 1; d < p->w->n; d++) {
        int member = (p->w->self + d) % p->w->n;
        char *flags = (char *)&p->w->members[member].flags;
        HVD_TRY(transport_wait_flag(p->t, (_Atomic uint64_t *)(void *)(flags + flag), round + 1,
                                    member, err));
    }
    return HVD_OK;
}

#define WAIT_ALL(p, flag, round, err) wait_flags(p, offsetof(struct window_flags, flag), round, err)

/* The slot that a round uses was used WINDOW_SLOTS rounds ago. */
static int wait_for_slot(const struct pass *p, uint64_t round, hvd_error *err) {
    return round < WINDOW_SLOTS ? HVD_OK : WAIT_ALL(p, taken, round - WINDOW_SLOTS, err);
}

static void copy(void *to, const void *from, size_t bytes) {
    if (bytes) memcpy(to, from, bytes);
}

/* ---- allreduce ---- */

/* The bytes of the data that round k moves. */
static struct coll_range round_range(const struct pass *p, size_t k) {
    return coll_segment((struct coll_range){0, p->job->bytes}, WINDOW_SLOT, k);
}

/* Chunk of the round, relative to its begin: the part that one rank adds. */
static struct coll_range chunk_of(const struct pass *p, size_t k, int member) {
    return coll_chunk(coll_length(round_range(p, k)), p->job->reduce->size, p->w->n, member);
}

static int stage(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    struct coll_range whole = round_range(p, k), own = chunk_of(p, k, p->w->self);
    const char *data = (const char *)p->job->data + whole.begin;
    char *slot = slot_of(p, p->w->self, round);
    HVD_TRY(wait_for_slot(p, round, err));
    copy(slot, data, own.begin);
    copy(slot + own.end, data + own.end, coll_length(whole) - own.end);
    raise_flag(&own_flags(p)->staged, round);
    return HVD_OK;
}

/* Rank `member`'s input of [range) of the round. */
static const char *input(const struct pass *p, size_t k, int member, size_t begin, bool staged) {
    if (member == p->w->self && !staged)
        return (const char *)p->job->data + round_range(p, k).begin + begin;
    return slot_of(p, member, p->w->rounds + k) + begin;
}

/* Adds all inputs of the range in the order of ranks. `out` may be this rank's input. */
static void add_all(const struct pass *p, size_t k, struct coll_range range, bool staged,
                    char *out) {
    const struct reduce_kernels *kernels = p->job->reduce;
    size_t n = coll_length(range) / kernels->size;
    kernels->widen(p->sum, input(p, k, 0, range.begin, staged), n, p->job->prescale);
    for (int i = 1; i < p->w->n; i++) {
        const char *in = input(p, k, i, range.begin, staged);
        if (p->job->prescale == 1) {
            kernels->add(p->sum, in, n);
        } else {
            kernels->widen(p->scaled, in, n, p->job->prescale);
            kernels->add_wide(p->sum, p->sum, p->scaled, n);
        }
    }
    kernels->narrow(out, p->sum, n, p->job->final);
}

static int reduce(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    struct coll_range own = chunk_of(p, k, p->w->self);
    char *sums = slot_of(p, p->w->self, round) + own.begin;
    HVD_TRY(WAIT_ALL(p, staged, round, err));
    add_all(p, k, own, false, sums);
    copy((char *)p->job->data + round_range(p, k).begin + own.begin, sums, coll_length(own));
    raise_flag(&own_flags(p)->reduced, round);
    return HVD_OK;
}

static int take(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    char *data = (char *)p->job->data + round_range(p, k).begin;
    HVD_TRY(WAIT_ALL(p, reduced, round, err));
    for (int d = 1; d < p->w->n; d++) {
        int member = (p->w->self + d) % p->w->n;
        struct coll_range theirs = chunk_of(p, k, member);
        copy(data + theirs.begin, slot_of(p, member, round) + theirs.begin, coll_length(theirs));
    }
    raise_flag(&own_flags(p)->taken, round);
    return HVD_OK;
}

/* Small data, one round: everyone adds everything. */
static int add_at_once(const struct pass *p, hvd_error *err) {
    uint64_t round = p->w->rounds;
    struct coll_range whole = {0, p->job->bytes};
    HVD_TRY(wait_for_slot(p, round, err));
    copy(slot_of(p, p->w->self, round), p->job->data, p->job->bytes);
    raise_flag(&own_flags(p)->staged, round);
    raise_flag(&own_flags(p)->reduced, round); /* nobody waits for it, but flags never go back */
    HVD_TRY(WAIT_ALL(p, staged, round, err));
    add_all(p, 0, whole, true, p->job->data);
    raise_flag(&own_flags(p)->taken, round);
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

/* ---- broadcast and allgather: what some ranks stage, the others take ---- */

/* The bytes of a rank's part in the data. */
static struct coll_range part_of(const struct coll_job *job, int member) {
    if (job->kind == HVD_BROADCAST)
        return (struct coll_range){0, member == job->root ? job->bytes : 0};
    return (struct coll_range){member ? job->part_end[member - 1] : 0, job->part_end[member]};
}

static int stage_part(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    struct coll_range part = part_of(p->job, p->w->self),
                      piece = coll_segment(part, WINDOW_SLOT, k);
    HVD_TRY(wait_for_slot(p, round, err));
    copy(slot_of(p, p->w->self, round), (const char *)p->job->data + piece.begin,
         coll_length(piece));
    raise_flag(&own_flags(p)->staged, round);
    raise_flag(&own_flags(p)->reduced, round);
    return HVD_OK;
}

static int take_parts(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    HVD_TRY(WAIT_ALL(p, staged, round, err));
    for (int d = 1; d < p->w->n; d++) {
        int member = (p->w->self + d) % p->w->n;
        struct coll_range piece = coll_segment(part_of(p->job, member), WINDOW_SLOT, k);
        copy((char *)p->job->data + piece.begin, slot_of(p, member, round), coll_length(piece));
    }
    raise_flag(&own_flags(p)->taken, round);
    return HVD_OK;
}

int coll_window_move(struct transport *t, const struct coll_job *job, hvd_error *err) {
    size_t longest = 0;
    for (int i = 0; i < t->at.size; i++) {
        size_t length = coll_length(part_of(job, i));
        if (length > longest) longest = length;
    }
    struct pass p;
    HVD_TRY(open_pass(&p, t, job, longest, err));
    if (job->kind == HVD_ALLGATHER) {
        struct coll_range own = part_of(job, t->at.rank);
        copy((char *)job->data + own.begin, job->in, coll_length(own));
    }
    for (size_t k = 0; k < p.rounds + 1; k++) {
        if (k < p.rounds) HVD_TRY(stage_part(&p, k, err));
        if (k >= 1) HVD_TRY(take_parts(&p, k - 1, err));
    }
    p.w->rounds += p.rounds;
    return HVD_OK;
}

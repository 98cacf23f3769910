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
 * written once. Small data is not cut: every rank adds all inputs and waits once instead of twice.
 * Sums are computed in the accumulator, in the order of ranks, and rounded once, for any size and
 * any fusion.
 *
 * Teams: on a host with several caches or NUMA nodes, teams of q consecutive ranks each cut a
 * round into q chunks and add the chunks of their own slots. The first team's ranks pass their
 * sums to the second team's ranks, which add to them, and so on. The last team's ranks return the
 * sums to all teams, and each team spreads them in its own slots. So 2 S (p/q - 1) bytes pass
 * between teams, instead of 2 S (p - q). The additions have the same order as in one team, so the
 * bits are the same. A rank gets the sum of the previous team in its own slot, in the chunk that it
 * does not stage. p = 4, q = 2; A0 is a0 + b0, S0 the sum of all:
 *
 *            slot of a    slot of b    slot of c    slot of d
 *   stage    .  a1        b0 .         .  c1        d0 .
 *   pass                               A0 c1        d0 A1       written by a and b
 *   reduce   S0 a1        b0 S1        .  S1        S0 .        written by c and d
 *   spread   S0 S1        S0 S1                                 written by a and b
 *
 * Cost on each rank, in the cache: (q-1)/q S bytes packed, the same unpacked, S bytes added. A
 * round waits twice for other ranks. Without teams q = p; with teams a round waits three times. */
#include "collectives/window_pass.h"

enum {
    /* Data of up to this many bytes is not cut into chunks. Chosen, not measured. */
    SMALL = 2 * 1024,
    BLOCK = 1024 /* bytes that are added at a time, then copied while they are in the L1 cache */
};

static bool first_team(const struct pass *p) { return p->first == 0; }
static bool last_team(const struct pass *p) { return p->first + p->team == p->w->n; }

/* Returns the chunk of round k that a rank of this team adds. */
static struct coll_range chunk_of(const struct pass *p, size_t k, int local_rank) {
    return coll_chunk(round_bytes(p, k), p->args->reduce->size, p->team, local_rank - p->first);
}

/* Moves the cursor from offset *at in a round's data to offset `to`. */
static void advance_to(const struct pass *p, struct cursor *c, size_t *at, size_t to) {
    skip(p, c, to - *at);
    *at = to;
}

/* Packs or unpacks the chunks that other ranks of the team add in round k. */
static void pass_others(const struct pass *p, size_t k, struct cursor *c, int part, int parts,
                        void (*pass)(const struct pass *, struct cursor *, char *slot, size_t)) {
    char *slot = slot_of(p, p->w->self, p->w->rounds + k);
    size_t at = 0, before = 0, bytes = round_bytes(p, k);
    struct coll_range work = coll_part_of(
        (struct coll_range){0, bytes - coll_length(chunk_of(p, k, p->w->self))}, part, parts);
    for (int i = p->first; i < p->first + p->team; i++) {
        struct coll_range chunk = chunk_of(p, k, i);
        if (i == p->w->self) continue;
        struct coll_range mine = coll_overlap(work, before, coll_length(chunk));
        before += coll_length(chunk);
        if (!coll_length(mine)) continue;
        advance_to(p, c, &at, chunk.begin + mine.begin);
        pass(p, c, slot + at, coll_length(mine));
        at += coll_length(mine);
    }
    advance_to(p, c, &at, bytes);
}

/* Adds blocks at the same offset, in the order of ranks: first the sum of the previous teams, then
 * this team's blocks. `own`: this rank's block; the other blocks are in their ranks' slots. */
static void add_block(const struct pass *p, uint64_t round, size_t offset, const char *own,
                      size_t bytes, char *out) {
    const struct reduce_kernels *kernels = p->args->reduce;
    const char *in[p->team + 1];
    int n = 0;
    if (!first_team(p)) in[n++] = slot_of(p, p->w->self, round) + offset;
    for (int i = p->first; i < p->first + p->team; i++)
        in[n++] = i == p->w->self ? own : slot_of(p, i, round) + offset;
    reduce_all(kernels, out, in, n, bytes / kernels->size, p->args->prescale,
               last_team(p) ? p->args->final : (struct reduce_final){1, 1});
}

/* Writes a sum to the memory (slots) of the team's other ranks in the window. */
static void spread_block(const struct pass *p, uint64_t round, size_t offset, const char *sum,
                         size_t bytes) {
    for (int i = p->first; i < p->first + p->team; i++)
        if (i != p->w->self) lines_copy(slot_of(p, i, round) + offset, sum, bytes);
}

/* Works on the next `bytes` of the tensors; these bytes begin at `offset` in the round's data. */
typedef void own_chunk(const struct pass *p, struct cursor *c, uint64_t round, size_t offset,
                       size_t bytes);

/* Adds the blocks of this team, and passes the sums on to the next team. */
static void pass_own(const struct pass *p, struct cursor *c, uint64_t round, size_t offset,
                     size_t bytes) {
    char *next = slot_of(p, p->w->self + p->team, round);
    for (size_t end = offset + bytes; offset < end;) {
        struct span span = next_span(p, c, end - offset < BLOCK ? end - offset : BLOCK);
        add_block(p, round, offset, span.tensor->in + span.at, span.bytes, next + offset);
        offset += span.bytes;
    }
}

/* In the last team: adds the blocks, and writes the sums to this rank's tensors, to its team's
 * slots, and to the slot of one rank of each other team, which spreads them in its team. */
static void add_own(const struct pass *p, struct cursor *c, uint64_t round, size_t offset,
                    size_t bytes) {
    for (size_t end = offset + bytes; offset < end;) {
        struct span span = next_span(p, c, end - offset < BLOCK ? end - offset : BLOCK);
        char *sum = span.tensor->out + span.at;
        add_block(p, round, offset, span.tensor->in + span.at, span.bytes, sum);
        spread_block(p, round, offset, sum, span.bytes);
        for (int i = p->w->self - p->team; i >= 0; i -= p->team)
            lines_copy(slot_of(p, i, round) + offset, sum, span.bytes);
        offset += span.bytes;
    }
}

/* In the other teams: copies the last team's sums from this rank's slot to its team's slots. */
static void spread_own(const struct pass *p, struct cursor *c, uint64_t round, size_t offset,
                       size_t bytes) {
    const char *slot = slot_of(p, p->w->self, round);
    for (size_t end = offset + bytes; offset < end;) {
        struct span span = next_span(p, c, end - offset < BLOCK ? end - offset : BLOCK);
        char *sum = span.tensor->out + span.at;
        lines_copy(sum, slot + offset, span.bytes);
        spread_block(p, round, offset, sum, span.bytes);
        offset += span.bytes;
    }
}

/* ---- the stages of a round: stage, reduce, spread, take ---- */

static void stage(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    pass_others(p, k, c, part, parts, pack);
}

static void raise_staged(const struct pass *p, size_t k) {
    window_raise(p->w, WINDOW_STAGED, p->w->rounds + k);
}

static int await_team(const struct pass *p, enum window_flag flag, size_t k, hvd_error *err) {
    for (int d = 1; d < p->team; d++) {
        int other = p->first + (p->w->self - p->first + d) % p->team;
        HVD_TRY(comm_wait_flag(p->comm, other, flag, p->w->rounds + k, err));
    }
    return HVD_OK;
}

/* Waits for this team's inputs, for the sum of the previous team, and until the next team's inputs
 * are staged. A team stages its inputs before it passes a sum, so the last team may write to all
 * slots. */
static int await_staged(const struct pass *p, size_t k, hvd_error *err) {
    uint64_t round = p->w->rounds + k;
    HVD_TRY(await_team(p, WINDOW_STAGED, k, err));
    if (!last_team(p))
        HVD_TRY(comm_wait_flag(p->comm, p->w->self + p->team, WINDOW_STAGED, round, err));
    return first_team(p) ? HVD_OK
                         : comm_wait_flag(p->comm, p->w->self - p->team, WINDOW_PASSED, round, err);
}

/* Works on a thread's part of this rank's chunk. */
static void on_own(const struct pass *p, size_t k, struct cursor *c, int part, int parts,
                   own_chunk *take) {
    struct coll_range work = coll_part_of(chunk_of(p, k, p->w->self), part, parts);
    size_t at = 0;
    advance_to(p, c, &at, work.begin);
    take(p, c, p->w->rounds + k, at, coll_length(work));
    at += coll_length(work);
    advance_to(p, c, &at, round_bytes(p, k));
}

static void reduce(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    on_own(p, k, c, part, parts, last_team(p) ? add_own : pass_own);
}

static void raise_reduced(const struct pass *p, size_t k) {
    window_raise(p->w, WINDOW_REDUCED, p->w->rounds + k);
    raise_taken(p, k); /* this rank no longer uses other ranks' parts of the window */
}

static void raise_passed(const struct pass *p, size_t k) {
    if (p->team < p->w->n) window_raise(p->w, WINDOW_PASSED, p->w->rounds + k);
    if (last_team(p)) raise_reduced(p, k);
}

static int await_total(const struct pass *p, size_t k, hvd_error *err) {
    if (last_team(p)) return HVD_OK;
    int last = p->w->n - p->team + p->w->self - p->first;
    return comm_wait_flag(p->comm, last, WINDOW_PASSED, p->w->rounds + k, err);
}

static void spread(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    if (!last_team(p)) on_own(p, k, c, part, parts, spread_own);
}

static void raise_spread(const struct pass *p, size_t k) {
    if (!last_team(p)) raise_reduced(p, k);
}

static int await_reduced(const struct pass *p, size_t k, hvd_error *err) {
    return await_team(p, WINDOW_REDUCED, k, err);
}

static void take(const struct pass *p, size_t k, struct cursor *c, int part, int parts) {
    pass_others(p, k, c, part, parts, unpack);
}

static void raise_nothing(const struct pass *p, size_t k) { (void)p, (void)k; }

static const struct stage IN_ONE_TEAM[] = {{await_slot, stage, raise_staged},
                                           {await_staged, reduce, raise_passed},
                                           {await_reduced, take, raise_nothing}};
static const struct stage IN_TEAMS[] = {{await_slot, stage, raise_staged},
                                        {await_staged, reduce, raise_passed},
                                        {await_total, spread, raise_spread},
                                        {await_reduced, take, raise_nothing}};

/* Allreduces small data: every rank adds the inputs of all ranks, and waits only once. */
static int add_at_once(struct pass *p, hvd_error *err) {
    uint64_t round = p->w->rounds;
    struct cursor from = {0}, to = {0};
    char *own = slot_of(p, p->w->self, round);
    void *sums;
    HVD_TRY(scratch_get(p->args->scratch, SMALL, &sums, err));
    HVD_TRY(await_slot(p, 0, err));
    pack(p, &from, own, p->args->bytes);
    raise_input(p, 0);
    HVD_TRY(comm_wait_flags(p->comm, WINDOW_STAGED, round, err));
    add_block(p, round, 0, own, p->args->bytes, sums);
    unpack(p, &to, sums, p->args->bytes);
    raise_taken(p, 0);
    p->w->rounds++;
    return HVD_OK;
}

int coll_window_allreduce(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct pass p = open_pass(comm, args, args->bytes, WINDOW_SLOT);
    if (!args->bytes) return HVD_OK;
    /* this rank writes the staged bytes and the sums of its chunks, together args->bytes */
    comm_count_window(comm, args->bytes);
    return args->bytes <= SMALL ? add_at_once(&p, err)
                                : pass_run(&p, IN_ONE_TEAM, 3, args->bytes, err);
}

int coll_window_teams(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct pass p = open_pass(comm, args, args->bytes, WINDOW_SLOT);
    p.team = p.w->team;
    p.first = p.w->self / p.team * p.team;
    comm_count_window(comm, args->bytes);
    return pass_run(&p, IN_TEAMS, 4, args->bytes, err);
}

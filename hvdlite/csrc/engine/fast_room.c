#include "engine/fast_room.h"

#include "base/floats.h"
#include "base/os.h"
#include "collectives/algorithm.h"
#include "engine/fast_round.h"
#include "kernels/reduce.h"
#include "transport/transport.h"

/* Bytes that add_chunk sums at a time, and then copies while they are in the L1 cache. */
enum { BLOCK = 1024 };

static const char *source_of(const struct fast_path *x, const struct fast_place *p,
                             const struct tensor *t, int local_rank) {
    return local_rank == x->shared.window->self ? t->in : input_of(x, local_rank, p);
}

/* Sums the `bytes` bytes from offset `begin` of all inputs, in the order of ranks. */
static void add(const struct fast_path *x, const struct fast_place *p, const struct tensor *t,
                size_t begin, size_t bytes, char *out) {
    const struct request *r = &t->request;
    const struct reduce_kernels *kernels = reduce_kernels((hvd_dtype)r->dtype, (hvd_op)r->op);
    int n = x->shared.window->n;
    const char *in[n];
    for (int i = 0; i < n; i++) in[i] = source_of(x, p, t, i) + begin;
    reduce_all(kernels, out, in, n, bytes / kernels->size, r->prescale,
               (struct reduce_final){r->postscale, r->op == HVD_AVERAGE ? (int64_t)n : 1});
}

/* Returns whether each rank reduces only one chunk, and then waits for the chunks of the others: 2
 * ranks that share a near cache sum 16 KiB in 1.5 us instead of 3.2 us. A smaller tensor is faster
 * if every rank reduces the whole tensor. Only an allreduce needs sums from other ranks. */
static bool is_divided(const struct fast_path *x, const struct tensor *t) {
    return t->request.kind == HVD_ALLREDUCE &&
           request_bytes(&t->request) > (x->shared.window->n == 2 ? 2 << 10 : 8 << 10);
}

static struct coll_range chunk_of(const struct fast_path *x, const struct tensor *t,
                                  int local_rank) {
    const struct request *r = &t->request;
    size_t element = request_bytes(r) / (size_t)request_count(r);
    return coll_chunk(request_bytes(r), element, x->shared.window->n, local_rank);
}

/* For allgather, alltoall and broadcast: returns the part of rank `from`'s input for rank `to`. */
static struct coll_range part_of(const struct fast_path *x, const struct fast_place *p,
                                 const struct tensor *t, int from, int to) {
    const struct request *r = &t->request;
    if (r->kind != HVD_ALLTOALL) return (struct coll_range){0, request_bytes(r)};
    const int64_t *splits = p->shared.uneven ? splits_of(x, from, p) : NULL;
    size_t row = request_row_bytes(r), rows = (size_t)(request_rows(r) / x->shared.window->n);
    size_t begin = splits ? 0 : (size_t)to * rows;
    for (int i = 0; splits && i < to; i++) begin += (size_t)splits[i];
    return (struct coll_range){begin * row, (begin + (splits ? (size_t)splits[to] : rows)) * row};
}

void fast_room_stage(const struct fast_path *x, const struct fast_place *p,
                     const struct tensor *t) {
    int self = x->shared.window->self;
    char *to = input_of(x, self, p);
    if (t->request.kind == HVD_BROADCAST && t->request.root != self) return;
    size_t bytes = request_bytes(&t->request);
    struct coll_range own = {0};
    if (is_divided(x, t)) own = chunk_of(x, t, self);
    if (t->request.kind == HVD_ALLTOALL) own = part_of(x, p, t, self, self);
    for (int i = 0; t->listed && i < x->shared.window->n; i++) {
        struct coll_range part = part_of(x, p, t, self, i);
        if (i != self) lines_copy(to + part.begin, ((char *const *)t->in)[i], coll_length(part));
    }
    if (t->listed) return;
    lines_copy(to, t->in, own.begin);
    lines_copy(to + own.end, (const char *)t->in + own.end, bytes - own.end);
}

/* Sums this rank's chunk of all inputs, and overwrites the chunk in each rank's input with the
 * sums; collectives/window.c explains why. */
static void add_chunk(const struct fast_path *x, const struct fast_place *p,
                      const struct tensor *t) {
    struct coll_range own = chunk_of(x, t, x->shared.window->self);
    for (size_t at = own.begin; at < own.end; at += BLOCK) {
        size_t bytes = own.end - at < BLOCK ? own.end - at : BLOCK;
        add(x, p, t, at, bytes, (char *)t->out + at);
        for (int i = 0; i < x->shared.window->n; i++)
            if (i != x->shared.window->self)
                lines_copy(input_of(x, i, p) + at, (char *)t->out + at, bytes);
    }
}

/* Makes the engine of this rank ask whether the other rank lives. */
static void tell_engine(struct fast_path *x, int local_rank) {
    if (atomic_exchange(&x->shared.awaited, local_rank + 1) != local_rank + 1)
        transport_wake(x->transport);
}

/* Ends the wait for a rank. A thread that waits for another rank then sets `awaited` again. */
static bool end_wait(struct fast_path *x, int local_rank, bool arrived) {
    int own = local_rank + 1;
    if (atomic_load(&x->shared.awaited))
        atomic_compare_exchange_strong(&x->shared.awaited, &own, 0);
    return arrived;
}

/* Waits for a rank's sums. Returns false if the engine has failed: it fails soon after a rank dies
 * or falls silent. If all ranks have left, the engine no longer watches the ranks; then this
 * function watches the rank, and returns false if the rank is dead or silent. */
static bool wait_for_sums(struct fast_path *x, const struct fast_place *p, int local_rank,
                          uint64_t own) {
    /* Seconds; chosen, not measured. After SOON the engine, too, watches the rank. With a shorter
     * SOON, ordinary waits wake the engine. With a longer SOON, a silent rank is reported later. */
    static const double LONGEST_NAP = 1e-3, SOON = 0.05;
    struct wait_policy policy = {0};
    struct waiter waiter = {0};
    hvd_error late;
    bool ends = false;
    for (unsigned looks = 1;; looks++) {
        if (atomic_load_explicit(sums_of(x, local_rank, p), memory_order_acquire) == own)
            return end_wait(x, local_rank, true);
        if (looks == 1) policy = transport_policy(x->transport);
        if (policy.spin > 0 && looks % UNTIMED) {
            clock_relax();
            continue;
        }
        if (atomic_load(x->failed) || ends) return end_wait(x, local_rank, false);
        double now = clock_now();
        waiter_do(&waiter, waiter_next(&waiter, now, policy, LONGEST_NAP));
        if (now - waiter.since > SOON) tell_engine(x, local_rank);
        bool silent = comm_check_wait(x->transport, local_rank, now - waiter.since, &late);
        if (silent && !atomic_exchange(&x->shared.silent, local_rank + 1))
            transport_wake(x->transport);
        ends =
            atomic_load(&x->shared.over) && (silent || transport_is_dead(x->transport, local_rank));
    }
}

static bool take_sums(struct fast_path *x, const struct fast_place *p, const struct tensor *t,
                      uint64_t own) {
    int self = x->shared.window->self, n = x->shared.window->n;
    for (int d = 1; d < n; d++) {
        int i = (self + d) % n;
        struct coll_range chunk = chunk_of(x, t, i);
        if (!wait_for_sums(x, p, i, own)) return false;
        lines_copy((char *)t->out + chunk.begin, input_of(x, self, p) + chunk.begin,
                   coll_length(chunk));
    }
    return true;
}

/* Copies the parts that this rank gets in an allgather, an alltoall or a broadcast. */
static void copy_parts(const struct fast_path *x, const struct fast_place *p,
                       const struct tensor *t) {
    bool one = t->request.kind == HVD_BROADCAST;
    int first = one ? t->request.root : 0, last = one ? first + 1 : x->shared.window->n;
    char *to = t->out;
    for (int i = first; i < last; i++) {
        struct coll_range part = part_of(x, p, t, i, x->shared.window->self);
        if (t->listed && i == x->shared.window->self) continue;
        if (t->listed) to = ((char *const *)t->out)[i];
        const char *source = source_of(x, p, t, i) + part.begin;
        if (to != source) lines_copy(to, source, coll_length(part));
        to += coll_length(part);
    }
}

/* Sums the rows that this rank gets in a reducescatter. */
static void add_part(const struct fast_path *x, const struct fast_place *p,
                     const struct tensor *t) {
    const struct request *r = &t->request;
    size_t begin = 0, row = request_row_bytes(r);
    for (int i = 0; i < x->shared.window->self; i++)
        begin += row * (size_t)request_part_rows(r, i, x->shared.window->n);
    add(x, p, t, begin, (size_t)t->out_rows * row, t->out);
}

bool fast_room_reduce(struct fast_path *x, const struct fast_place *p, const struct tensor *t,
                      uint64_t own) {
    bool divided = is_divided(x, t);
    floats_mode mode = floats_exact();
    if (divided)
        add_chunk(x, p, t);
    else if (t->request.kind == HVD_ALLREDUCE)
        add(x, p, t, 0, request_bytes(&t->request), t->out);
    else if (t->request.kind == HVD_REDUCESCATTER)
        add_part(x, p, t);
    else
        copy_parts(x, p, t);
    floats_restore(mode);
    if (!divided) return true;
    atomic_store_explicit(sums_of(x, x->shared.window->self, p), own, memory_order_release);
    return take_sums(x, p, t, own);
}

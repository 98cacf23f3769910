/* The fast path in a window that all ranks share.
 *
 * A place has one word for all ranks and, on each rank, room for two inputs. In a round each rank
 * copies its input to its room, then counts itself in the word. When the word has counted all
 * ranks, all inputs are in the window and no rank can withdraw: each rank reads the inputs that it
 * needs for its result. A rank closes the round if it has waited too long for the other ranks, or
 * if it submits the tensor to the engine. No rank can be counted in a closed round. */
#include "base/floats.h"
#include "base/os.h"
#include "collectives/algorithm.h"
#include "engine/fast_room.h"
#include "engine/fast_round.h"
#include "kernels/reduce.h"
#include "transport/transport.h"

#include <math.h>
#include <string.h>

enum {
    LARGEST = 64 << 10, /* maximum bytes that a rank reads from other ranks' inputs */
    BLOCK = 1024, /* bytes that are added at a time, then copied while they are in the L1 cache */
};

int fast_window_awaits(const struct fast_path *x) { return atomic_load(&x->shared.awaited) - 1; }

int fast_window_check(const struct fast_path *x, hvd_error *err) {
    int silent = atomic_load(&x->shared.silent);
    return silent ? comm_check_wait(x->transport, silent - 1, INFINITY, err) : HVD_OK;
}

/* ---- places ---- */

static bool have_equal_rows(const struct fast_path *x, const struct tensor *tensor) {
    if (!request_rows_vary(&tensor->request)) return true;
    for (int i = 0; i < x->shared.window->n; i++)
        if (tensor->rows[i] != tensor->rows[0]) return false;
    return true;
}

bool fast_window_suits(const struct fast_path *x, const struct tensor *tensor) {
    /* from this size on, the engine's direct allreduce copies less */
    enum { OWN_MEMORY = 16 << 10 };
    size_t bytes = request_bytes(&tensor->request);
    return x->shared.window && tensor->request.kind < HVD_JOIN &&
           bytes * (size_t)(x->shared.window->n - 1) <= LARGEST && have_equal_rows(x, tensor) &&
           !(tensor->direct && bytes > OWN_MEMORY);
}

/* Reserves room for `bytes` and the splits. Called in the same order on all ranks. */
static void make_room(struct fast_path *x, struct fast_place *p, size_t bytes) {
    size_t room = lines_of(bytes) + (p->shared.uneven ? lines_of(splits_bytes(x)) : 0);
    size_t all = HEAD + 2 * room;
    if (room <= p->shared.room) return;
    bool fits = all <= WINDOW_FAST_PATH - x->shared.used;
    p->shared.room = fits ? room : 0;
    p->shared.at = x->shared.used;
    x->shared.used += fits ? all : 0;
}

/* Publishes this rank's splits. No rank reads the old splits any more, because all ranks have
 * submitted this tensor to the engine. */
static bool publish_splits(const struct fast_path *x, struct fast_place *p,
                           const struct tensor *tensor) {
    if (!tensor->splits || tensor->open) return false;
    memcpy(splits_of(x, x->shared.window->self, p), tensor->splits, splits_bytes(x));
    p->shared.out_rows = tensor->out_rows;
    return true;
}

/* If this rank has already submitted another tensor of this name to the engine, or can't take part
 * in an alltoall with splits, closes the first round. */
void fast_window_open(struct fast_path *x, struct fast_place *p, const struct tensor *tensor,
                      bool often) {
    p->shared.uneven = tensor->uneven;
    make_room(x, p, request_bytes(&tensor->request));
    if (!p->shared.room || !often) return;
    bool comes = !tensor->uneven || publish_splits(x, p, tensor);
    mutex_lock(&x->mutex); /* fast_window_submit adds tensors under this lock */
    bool more = tensor->behind || !comes;
    if (!more) atomic_store_explicit(&p->state, OPEN, memory_order_release);
    mutex_unlock(&x->mutex);
    if (more)
        round_close(word_at(x, p), word_of(p->generation, 0), false, (uint64_t)x->shared.window->n);
    atomic_store(&x->shared.opens, true);
}

/* ---- a round, any thread ---- */

static const char *source_of(const struct fast_path *x, const struct fast_place *p,
                             const struct tensor *t, int local_rank) {
    return local_rank == x->shared.window->self ? t->in : input_of(x, local_rank, p);
}

/* Adds the bytes from offset `begin` on, in the order of ranks. */
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

/* Below this size every rank reduces the whole tensor and waits once. Above it each rank reduces
 * one chunk and waits for the other ranks' chunks. Only an allreduce needs sums from other
 * ranks. */
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

/* Copies the input to the window, except what only this rank reads. */
static void stage(const struct fast_path *x, const struct fast_place *p, const struct tensor *t) {
    int self = x->shared.window->self;
    char *to = input_of(x, self, p);
    if (t->request.kind == HVD_BROADCAST && t->request.root != self) return;
    size_t bytes = request_bytes(&t->request);
    struct coll_range own = {0};
    if (is_divided(x, t)) own = chunk_of(x, t, self);
    if (t->request.kind == HVD_ALLTOALL) own = part_of(x, p, t, self, self);
    lines_copy(to, t->in, own.begin);
    lines_copy(to + own.end, (const char *)t->in + own.end, bytes - own.end);
}

/* Adds this rank's chunk of all inputs, and writes the sums over this chunk in each rank's input;
 * collectives/window.c explains why. */
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

/* Makes the engine ask whether the rank lives. */
static void tell_engine(struct fast_path *x, int local_rank) {
    if (atomic_exchange(&x->shared.awaited, local_rank + 1) != local_rank + 1)
        transport_wake(x->transport);
}

/* Ends the wait for a rank. Threads that wait for other ranks notify the engine again. */
static bool end_wait(struct fast_path *x, int local_rank, bool there) {
    int own = local_rank + 1;
    if (atomic_load(&x->shared.awaited))
        atomic_compare_exchange_strong(&x->shared.awaited, &own, 0);
    return there;
}

/* Returns false if the engine has failed: an engine fails soon after a rank dies or falls silent.
 * If all ranks have left, the engine no longer watches ranks, so this function does. */
static bool wait_for_sums(struct fast_path *x, const struct fast_place *p, int local_rank,
                          uint64_t own) {
    static const double LONGEST_NAP = 1e-3, SOON = 0.05; /* seconds */
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

/* For allgather, alltoall and broadcast. */
static void copy_parts(const struct fast_path *x, const struct fast_place *p,
                       const struct tensor *t) {
    bool one = t->request.kind == HVD_BROADCAST;
    int first = one ? t->request.root : 0, last = one ? first + 1 : x->shared.window->n;
    char *to = t->out;
    for (int i = first; i < last; i++) {
        struct coll_range part = part_of(x, p, t, i, x->shared.window->self);
        const char *source = source_of(x, p, t, i) + part.begin;
        if (to != source) lines_copy(to, source, coll_length(part));
        to += coll_length(part);
    }
}

/* For reducescatter: adds this rank's rows. */
static void add_part(const struct fast_path *x, const struct fast_place *p,
                     const struct tensor *t) {
    const struct request *r = &t->request;
    size_t begin = 0, row = request_row_bytes(r);
    for (int i = 0; i < x->shared.window->self; i++)
        begin += row * (size_t)request_part_rows(r, i, x->shared.window->n);
    add(x, p, t, begin, (size_t)t->out_rows * row, t->out);
}

static bool reduce(struct fast_path *x, const struct fast_place *p, const struct tensor *t,
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

/* Returns false if the tensor differs from the place's request, or its output needs the engine. */
static bool fits(const struct fast_path *x, const struct fast_place *p, const struct tensor *t) {
    const struct request *r = &t->request;
    if (request_conflict(&p->request, r) != FIELD_NONE) return false;
    if (r->kind == HVD_REDUCESCATTER)
        return t->out_rows == request_part_rows(r, x->shared.window->self, x->shared.window->n);
    if (!request_rows_vary(r)) return true;
    int64_t rows = request_rows(r),
            each = r->kind == HVD_ALLTOALL ? rows / x->shared.window->n : rows;
    if (rows != request_rows(&p->request) || !t->out || r->uneven != p->shared.uneven) return false;
    if (!r->uneven) return t->out_rows == each * x->shared.window->n;
    return !t->open && t->out_rows == p->shared.out_rows &&
           t->nsplits * sizeof *t->splits == splits_bytes(x) &&
           !memcmp(t->splits, splits_of(x, x->shared.window->self, p), splits_bytes(x));
}

/* Returns the round's batch number, equal on all ranks; 0: the round has not run. */
static uint64_t use(struct fast_path *x, struct fast_place *p, const struct tensor *t) {
    uint64_t own = word_of(p->generation, p->round), n = (uint64_t)x->shared.window->n;
    _Atomic uint64_t *word = word_at(x, p);
    if (!fits(x, p, t)) {
        round_close(word, own, false, n);
        return 0;
    }
    cpus_tell(x->shared.window);
    stage(x, p, t);
    if (!round_arrive(word, own, n) || !round_wait(word, own, n, x->transport)) return 0;
    if (!reduce(x, p, t, own)) return 0;
    return fast_place_batch(p);
}

/* Returns the result of `use`; 0 if the place is not open. */
static uint64_t try_once(struct fast_path *x, const struct tensor *tensor) {
    struct fast_place *p = fast_place_find(x, &tensor->node);
    int open = OPEN;
    if (!p || !atomic_compare_exchange_strong(&p->state, &open, BUSY)) return 0;
    uint64_t batch = use(x, p, tensor);
    atomic_store_explicit(&p->state, batch ? OPEN : AWAY, memory_order_release);
    return batch;
}

bool fast_window_run(struct fast_path *x, struct tensor *tensor) {
    const struct request *r = &tensor->request;
    bool opens = atomic_load_explicit(&x->shared.opens, memory_order_acquire);
    if (!opens || !fast_place_takes(x, tensor)) return false;
    uint64_t batch = try_once(x, tensor);
    if (!batch) return false;
    flight_add_done(x->by->flight, r, tensor->submitted, x->group, tensor->node.hash, batch,
                    clock_now());
    execute_count(x->by, 1);
    comm_count_window(x->by->comm, request_bytes(r));
    atomic_store(&x->by->algorithm, "fast path");
    tensor->complete(tensor->arg, NULL);
    return true;
}

/* Closes the round unless a thread is in it. All ranks then use the engine until the next decision.
 * Returns the previous state. */
static int take_away(struct fast_path *x, struct fast_place *p) {
    int state = OPEN;
    if (atomic_compare_exchange_strong(&p->state, &state, AWAY))
        round_close(word_at(x, p), word_of(p->generation, p->round), false,
                    (uint64_t)x->shared.window->n);
    return state;
}

int fast_window_submit(struct fast_path *x, struct tensors *tensors, struct tensor *tensor,
                       bool *corked, hvd_error *err) {
    static const double LONGEST_NAP = 1e-3;
    struct waiter waiter = {0};
    if (!x->shared.window) return tensors_add(tensors, tensor, corked, err);
    for (;;) {
        mutex_lock(&x->mutex);
        struct fast_place *p = map_find(&x->names, &tensor->node);
        bool busy = p && take_away(x, p) == BUSY;
        int code = busy ? HVD_OK : tensors_add(tensors, tensor, corked, err);
        mutex_unlock(&x->mutex);
        if (!busy) return code;
        if (!tensor->queued) return tensor_duplicate(tensor, err);
        struct wait_policy policy = transport_policy(x->transport);
        waiter_do(&waiter, waiter_next(&waiter, clock_now(), policy, LONGEST_NAP));
    }
}

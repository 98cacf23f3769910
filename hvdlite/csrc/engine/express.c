#include "engine/express.h"

#include "base/clock.h"
#include "base/floats.h"
#include "collectives/coll.h"
#include "engine/express_place.h"
#include "kernels/reduce.h"
#include "shm/lines.h"
#include "transport/transport.h"

#include <math.h>
#include <stdlib.h>

enum {
    LARGEST = 64 << 10, /* bytes read of the others: more goes to the engine */
    LINE = 64,
    HEAD = 2 * LINE, /* of a rank's room: the word, that of local rank 0 counts; its sums' round */
    BLOCK = 1024,    /* bytes that are added, then copied while the first cache has them */
    MISSES = 8,      /* generations without a round in a row: from now on most have none */
    SELDOM = 16
};

void express_open(struct express *x, struct transport *t, struct executor *by,
                  const atomic_bool *failed, int group) {
    struct window *window = t->all.window;
    *x = (struct express){.window = window && window->n > 1 ? window : NULL,
                          .by_hosts = t->all.size > 1 && t->all.hosts == t->all.size,
                          .transport = t,
                          .by = by,
                          .failed = failed,
                          .group = group};
    monitor_init(&x->monitor);
}

int express_check(const struct express *x, hvd_error *err) {
    int silent = atomic_load(&x->silent);
    return silent ? comm_check_wait(x->transport, silent - 1, INFINITY, err) : HVD_OK;
}

void express_close(struct express *x) {
    for (struct express_place *p = x->places, *next; p; p = next) {
        next = p->next;
        free(p->message);
        free(p);
    }
    express_drop(x, NULL);
    map_clear(&x->names);
    monitor_destroy(&x->monitor);
}

/* ---- places ---- */

static char *room_of(const struct express *x, int local_rank, const struct express_place *p) {
    return (char *)x->window->ranks[local_rank].express + p->at;
}

static _Atomic uint64_t *word_at(const struct express *x, const struct express_place *p) {
    return (_Atomic uint64_t *)(void *)room_of(x, 0, p);
}

static _Atomic uint64_t *sums_of(const struct express *x, int local_rank,
                                 const struct express_place *p) {
    return (_Atomic uint64_t *)(void *)(room_of(x, local_rank, p) + LINE);
}

static char *input_of(const struct express *x, int local_rank, const struct express_place *p) {
    return room_of(x, local_rank, p) + HEAD + p->round % 2 * p->room;
}

/* All ranks bring equally many rows, and deal them out evenly. */
static bool is_even(const struct express *x, const struct tensor *tensor) {
    if (!request_rows_vary(&tensor->request)) return true;
    for (int i = 0; i < x->window->n; i++)
        if (tensor->rows[i] != tensor->rows[0]) return false;
    return !tensor->uneven;
}

static bool suits_window(const struct express *x, const struct tensor *tensor) {
    enum { OWN_MEMORY = 16 << 10 }; /* from here on, less is copied by the direct allreduce */
    size_t bytes = request_bytes(&tensor->request);
    return x->window && bytes * (size_t)(x->window->n - 1) <= LARGEST && is_even(x, tensor) &&
           !(tensor->direct && bytes > OWN_MEMORY);
}

static bool suits(const struct express *x, const struct tensor *tensor) {
    const struct request *r = &tensor->request;
    bool plain = r->op != HVD_ADASUM && !r->codec.kind && !r->rule && !r->grouped;
    if (!x->by_hosts) return plain && r->kind < HVD_JOIN && suits_window(x, tensor);
    return plain && r->kind == HVD_ALLREDUCE && express_suits_hosts(x, r);
}

/* Gives the place room for `bytes`, in the same order on all ranks. */
static void make_room(struct express *x, struct express_place *p, size_t bytes) {
    size_t room = bytes / LINE * LINE + LINE, all = HEAD + 2 * room;
    if (room <= p->room) return;
    bool fits = all <= WINDOW_EXPRESS - x->used;
    p->room = fits ? room : 0;
    p->at = x->used;
    x->used += fits ? all : 0;
}

/* Not for a rank with another tensor of the name, which has gone to the engine before this decision. */
static void open_round(struct express *x, struct express_place *p, const struct tensor *tensor) {
    monitor_lock(&x->monitor); /* which express_submit holds as it adds one */
    bool more = tensor->behind;
    if (!more) atomic_store_explicit(&p->state, OPEN, memory_order_release);
    monitor_unlock(&x->monitor);
    if (more) round_close(word_at(x, p), word_of(p->generation, 0), false, (uint64_t)x->window->n);
    atomic_store(&x->opens, true);
}

int express_agreed(struct express *x, const struct tensor *tensor, hvd_error *err) {
    if (x->fails || !suits(x, tensor)) return HVD_OK;
    struct express_place *p = express_find(x, &tensor->node);
    if (!p && !(p = express_add(x, &tensor->request))) {
        x->fails = true;
        return x->by_hosts ? error_set(err, HVD_NO_MEMORY, "no memory for a tensor") : HVD_OK;
    }
    if (x->window) make_room(x, p, request_bytes(&tensor->request));
    monitor_lock(&x->monitor); /* other threads compare its name */
    request_copy(&p->request, &tensor->request);
    monitor_unlock(&x->monitor);
    p->misses = p->round || !p->generation ? 0 : p->misses + 1;
    p->round = 0;
    p->generation++;
    bool often = p->misses < MISSES || p->misses % SELDOM == 0;
    if (x->by_hosts) return express_open_hosts(x, p, often, err);
    if (p->room && often) open_round(x, p, tensor);
    return HVD_OK;
}

/* ---- a round, any thread ---- */

static const char *source_of(const struct express *x, const struct express_place *p,
                             const struct tensor *t, int local_rank) {
    return local_rank == x->window->self ? t->in : input_of(x, local_rank, p);
}

/* Adds the bytes from `begin` on, in the order of ranks. */
static void add(const struct express *x, const struct express_place *p, const struct tensor *t,
                size_t begin, size_t bytes, char *out) {
    const struct request *r = &t->request;
    const struct reduce_kernels *kernels = reduce_kernels((hvd_dtype)r->dtype, (hvd_op)r->op);
    int n = x->window->n;
    const char *in[n];
    for (int i = 0; i < n; i++) in[i] = source_of(x, p, t, i) + begin;
    reduce_all(kernels, out, in, n, bytes / kernels->size, r->prescale,
               (struct reduce_final){r->postscale, r->op == HVD_AVERAGE ? (int64_t)n : 1});
}

/* Up to here every rank adds all, and waits once. Of more, each adds a chunk for all. Other kinds
 * wait once, too: nobody needs what another rank has added. */
static bool is_divided(const struct express *x, const struct tensor *t) {
    return t->request.kind == HVD_ALLREDUCE &&
           request_bytes(&t->request) > (x->window->n == 2 ? 2 << 10 : 8 << 10);
}

static struct coll_range chunk_of(const struct express *x, const struct tensor *t, int local_rank) {
    const struct request *r = &t->request;
    size_t element = request_bytes(r) / (size_t)request_count(r);
    return coll_chunk(request_bytes(r), element, x->window->n, local_rank);
}

/* Copies the input for the others; for the chunk that this rank adds it has its own memory. */
static void stage(const struct express *x, const struct express_place *p, const struct tensor *t) {
    char *to = input_of(x, x->window->self, p);
    if (t->request.kind == HVD_BROADCAST && t->request.root != x->window->self) return;
    size_t bytes = request_bytes(&t->request);
    struct coll_range own = {0};
    if (is_divided(x, t)) own = chunk_of(x, t, x->window->self);
    lines_copy(to, t->in, own.begin);
    lines_copy(to + own.end, (const char *)t->in + own.end, bytes - own.end);
}

/* Writes the sums over the inputs in the rooms; collectives/window.c tells why there. */
static void add_chunk(const struct express *x, const struct express_place *p,
                      const struct tensor *t) {
    struct coll_range own = chunk_of(x, t, x->window->self);
    for (size_t at = own.begin; at < own.end; at += BLOCK) {
        size_t bytes = own.end - at < BLOCK ? own.end - at : BLOCK;
        add(x, p, t, at, bytes, (char *)t->out + at);
        for (int i = 0; i < x->window->n; i++)
            if (i != x->window->self)
                lines_copy(input_of(x, i, p) + at, (char *)t->out + at, bytes);
    }
}

/* False: the engine has failed, as it does when the rank is dead, and soon when it is silent. Once all
 * have left, it does not: then this wait ends by itself. */
static bool wait_for_sums(struct express *x, const struct express_place *p, int local_rank,
                          uint64_t own) {
    static const double LONGEST_NAP = 1e-3;
    const struct wait_policy policy = x->transport->patience.policy;
    struct waiter waiter = {0};
    hvd_error late;
    bool ends = false;
    for (unsigned looks = 1;; looks++) {
        if (atomic_load_explicit(sums_of(x, local_rank, p), memory_order_acquire) == own)
            return true;
        if (policy.spin > 0 && looks % UNTIMED) {
            clock_relax();
            continue;
        }
        if (atomic_load(x->failed) || ends) return false;
        double now = clock_now();
        waiter_do(waiter_next(&waiter, now, policy, LONGEST_NAP));
        bool silent = comm_check_wait(x->transport, local_rank, now - waiter.since, &late);
        if (silent && !atomic_exchange(&x->silent, local_rank + 1)) transport_wake(x->transport);
        ends = atomic_load(&x->over) && (silent || transport_is_dead(x->transport, local_rank));
    }
}

static bool take_sums(struct express *x, const struct express_place *p, const struct tensor *t,
                      uint64_t own) {
    int self = x->window->self, n = x->window->n;
    for (int d = 1; d < n; d++) {
        int i = (self + d) % n;
        struct coll_range chunk = chunk_of(x, t, i);
        if (!wait_for_sums(x, p, i, own)) return false;
        lines_copy((char *)t->out + chunk.begin, input_of(x, self, p) + chunk.begin,
                   coll_length(chunk));
    }
    return true;
}

/* An allgather, an alltoall, a broadcast. */
static void copy_parts(const struct express *x, const struct express_place *p,
                       const struct tensor *t) {
    const struct request *r = &t->request;
    size_t part = request_bytes(r), from = 0;
    int first = 0, last = x->window->n;
    if (r->kind == HVD_ALLTOALL) {
        part = (size_t)(request_rows(r) / x->window->n) * request_row_bytes(r);
        from = (size_t)x->window->self * part;
    }
    if (r->kind == HVD_BROADCAST) last = 1 + (first = r->root);
    for (int i = first; i < last; i++) {
        char *to = (char *)t->out + (size_t)(i - first) * part;
        const char *source = source_of(x, p, t, i) + from;
        if (to != source) lines_copy(to, source, part);
    }
}

/* This rank's rows. */
static void add_part(const struct express *x, const struct express_place *p,
                     const struct tensor *t) {
    const struct request *r = &t->request;
    size_t begin = 0, row = request_row_bytes(r);
    for (int i = 0; i < x->window->self; i++)
        begin += row * (size_t)request_part_rows(r, i, x->window->n);
    add(x, p, t, begin, (size_t)t->out_rows * row, t->out);
}

static bool reduce(struct express *x, const struct express_place *p, const struct tensor *t,
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
    atomic_store_explicit(sums_of(x, x->window->self, p), own, memory_order_release);
    return take_sums(x, p, t, own);
}

/* False: the tensor differs from what all ranks brought before, or the output needs the engine. */
static bool fits(const struct express *x, const struct express_place *p, const struct tensor *t) {
    const struct request *r = &t->request;
    if (request_conflict(&p->request, r) != FIELD_NONE) return false;
    if (r->kind == HVD_REDUCESCATTER)
        return t->out_rows == request_part_rows(r, x->window->self, x->window->n);
    if (!request_rows_vary(r)) return true;
    int64_t rows = request_rows(r), each = r->kind == HVD_ALLTOALL ? rows / x->window->n : rows;
    return rows == request_rows(&p->request) && !r->uneven && t->out &&
           t->out_rows == each * x->window->n;
}

/* Returns the round's number among all of the tensor, equal on all ranks; 0: it is not done. */
static uint64_t use(struct express *x, struct express_place *p, const struct tensor *t) {
    uint64_t own = word_of(p->generation, p->round), n = (uint64_t)x->window->n;
    _Atomic uint64_t *word = word_at(x, p);
    if (!fits(x, p, t)) {
        round_close(word, own, false, n);
        return 0;
    }
    stage(x, p, t);
    if (!round_arrive(word, own, n) || !round_wait(word, own, n, x->transport->patience.policy))
        return 0;
    if (!reduce(x, p, t, own)) return 0;
    return express_batch(p);
}

/* Returns what `use` does. */
static uint64_t try_once(struct express *x, const struct tensor *tensor) {
    struct express_place *p = express_find(x, &tensor->node);
    int open = OPEN;
    if (!p || !atomic_compare_exchange_strong(&p->state, &open, BUSY)) return 0;
    uint64_t batch = use(x, p, tensor);
    atomic_store_explicit(&p->state, batch ? OPEN : AWAY, memory_order_release);
    return batch;
}

bool express_run(struct express *x, struct tensor *tensor) {
    const struct request *r = &tensor->request;
    bool opens = atomic_load_explicit(&x->opens, memory_order_acquire);
    if (!opens || !express_takes(x, tensor)) return false;
    uint64_t batch = try_once(x, tensor);
    if (!batch) return false;
    flight_add_done(x->by->flight, r, tensor->submitted, x->group, tensor->node.hash, batch,
                    clock_now());
    execute_count(x->by, 1);
    comm_count_window(x->by->comm, request_bytes(r));
    atomic_store(&x->by->algorithm, "express");
    tensor->complete(tensor->arg, NULL);
    return true;
}

/* Unless a thread has it, all go to the engine until the next decision. Returns the state before. */
static int take_away(struct express *x, struct express_place *p) {
    int state = OPEN;
    if (atomic_compare_exchange_strong(&p->state, &state, AWAY))
        round_close(word_at(x, p), word_of(p->generation, p->round), false, (uint64_t)x->window->n);
    return state;
}

int express_submit(struct express *x, struct tensors *tensors, struct tensor *tensor, bool *corked,
                   hvd_error *err) {
    static const double LONGEST_NAP = 1e-3;
    struct waiter waiter = {0};
    if (!x->window) return tensors_add(tensors, tensor, corked, err);
    for (;;) {
        monitor_lock(&x->monitor);
        struct express_place *p = map_find(&x->names, &tensor->node);
        bool busy = p && take_away(x, p) == BUSY;
        int code = busy ? HVD_OK : tensors_add(tensors, tensor, corked, err);
        monitor_unlock(&x->monitor);
        if (!busy) return code;
        if (!tensor->queued) return tensor_duplicate(tensor, err);
        waiter_do(waiter_next(&waiter, clock_now(), x->transport->patience.policy, LONGEST_NAP));
    }
}

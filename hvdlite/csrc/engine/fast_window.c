/* The fast path in a window that all ranks share.
 *
 * A place, the fast path's data for a tensor name, has one word for all ranks and, in each rank's
 * memory, room for two inputs. In a round each rank copies its input to its room, then counts
 * itself in the word. When the word has counted all ranks, all inputs are in the window and no rank
 * can withdraw: each rank reads the inputs that it needs for its result. A rank closes the round if
 * the rank has waited too long for the other ranks, or if it submits the tensor to the engine. No
 * rank can be counted in a closed round. */
#include "base/os.h"
#include "engine/fast_room.h"
#include "engine/fast_round.h"
#include "transport/transport.h"

#include <math.h>
#include <string.h>

int fast_window_awaits(const struct fast_path *x) { return atomic_load(&x->shared.awaited) - 1; }

int fast_window_check(const struct fast_path *x, hvd_error *err) {
    int silent = atomic_load(&x->shared.silent);
    return silent ? comm_check_wait(x->transport, silent - 1, INFINITY, err) : HVD_OK;
}

/* ---- places: the fast path's data for tensor names ---- */

static bool have_equal_rows(const struct fast_path *x, const struct tensor *tensor) {
    if (!request_rows_vary(&tensor->request)) return true;
    for (int i = 0; i < x->shared.window->n; i++)
        if (tensor->rows[i] != tensor->rows[0]) return false;
    return true;
}

bool fast_window_suits(const struct fast_path *x, const struct tensor *tensor) {
    /* for larger tensors in a region, the engine's allreduce in place is better: it copies less */
    enum { OWN_MEMORY = 16 << 10 };
    size_t bytes = request_bytes(&tensor->request), read = bytes;
    if (!x->shared.window) return false;
    if (tensor->request.kind == HVD_ALLTOALL && !tensor->uneven)
        read /= (size_t)x->shared.window->n;
    return tensor->request.kind < HVD_JOIN &&
           read * (size_t)(x->shared.window->n - 1) <= HVD_FAST_BYTES &&
           have_equal_rows(x, tensor) && !(tensor->direct && bytes > OWN_MEMORY);
}

/* Reserves room for inputs of `bytes`, and for the splits of an alltoall. All ranks make the same
 * calls in the same order, so the offset in the window is the same on all ranks. */
static void make_room(struct fast_path *x, struct fast_place *p, size_t bytes) {
    size_t room = lines_of(bytes) + (p->shared.uneven ? lines_of(splits_bytes(x)) : 0);
    size_t all = HEAD + 2 * room;
    if (room <= p->shared.room) return;
    bool fits = all <= WINDOW_FAST_PATH - x->shared.used;
    p->shared.room = fits ? room : 0;
    p->shared.at = x->shared.used;
    x->shared.used += fits ? all : 0;
}

/* Publishes this rank's splits. Runs after all ranks have submitted this tensor to the engine, so
 * no rank still reads the old splits. */
static bool publish_splits(const struct fast_path *x, struct fast_place *p,
                           const struct tensor *tensor) {
    if (!tensor->splits || tensor->open) return false;
    memcpy(splits_of(x, x->shared.window->self, p), tensor->splits, splits_bytes(x));
    p->shared.out_rows = tensor->out_rows;
    return true;
}

/* Lets this name's next collective use the fast path. If this rank has already submitted another
 * tensor of this name to the engine, or can't take part in an alltoall with splits, forbids it. */
void fast_window_open(struct fast_path *x, struct fast_place *p, const struct tensor *tensor,
                      bool often) {
    p->shared.uneven = tensor->uneven;
    make_room(x, p, request_bytes(&tensor->request));
    if (!p->shared.room || !often) return;
    bool takes_part = !tensor->uneven || publish_splits(x, p, tensor);
    mutex_lock(&x->mutex); /* fast_window_submit adds tensors under this lock */
    bool closes = tensor->behind || !takes_part;
    if (!closes) atomic_store_explicit(&p->state, OPEN, memory_order_release);
    mutex_unlock(&x->mutex);
    if (closes)
        round_close(word_at(x, p), word_of(p->generation, 0), false, (uint64_t)x->shared.window->n);
    atomic_store(&x->shared.opens, true);
}

/* ---- a round: one collective; any thread ---- */

/* Returns false if the tensor differs from p->request, or its output needs the engine. */
static bool suits_place(const struct fast_path *x, const struct fast_place *p,
                        const struct tensor *t) {
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

/* Runs the collective. Returns its batch number, equal on all ranks; 0: it has not run. */
static uint64_t run_round(struct fast_path *x, struct fast_place *p, const struct tensor *t) {
    uint64_t own = word_of(p->generation, p->round), n = (uint64_t)x->shared.window->n;
    _Atomic uint64_t *word = word_at(x, p);
    if (!suits_place(x, p, t)) {
        round_close(word, own, false, n);
        return 0;
    }
    cpus_publish_core(x->shared.window);
    fast_room_stage(x, p, t);
    if (!round_arrive(word, own, n) || !round_wait(word, own, n, x->transport)) return 0;
    if (!fast_room_reduce(x, p, t, own)) return 0;
    return fast_place_batch(p);
}

/* Returns the result of run_round; 0 if the fast path is not open for this tensor's name. */
static uint64_t try_place(struct fast_path *x, const struct tensor *tensor) {
    struct fast_place *p = fast_place_find(x, &tensor->node);
    int open = OPEN;
    if (!p || !atomic_compare_exchange_strong(&p->state, &open, BUSY)) return 0;
    uint64_t batch = run_round(x, p, tensor);
    atomic_store_explicit(&p->state, batch ? OPEN : AWAY, memory_order_release);
    return batch;
}

bool fast_window_run(struct fast_path *x, struct tensor *tensor) {
    const struct request *r = &tensor->request;
    bool opens = atomic_load_explicit(&x->shared.opens, memory_order_acquire);
    if (!opens || !fast_place_takes(x, tensor)) return false;
    uint64_t batch = try_place(x, tensor);
    if (!batch) return false;
    flight_add_done(x->by->flight, r, tensor->submitted, x->group, tensor->node.hash, batch,
                    clock_now());
    execute_count(x->by, 1);
    comm_count_window(x->by->comm, request_bytes(r));
    atomic_store(&x->by->algorithm, "fast path");
    tensor->complete(tensor->arg, NULL);
    return true;
}

/* Closes the fast path of a tensor, unless a thread of this rank is in it. After a close all ranks
 * use the engine until the coordinator decides on the tensor again. Returns the previous state. */
static int close_place(struct fast_path *x, struct fast_place *p) {
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
        bool busy = p && close_place(x, p) == BUSY;
        int code = busy ? HVD_OK : tensors_add(tensors, tensor, corked, err);
        mutex_unlock(&x->mutex);
        if (!busy) return code;
        if (!tensor->queued) return tensor_duplicate(tensor, err);
        struct wait_policy policy = transport_policy(x->transport);
        waiter_do(&waiter, waiter_next(&waiter, clock_now(), policy, LONGEST_NAP));
    }
}

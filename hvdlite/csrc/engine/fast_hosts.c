/* The fast path between hosts with one rank each: one message carries both readiness and data.
 *
 * A round is a recursive doubling (collectives/doubling.c). A rank's first message also says that
 * the rank has entered the round. So when a rank has received all its messages, all ranks have
 * entered, and the rank has the sum. This takes floor(log2 p) messages one after another, two more
 * if p is not a power of two, and none to the coordinator. Kernels and order are those of
 * doubling.c, so the bits are the same.
 *
 * In each step a rank sends one message, SUMS or CLOSED. A rank sends CLOSED in all remaining steps
 * if it does not enter the round, or if it has received CLOSED. The steps spread each rank's sums,
 * or its CLOSED, to every rank. So if one rank sends CLOSED, in the end every rank has received a
 * CLOSED, and no rank has the sum. Ranks that had entered the round then report their tensor to the
 * coordinator, which handles stalls, joins and disagreements.
 *
 * A rank can't withdraw from a round that it has entered, because other ranks may have the sum. So
 * a rank leaves the job, or calls join(), only after its rounds have ended. A rank that has joined
 * closes a round when the round's first message arrives. A rank that has waited long sends ASK to
 * the peer of its step. If the peer has not entered the round, the peer closes the round. If the
 * peer has entered, the peer waits for a third rank and sends ASK to this third rank.
 *
 * A rank keeps a message as a note if the message belongs to the next round, or to a generation
 * (fast_path.h) that the rank has not opened yet. */
#include "collectives/algorithm.h"
#include "collectives/costs.h"
#include "engine/fast_place.h"
#include "transport/transport.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MARK = 0xb3 };        /* the first byte of these messages; other messages have another one */
enum { LARGEST = 64 << 10 }; /* bytes; limits memory, because each tensor name keeps its message */
enum type { SUMS, CLOSED, ASK };

/* Seconds before a rank asks for an overdue message. If longer, ranks lose more time if one rank
 * does not enter a round. If shorter, more rounds fail because a rank is a little late. */
static const double PATIENT = 0.25;

struct head {
    uint8_t mark, type;
    uint16_t step;
    uint32_t number; /* host_place.number, which stands for the tensor's name */
    uint64_t generation, round;
};

struct fast_note {
    struct fast_note *next;
    const struct head *head; /* points into `message` */
    size_t size;
    int from;
};

static struct coll_fold fold_of(const struct fast_path *x) {
    return coll_fold(x->transport->all.size);
}

/* Step 0: each rank that sits out sends its data to a neighbor. Steps 1 .. q: recursive doubling.
 * Step q + 1: the ranks that sit out get the result. */
static int last_step(const struct fast_path *x) {
    int steps = 1;
    for (int reached = 1; reached < fold_of(x).positions; reached *= 2) steps++;
    return steps;
}

struct step {
    int peer;
    bool sends, takes;
};

static struct step step_of(const struct fast_path *x, int step) {
    int rank = x->transport->all.rank, last = last_step(x);
    struct coll_fold fold = fold_of(x);
    int position = coll_fold_position(fold, rank);
    if (position == COLL_SITS_OUT) return (struct step){rank + 1, step == 0, step == last};
    bool pair = position < fold.pairs;
    if (step == 0 || step == last)
        return (struct step){rank - 1, pair && step == last, pair && step == 0};
    return (struct step){coll_fold_rank(fold, position ^ 1 << (step - 1)), true, true};
}

static const struct reduce_kernels *kernels_of(const struct request *r) {
    return reduce_kernels((hvd_dtype)r->dtype, (hvd_op)r->op);
}

static size_t sums_bytes(const struct fast_place *p) {
    return request_count(&p->request) * kernels_of(&p->request)->wide;
}

static void *sums_of(const struct fast_place *p) { return p->hosts.message + sizeof(struct head); }

/* Returns true only if the engine, too, chooses doubling: both paths must give the same bits. */
bool fast_hosts_suits(const struct fast_path *x, const struct request *r) {
    size_t bytes = request_bytes(r);
    return r->kind == HVD_ALLREDUCE && bytes && bytes <= LARGEST &&
           coll_cheapest(&x->transport->all, kernels_of(r), bytes) == COLL_DOUBLING;
}

/* ---- notes: received messages ---- */

static bool is_over(const struct fast_place *p, const struct head *h) {
    if (h->generation != p->generation) return h->generation < p->generation;
    return h->round < p->round || atomic_load(&p->state) == AWAY;
}

static bool is_now(const struct fast_place *p, const struct head *h) {
    return h->number == p->hosts.number && h->generation == p->generation && h->round == p->round;
}

static void free_note(struct fast_note *note) {
    free((void *)(uintptr_t)note->head);
    free(note);
}

void fast_hosts_drop(struct fast_path *x, const struct fast_place *p) {
    for (struct fast_note **at = &x->hosts.notes, *note; (note = *at);) {
        bool drops = !p || (note->head->number == p->hosts.number && is_over(p, note->head));
        if (!drops) {
            at = &note->next;
            continue;
        }
        *at = note->next;
        free_note(note);
    }
}

/* Removes and returns a message of the current round from x->hosts.notes: SUMS of the current step
 * or, if `sums` is false, CLOSED or ASK. NULL: there is none. */
static struct fast_note *take_note(struct fast_path *x, const struct fast_place *p, bool sums) {
    for (struct fast_note **at = &x->hosts.notes, *note; (note = *at); at = &note->next) {
        bool fits = sums ? note->head->type == SUMS && note->head->step == p->hosts.step
                         : note->head->type != SUMS;
        if (!fits || !is_now(p, note->head)) continue;
        *at = note->next;
        return note;
    }
    return NULL;
}

/* ---- a round: one collective ---- */

static int post(struct fast_path *x, struct fast_place *p, enum type type, int step, int to,
                hvd_error *err) {
    size_t bytes = type == SUMS ? sums_bytes(p) : 0;
    struct stats *stats = x->transport->stats;
    struct head head = {.mark = MARK,
                        .type = (uint8_t)type,
                        .step = (uint16_t)step,
                        .number = p->hosts.number,
                        .generation = p->generation,
                        .round = p->round};
    memcpy(p->hosts.message, &head, sizeof head);
    if (stats) atomic_fetch_add(&stats->bytes_sent_network, bytes);
    return transport_send(x->transport, to, p->hosts.message, sizeof head + bytes, err);
}

static int damaged(const struct fast_path *x, int from, hvd_error *err) {
    return error_set(err, HVD_INTERNAL, "a fast-path message from rank %d is damaged",
                     transport_job_rank(x->transport, from));
}

/* Adds received sums and this rank's sums; the lower rank's sums come first, so that both ranks get
 * the same bits. */
static int add(struct fast_path *x, struct fast_place *p, struct fast_note *note, hvd_error *err) {
    const struct reduce_kernels *k = kernels_of(&p->request);
    int rank = x->transport->all.rank;
    void *mine = sums_of(p);
    const void *theirs = note->head + 1;
    if (note->size != sizeof(struct head) + sums_bytes(p)) return damaged(x, note->from, err);
    if (p->hosts.step == last_step(x))
        memcpy(mine, theirs, sums_bytes(p));
    else
        k->combine_wide(mine, rank < note->from ? mine : theirs, rank < note->from ? theirs : mine,
                        request_count(&p->request));
    return HVD_OK;
}

/* Ends this rank's part of one fast-path collective. Returns its tensor; NULL: it had not begun. */
static struct tensor *leave_round(struct fast_path *x, struct fast_place *p, enum state state) {
    struct tensor *tensor = p->hosts.tensor;
    p->hosts.tensor = NULL;
    p->hosts.step = 0;
    p->hosts.sent = false;
    atomic_store(&p->state, state);
    if (tensor) x->hosts.entered--;
    return tensor;
}

static void complete(struct fast_path *x, struct fast_place *p, double now) {
    const struct request *r = &p->request;
    uint64_t batch = fast_place_batch(p), n = (uint64_t)x->transport->all.size;
    struct tensor *tensor = leave_round(x, p, OPEN);
    struct reduce_final final = {r->postscale, r->op == HVD_AVERAGE ? (int64_t)n : 1};
    kernels_of(r)->narrow(tensor->out, sums_of(p), request_count(r), final);
    flight_agreed(x->by->flight, tensor->flight, batch, 1, now);
    flight_started(x->by->flight, tensor->flight, now);
    flight_ended(x->by->flight, tensor->flight, false, now);
    execute_count(x->by, 1);
    atomic_store(&x->by->algorithm, "fast path");
    tensors_finish(x->by->tensors, tensor, NULL);
}

/* Does all steps whose messages have arrived. */
static int advance(struct fast_path *x, struct fast_place *p, double now, hvd_error *err) {
    for (int last = last_step(x); p->hosts.step <= last; p->hosts.step++, p->hosts.sent = false) {
        struct step s = step_of(x, p->hosts.step);
        if (s.sends && !p->hosts.sent) HVD_TRY(post(x, p, SUMS, p->hosts.step, s.peer, err));
        p->hosts.sent = true;
        if (!s.takes) continue;
        struct fast_note *note = take_note(x, p, true);
        if (!note) return HVD_OK;
        int code = add(x, p, note, err);
        free_note(note);
        if (code) return code;
    }
    complete(x, p, now);
    return HVD_OK;
}

/* Ends a fast-path collective without a result. *back: this rank's tensor, if it had begun. */
static int close_round(struct fast_path *x, struct fast_place *p, struct tensor **back,
                       hvd_error *err) {
    for (int last = last_step(x); p->hosts.step <= last; p->hosts.step++, p->hosts.sent = false) {
        struct step s = step_of(x, p->hosts.step);
        if (s.sends && !p->hosts.sent) HVD_TRY(post(x, p, CLOSED, p->hosts.step, s.peer, err));
    }
    *back = leave_round(x, p, AWAY);
    return HVD_OK;
}

/* Returns true if a message of the current round has arrived; its sender may wait for this rank. */
static bool is_awaited(const struct fast_path *x, const struct fast_place *p) {
    const struct fast_note *note = x->hosts.notes;
    while (note && !is_now(p, note->head)) note = note->next;
    return note;
}

/* Handles the received messages (notes) for one tensor name. *back: see fast_hosts_receive. */
static int handle_notes(struct fast_path *x, struct fast_place *p, double now, struct tensor **back,
                        hvd_error *err) {
    struct fast_note *note;
    if (p->hosts.tensor) HVD_TRY(advance(x, p, now, err));
    if (x->hosts.joined && atomic_load(&p->state) == OPEN && is_awaited(x, p))
        HVD_TRY(close_round(x, p, back, err));
    while (atomic_load(&p->state) != AWAY && (note = take_note(x, p, false))) {
        bool closes = note->head->type == CLOSED || !p->hosts.tensor;
        free_note(note);
        if (closes) HVD_TRY(close_round(x, p, back, err));
    }
    fast_hosts_drop(x, p);
    return HVD_OK;
}

int fast_hosts_open(struct fast_path *x, struct fast_place *p, bool often, hvd_error *err) {
    size_t bytes = sizeof(struct head) + sums_bytes(p);
    struct tensor *none = NULL;
    char *message = bytes > p->hosts.capacity ? realloc(p->hosts.message, bytes) : p->hosts.message;
    if (!message) return error_set(err, HVD_NO_MEMORY, "no memory to send %zu bytes", bytes);
    p->hosts.message = message;
    if (bytes > p->hosts.capacity) p->hosts.capacity = bytes;
    atomic_store(&p->state, often ? OPEN : AWAY);
    return handle_notes(x, p, 0, &none, err);
}

/* ---- functions for the negotiation ---- */

static void wait_until(struct fast_path *x, struct fast_place *p, double due) {
    p->hosts.due = due;
    if (x->hosts.entered == 1 || due < x->hosts.due) x->hosts.due = due;
}

int fast_hosts_enter(struct fast_path *x, struct tensor *tensor, double now, bool *entered,
                     hvd_error *err) {
    struct fast_place *p = x->hosts.on ? fast_place_find(x, &tensor->node) : NULL;
    struct tensor *back = NULL;
    const struct request *r = &tensor->request;
    *entered = false;
    if (!p || atomic_load(&p->state) != OPEN) return HVD_OK;
    if (!fast_place_takes(x, tensor) || request_conflict(&p->request, r) != FIELD_NONE)
        return close_round(x, p, &back, err);
    *entered = true;
    p->hosts.tensor = tensor;
    atomic_store(&p->state, BUSY);
    x->hosts.entered++;
    wait_until(x, p, now + PATIENT);
    kernels_of(r)->widen(sums_of(p), tensor->in, request_count(r), r->prescale);
    return handle_notes(x, p, now, &back, err);
}

int fast_hosts_join(struct fast_path *x, double now, hvd_error *err) {
    struct tensor *none = NULL;
    x->hosts.joined = true;
    for (struct fast_place *p = x->hosts.on ? x->places : NULL; p; p = p->next)
        HVD_TRY(handle_notes(x, p, now, &none, err));
    return HVD_OK;
}

bool fast_hosts_is_message(const struct message *m) {
    return m->size && *(uint8_t *)m->data == MARK;
}

static struct fast_place *place_of(const struct fast_path *x, uint32_t number) {
    struct fast_place *p = x->places;
    while (p && p->hosts.number != number) p = p->next;
    return p;
}

static bool is_sound(const struct fast_path *x, const struct message *m) {
    const struct head *h = m->data;
    if (!x->hosts.on || m->size < sizeof *h || h->type > ASK || h->step > last_step(x))
        return false;
    struct step s = step_of(x, h->step);
    return h->type == ASK || (s.takes && s.peer == m->from);
}

int fast_hosts_receive(struct fast_path *x, struct message *m, double now, struct tensor **back,
                       hvd_error *err) {
    *back = NULL;
    if (!is_sound(x, m)) return damaged(x, m->from, err);
    struct fast_note *note = malloc(sizeof *note);
    if (!note) return error_set(err, HVD_NO_MEMORY, "no memory for a message");
    *note = (struct fast_note){x->hosts.notes, m->data, m->size, m->from};
    x->hosts.notes = note;
    m->data = NULL;
    struct fast_place *p = place_of(x, note->head->number);
    return p ? handle_notes(x, p, now, back, err) : HVD_OK;
}

int fast_hosts_ask(struct fast_path *x, double now, hvd_error *err) {
    if (!x->hosts.entered || now < x->hosts.due) return HVD_OK;
    x->hosts.due = INFINITY;
    for (struct fast_place *p = x->places; p; p = p->next) {
        if (!p->hosts.tensor) continue;
        bool late = now >= p->hosts.due;
        if (late) HVD_TRY(post(x, p, ASK, p->hosts.step, step_of(x, p->hosts.step).peer, err));
        wait_until(x, p, late ? now + PATIENT : p->hosts.due);
    }
    return HVD_OK;
}

double fast_hosts_sleep(const struct fast_path *x, double now, double longest) {
    if (!x->hosts.entered || x->hosts.due - now > longest) return longest;
    return fmax(x->hosts.due - now, 0);
}

/* Express between hosts of one rank each: readiness and data go together.
 *
 * A round is a recursive doubling (collectives/doubling.c) whose first message is also the news that
 * its rank has come. So a rank that gets all messages knows that all ranks have come, and has the
 * sum: ceil(log2 p) messages one after another, and none to the coordinator. Kernels and order are
 * those of doubling, and so are the bits.
 *
 * In each step a rank sends one message: the sums, or CLOSED. A rank that submits the tensor in
 * another way sends CLOSED in all steps that are left, and so does one that gets CLOSED. Then no rank
 * can get all sums, and each gets a CLOSED, as each rank's data goes to all. Who has come to the
 * round goes to the coordinator then, which knows of stalls, joins and disagreement. A rank that has
 * come can't withdraw, as others may have the sum. So a rank leaves or joins when its rounds are
 * over, and one that has joined closes a round when its first message comes. A rank that has waited
 * for long sends ASK to the rank that it waits for. That one closes the round, unless it has come:
 * then it waits for a third rank, which it asks in turn.
 *
 * A rank may get messages of the next round, or of a generation that its engine has not opened yet:
 * they are kept as notes. */
#include "base/clock.h"
#include "collectives/coll.h"
#include "collectives/costs.h"
#include "engine/express_place.h"
#include "transport/transport.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MARK = 0xb3 }; /* the first byte of a message; those of others begin otherwise */
enum { LARGEST = 64 << 10 };
enum type { SUMS, CLOSED, ASK };

/* A late rank takes part at once when it comes; one that does something else costs the others this. */
static const double PATIENT = 0.25;

struct head {
    uint8_t mark, type;
    uint16_t step;
    uint32_t number; /* of the place */
    uint64_t generation, round;
};

struct express_note {
    struct express_note *next;
    const struct head *head; /* the message */
    size_t size;
    int from;
};

static struct coll_fold fold_of(const struct express *x) {
    return coll_fold(x->transport->all.size);
}

/* 0: ranks fold; 1 .. q: doubling; q + 1: those that sit out get the result. */
static int last_step(const struct express *x) {
    int steps = 1;
    for (int reached = 1; reached < fold_of(x).positions; reached *= 2) steps++;
    return steps;
}

struct step {
    int peer;
    bool sends, takes;
};

static struct step step_of(const struct express *x, int step) {
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

static size_t sums_bytes(const struct express_place *p) {
    return request_count(&p->request) * kernels_of(&p->request)->wide;
}

static void *sums_of(const struct express_place *p) { return p->message + sizeof(struct head); }

/* The engine must choose the same. */
bool express_suits_hosts(const struct express *x, const struct request *r) {
    size_t bytes = request_bytes(r);
    return bytes && bytes <= LARGEST &&
           coll_cheapest(&x->transport->all, kernels_of(r), bytes) == COLL_DOUBLING;
}

/* ---- notes ---- */

static bool is_over(const struct express_place *p, const struct head *h) {
    if (h->generation != p->generation) return h->generation < p->generation;
    return h->round < p->round || atomic_load(&p->state) == AWAY;
}

static bool is_now(const struct express_place *p, const struct head *h) {
    return h->number == p->number && h->generation == p->generation && h->round == p->round;
}

static void free_note(struct express_note *note) {
    free((void *)(uintptr_t)note->head);
    free(note);
}

void express_drop(struct express *x, const struct express_place *p) {
    for (struct express_note **at = &x->notes, *note; (note = *at);) {
        bool drops = !p || (note->head->number == p->number && is_over(p, note->head));
        if (!drops) {
            at = &note->next;
            continue;
        }
        *at = note->next;
        free_note(note);
    }
}

/* Of the round; the sums of the step, or one that is none. NULL: none. */
static struct express_note *take_note(struct express *x, const struct express_place *p, bool sums) {
    for (struct express_note **at = &x->notes, *note; (note = *at); at = &note->next) {
        bool fits = sums ? note->head->type == SUMS && note->head->step == p->step
                         : note->head->type != SUMS;
        if (!fits || !is_now(p, note->head)) continue;
        *at = note->next;
        return note;
    }
    return NULL;
}

/* ---- a round ---- */

static int post(struct express *x, struct express_place *p, enum type type, int step, int to,
                hvd_error *err) {
    size_t bytes = type == SUMS ? sums_bytes(p) : 0;
    struct stats *stats = x->transport->stats;
    struct head head = {.mark = MARK,
                        .type = (uint8_t)type,
                        .step = (uint16_t)step,
                        .number = p->number,
                        .generation = p->generation,
                        .round = p->round};
    memcpy(p->message, &head, sizeof head);
    if (stats) atomic_fetch_add(&stats->bytes_sent_mpi, bytes);
    return transport_send(x->transport, to, p->message, sizeof head + bytes, err);
}

static int damaged(const struct express *x, int from, hvd_error *err) {
    return error_set(err, HVD_INTERNAL, "a message from rank %d for a round is damaged",
                     transport_job_rank(x->transport, from));
}

/* The lower rank's sums come first. */
static int add(struct express *x, struct express_place *p, struct express_note *note,
               hvd_error *err) {
    const struct reduce_kernels *k = kernels_of(&p->request);
    int rank = x->transport->all.rank;
    void *mine = sums_of(p);
    const void *theirs = note->head + 1;
    if (note->size != sizeof(struct head) + sums_bytes(p)) return damaged(x, note->from, err);
    if (p->step == last_step(x))
        memcpy(mine, theirs, sums_bytes(p));
    else
        k->combine_wide(mine, rank < note->from ? mine : theirs, rank < note->from ? theirs : mine,
                        request_count(&p->request));
    return HVD_OK;
}

/* BUSY no more; the next round, if any, begins. */
static struct tensor *let_go(struct express *x, struct express_place *p, enum state state) {
    struct tensor *tensor = p->tensor;
    p->tensor = NULL;
    p->step = 0;
    p->sent = false;
    atomic_store(&p->state, state);
    if (tensor) x->coming--;
    return tensor;
}

static void complete(struct express *x, struct express_place *p, double now) {
    const struct request *r = &p->request;
    uint64_t batch = express_batch(p), n = (uint64_t)x->transport->all.size;
    struct tensor *tensor = let_go(x, p, OPEN);
    struct reduce_final final = {r->postscale, r->op == HVD_AVERAGE ? (int64_t)n : 1};
    kernels_of(r)->narrow(tensor->out, sums_of(p), request_count(r), final);
    flight_agreed(x->by->flight, tensor->flight, batch, 1, now);
    flight_started(x->by->flight, tensor->flight, now);
    flight_ended(x->by->flight, tensor->flight, false, now);
    execute_count(x->by, 1);
    atomic_store(&x->by->algorithm, "express");
    tensors_finish(x->by->tensors, tensor, NULL);
}

/* As far as messages have come. */
static int advance(struct express *x, struct express_place *p, double now, hvd_error *err) {
    for (int last = last_step(x); p->step <= last; p->step++, p->sent = false) {
        struct step s = step_of(x, p->step);
        if (s.sends && !p->sent) HVD_TRY(post(x, p, SUMS, p->step, s.peer, err));
        p->sent = true;
        if (!s.takes) continue;
        struct express_note *note = take_note(x, p, true);
        if (!note) return HVD_OK;
        int code = add(x, p, note, err);
        free_note(note);
        if (code) return code;
    }
    complete(x, p, now);
    return HVD_OK;
}

/* Returns the tensor by *back, if this rank has come. */
static int close_round(struct express *x, struct express_place *p, struct tensor **back,
                       hvd_error *err) {
    for (int last = last_step(x); p->step <= last; p->step++, p->sent = false) {
        struct step s = step_of(x, p->step);
        if (s.sends && !p->sent) HVD_TRY(post(x, p, CLOSED, p->step, s.peer, err));
    }
    *back = let_go(x, p, AWAY);
    return HVD_OK;
}

/* Another rank has come to the round. */
static bool is_awaited(const struct express *x, const struct express_place *p) {
    const struct express_note *note = x->notes;
    while (note && !is_now(p, note->head)) note = note->next;
    return note;
}

/* Does what the notes of the place tell. */
static int settle(struct express *x, struct express_place *p, double now, struct tensor **back,
                  hvd_error *err) {
    struct express_note *note;
    if (p->tensor) HVD_TRY(advance(x, p, now, err));
    if (x->joined && atomic_load(&p->state) == OPEN && is_awaited(x, p))
        HVD_TRY(close_round(x, p, back, err));
    while (atomic_load(&p->state) != AWAY && (note = take_note(x, p, false))) {
        bool closes = note->head->type == CLOSED || !p->tensor;
        free_note(note);
        if (closes) HVD_TRY(close_round(x, p, back, err));
    }
    express_drop(x, p);
    return HVD_OK;
}

int express_open_hosts(struct express *x, struct express_place *p, bool often, hvd_error *err) {
    size_t bytes = sizeof(struct head) + sums_bytes(p);
    struct tensor *none = NULL;
    char *message = bytes > p->capacity ? realloc(p->message, bytes) : p->message;
    if (!message) return error_set(err, HVD_NO_MEMORY, "no memory for %zu bytes", bytes);
    p->message = message;
    if (bytes > p->capacity) p->capacity = bytes;
    atomic_store(&p->state, often ? OPEN : AWAY);
    return settle(x, p, 0, &none, err);
}

/* ---- for the negotiation ---- */

static void wait_until(struct express *x, struct express_place *p, double due) {
    p->due = due;
    if (x->coming == 1 || due < x->due) x->due = due;
}

int express_come(struct express *x, struct tensor *tensor, double now, bool *comes,
                 hvd_error *err) {
    struct express_place *p = x->by_hosts ? express_find(x, &tensor->node) : NULL;
    struct tensor *back = NULL;
    const struct request *r = &tensor->request;
    *comes = false;
    if (!p || atomic_load(&p->state) != OPEN) return HVD_OK;
    if (!express_takes(x, tensor) || request_conflict(&p->request, r) != FIELD_NONE)
        return close_round(x, p, &back, err);
    *comes = true;
    p->tensor = tensor;
    atomic_store(&p->state, BUSY);
    x->coming++;
    wait_until(x, p, now + PATIENT);
    kernels_of(r)->widen(sums_of(p), tensor->in, request_count(r), r->prescale);
    return settle(x, p, now, &back, err);
}

int express_join(struct express *x, double now, hvd_error *err) {
    struct tensor *none = NULL;
    x->joined = true;
    for (struct express_place *p = x->by_hosts ? x->places : NULL; p; p = p->next)
        HVD_TRY(settle(x, p, now, &none, err));
    return HVD_OK;
}

bool express_is_message(const struct message *m) { return m->size && *(uint8_t *)m->data == MARK; }

static struct express_place *place_of(const struct express *x, uint32_t number) {
    struct express_place *p = x->places;
    while (p && p->number != number) p = p->next;
    return p;
}

static bool is_sound(const struct express *x, const struct message *m) {
    const struct head *h = m->data;
    if (!x->by_hosts || m->size < sizeof *h || h->type > ASK || h->step > last_step(x))
        return false;
    struct step s = step_of(x, h->step);
    return h->type == ASK || (s.takes && s.peer == m->from);
}

int express_take(struct express *x, struct message *m, struct tensor **back, hvd_error *err) {
    *back = NULL;
    if (!is_sound(x, m)) return damaged(x, m->from, err);
    struct express_note *note = malloc(sizeof *note);
    if (!note) return error_set(err, HVD_NO_MEMORY, "no memory for a message");
    *note = (struct express_note){x->notes, m->data, m->size, m->from};
    x->notes = note;
    m->data = NULL;
    struct express_place *p = place_of(x, note->head->number);
    return p ? settle(x, p, clock_now(), back, err) : HVD_OK;
}

int express_ask(struct express *x, double now, hvd_error *err) {
    if (!x->coming || now < x->due) return HVD_OK;
    x->due = INFINITY;
    for (struct express_place *p = x->places; p; p = p->next) {
        if (!p->tensor) continue;
        bool late = now >= p->due;
        if (late) HVD_TRY(post(x, p, ASK, p->step, step_of(x, p->step).peer, err));
        wait_until(x, p, late ? now + PATIENT : p->due);
    }
    return HVD_OK;
}

double express_sleep(const struct express *x, double now, double longest) {
    if (!x->coming || x->due - now > longest) return longest;
    return fmax(x->due - now, 0);
}

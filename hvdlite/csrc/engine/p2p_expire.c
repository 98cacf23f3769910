/* The failure of sends and receives that nothing matches within the limit for stalls. */
#include "engine/p2p_state.h"
#include "negotiation/stall.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- failed sends and receives whose counterparts must fail, too ---- */

/* Adds an entry, or adds 1 to the count of the entry with the same name and rank: a program that
 * repeats its names has few entries. */
static int add_failed(struct p2p_failed **list, int peer, const char *name, hvd_error *err) {
    size_t bytes = strlen(name) + 1;
    for (struct p2p_failed *f = *list; f; f = f->next) {
        if (f->peer != peer || strcmp(f->name, name)) continue;
        f->count++;
        return HVD_OK;
    }
    struct p2p_failed *made = malloc(sizeof *made + bytes);
    if (!made)
        return error_set(err, HVD_NO_MEMORY, "no memory to record that tensor '%s' failed", name);
    *made = (struct p2p_failed){.next = *list, .peer = peer, .count = 1};
    memcpy(made->name, name, bytes);
    *list = made;
    return HVD_OK;
}

int p2p_take_failed(struct p2p_failed **list, int peer, const char *name) {
    for (struct p2p_failed *f; (f = *list); list = &f->next) {
        if ((f->peer != peer && peer != P2P_ANY) || strcmp(f->name, name)) continue;
        peer = f->peer;
        if (--f->count) return peer;
        *list = f->next;
        free(f);
        return peer;
    }
    return P2P_NOBODY;
}

void p2p_free_failed(struct p2p_failed *list) {
    for (struct p2p_failed *next; list; list = next) {
        next = list->next;
        free(list);
    }
}

/* ---- the limit ---- */

static void set_stalled(struct p2p *p, const struct tensor *t, double waited, hvd_error *why) {
    bool sends = t->request.kind == HVD_SEND;
    char peer[24] = "no rank has";
    int other = t->request.root;
    if (other != P2P_ANY)
        snprintf(peer, sizeof peer, "rank %d has not", transport_job_rank(p->t, other));
    error_set(why, HVD_STALLED,
              "tensor '%s' has waited for %.*f s on rank %d: %s %s it. To wait longer, set "
              "HVDLITE_STALL_SHUTDOWN_TIME_SECONDS",
              t->request.name, waited < 1 ? 2 : 0, waited, transport_job_rank(p->t, p->t->at.rank),
              peer, sends ? "received" : "sent");
    if (other != P2P_ANY) transport_blame(p->t, other, why);
}

/* Fails a send or receive. A later send that fits a failed receive will be refused. An exception is
 * a receive with P2P_ANY as its sender, because the send may be meant for another receive. */
static int expire(struct p2p *p, struct tensor *t, double waited, hvd_error *err) {
    bool sends = t->request.kind == HVD_SEND;
    int peer = t->request.root;
    struct p2p_head head = {.type = P2P_WITHDRAW, .number = t->id};
    if (sends) HVD_TRY(p2p_post(p, peer, head, "", NULL, 0, err));
    if (!sends && peer != P2P_ANY) HVD_TRY(add_failed(&p->expired, peer, t->request.name, err));
    p->withdrew |= sends;
    hvd_error why;
    set_stalled(p, t, waited, &why);
    tensor_list_remove(sends ? &p->sends : &p->receives, t);
    p2p_finish(p, t, &why);
    return HVD_OK;
}

/* Returns whether an older receive, from any rank, takes the next offer with the name of `t`. */
static bool is_queued(const struct p2p *p, const struct tensor *t) {
    if (t->request.kind == HVD_SEND) return false;
    for (const struct tensor *o = p->receives.oldest; o != t; o = o->newer)
        if (o->request.root == P2P_ANY && !strcmp(o->request.name, t->request.name)) return true;
    return false;
}

int p2p_expire(struct p2p *p, double now, double limit, const bool *silent, hvd_error *err) {
    struct tensor_list *lists[] = {&p->sends, &p->receives};
    for (int i = 0; i < 2; i++)
        for (struct tensor *t = lists[i]->oldest, *newer; t; t = newer) {
            newer = t->newer;
            bool given_up = atomic_load(&t->given_up), late = now - t->submitted > limit;
            if (!given_up && (limit <= 0 || !late)) continue;
            bool matched = t->request.kind == HVD_SEND && t->met > 0;
            struct stall_case c = {t->submitted, matched, is_queued(p, t), t->request.root};
            if (given_up ? !c.matched && !c.queued
                         : stall_fails(&c, now, limit, silent, p->t->at.size))
                HVD_TRY(expire(p, t, now - t->submitted, err));
        }
    return HVD_OK;
}

/* ---- receives and sends that match a failed send or receive ---- */

bool p2p_refuse_expired(struct p2p *p, const struct p2p_offer *o, int *code, hvd_error *err) {
    hvd_error late;
    if (p2p_take_failed(&p->expired, o->from, o->name) == P2P_NOBODY) return false;
    error_set(&late, HVD_STALLED,
              "tensor '%s': rank %d no longer waits for it, because rank %d sent it too late. "
              "To wait longer, use a longer timeout, or set HVDLITE_STALL_SHUTDOWN_TIME_SECONDS",
              o->name, transport_job_rank(p->t, p->t->at.rank), transport_job_rank(p->t, o->from));
    *code = p2p_refuse_offer(p, o->from, o->head.number, &late, err);
    return true;
}

void p2p_fail_withdrawn(struct p2p *p, struct tensor *tensor, int from) {
    hvd_error why;
    error_set(&why, HVD_STALLED,
              "tensor '%s': rank %d no longer sends it, because rank %d called recv too late. To "
              "wait longer, use a longer timeout, or set HVDLITE_STALL_SHUTDOWN_TIME_SECONDS",
              tensor->request.name, transport_job_rank(p->t, from),
              transport_job_rank(p->t, p->t->at.rank));
    transport_blame(p->t, p->t->at.rank, &why); /* this rank was late */
    p2p_finish(p, tensor, &why);
}

/* Frees a withdrawn offer, but keeps its name, for the receive that must fail. */
static int forget_offer(struct p2p *p, int from, uint64_t number, hvd_error *err) {
    for (struct p2p_offer **at = &p->offers, *o; (o = *at); at = &o->next) {
        if (o->from != from || o->head.number != number) continue;
        *at = o->next;
        int code = add_failed(&p->withdrawn, from, o->name, err);
        free(o);
        return code;
    }
    return HVD_OK;
}

int p2p_take_withdrawal(struct p2p *p, int from, uint64_t number, hvd_error *err) {
    struct tensor_list *lists[] = {&p->reading, &p->arriving};
    for (int i = 0; i < 2; i++)
        for (struct tensor *t = lists[i]->oldest, *newer; t; t = newer) {
            newer = t->newer;
            if (t->request.root != from || t->id != number) continue;
            tensor_list_remove(lists[i], t);
            p2p_fail_withdrawn(p, t, from);
        }
    return forget_offer(p, from, number, err);
}

/* The failure of sends and receives that nothing matches within the limit for stalls. */
#include "engine/p2p_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Remembers the failed receive, so that its offer does not match a later receive. A receive from
 * any rank has no offer of its own, so a later one may match. */
static int remember(struct p2p *p, const struct request *r, hvd_error *err) {
    struct p2p_offer **last = &p->expired, *made = malloc(sizeof *made + strlen(r->name) + 1);
    if (!made) return error_set(err, HVD_NO_MEMORY, "no memory for a receive that has failed");
    *made = (struct p2p_offer){.from = r->root, .name = made->text};
    memcpy(made->text, r->name, strlen(r->name) + 1);
    while (*last) last = &(*last)->next;
    *last = made;
    return HVD_OK;
}

static int expire(struct p2p *p, struct tensor *t, double waited, hvd_error *err) {
    bool sends = t->request.kind == HVD_SEND;
    struct p2p_head head = {.type = P2P_WITHDRAW, .number = t->id};
    if (sends) HVD_TRY(p2p_post(p, t->request.root, head, "", NULL, 0, err));
    if (!sends && t->request.root != P2P_ANY) HVD_TRY(remember(p, &t->request, err));
    p->withdrew |= sends;
    hvd_error why;
    set_stalled(p, t, waited, &why);
    tensor_list_remove(sends ? &p->sends : &p->receives, t);
    p2p_finish(p, t, &why);
    return HVD_OK;
}

static bool waits_for_silent(const struct p2p *p, int root, const bool *silent) {
    for (int r = 0; r < p->t->at.size; r++)
        if ((r == root || root == P2P_ANY) && silent[r]) return true;
    return false;
}

int p2p_expire(struct p2p *p, double now, double limit, const bool *silent, hvd_error *err) {
    struct tensor_list *lists[] = {&p->sends, &p->receives};
    for (int i = 0; i < 2; i++)
        for (struct tensor *t = lists[i]->oldest, *newer; t; t = newer) {
            double waited = now - t->submitted;
            newer = t->newer;
            bool matched = t->request.kind == HVD_SEND && t->met > 0;
            if (waited > limit && !matched && !waits_for_silent(p, t->request.root, silent))
                HVD_TRY(expire(p, t, waited, err));
        }
    return HVD_OK;
}

bool p2p_refuse_expired(struct p2p *p, const struct p2p_offer *o, int *code, hvd_error *err) {
    for (struct p2p_offer **at = &p->expired, *e; (e = *at); at = &e->next) {
        if (!p2p_is_match(e->from, e->name, o)) continue;
        hvd_error late;
        error_set(&late, HVD_STALLED,
                  "tensor '%s': rank %d no longer waits for it, because rank %d sent it too late. "
                  "To wait longer, set HVDLITE_STALL_SHUTDOWN_TIME_SECONDS",
                  o->name, transport_job_rank(p->t, p->t->at.rank),
                  transport_job_rank(p->t, o->from));
        *at = e->next;
        free(e);
        *code = p2p_refuse_offer(p, o->from, o->head.number, &late, err);
        return true;
    }
    return false;
}

void p2p_fail_withdrawn(struct p2p *p, struct tensor *tensor, int from) {
    hvd_error why;
    error_set(&why, HVD_STALLED,
              "tensor '%s': rank %d no longer sends it, because rank %d received it too late. To "
              "wait longer, set HVDLITE_STALL_SHUTDOWN_TIME_SECONDS",
              tensor->request.name, transport_job_rank(p->t, from),
              transport_job_rank(p->t, p->t->at.rank));
    transport_blame(p->t, p->t->at.rank, &why); /* this rank was late */
    p2p_finish(p, tensor, &why);
}

void p2p_take_withdrawal(struct p2p *p, int from, uint64_t number) {
    struct tensor_list *lists[] = {&p->reading, &p->arriving};
    for (int i = 0; i < 2; i++)
        for (struct tensor *t = lists[i]->oldest, *newer; t; t = newer) {
            newer = t->newer;
            if (t->request.root != from || t->id != number) continue;
            tensor_list_remove(lists[i], t);
            p2p_fail_withdrawn(p, t, from);
        }
    for (struct p2p_offer *o = p->offers; o; o = o->next)
        if (o->from == from && o->head.number == number) o->head.type = P2P_WITHDRAW;
}

#include "engine/p2p.h"

#include "base/os.h"
#include "engine/p2p_state.h"
#include "shm/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void p2p_open(struct p2p *p, struct transport *t, struct flight *flight, int group,
              struct timeline *timeline) {
    *p = (struct p2p){.t = t, .flight = flight, .group = group, .timeline = timeline};
    mutex_init(&p->mutex);
}

void p2p_free(struct p2p *p) {
    for (struct p2p_offer *o; (o = p->offers);) {
        p->offers = o->next;
        free(o);
    }
    p2p_free_failed(p->expired);
    p2p_free_failed(p->withdrawn);
    for (int r = 0; p->peers && r < p->t->at.size; r++) {
        bounce_close(&p->peers[r].to);
        bounce_close(&p->peers[r].from);
    }
    free(p->peers);
    mutex_destroy(&p->mutex);
}

bool p2p_is(const struct request *r) { return r->kind == HVD_SEND || r->kind == HVD_RECV; }

int p2p_check(const struct request *r, const hvd_topology *at, hvd_error *err) {
    struct request rest = *r;
    bool any = r->kind == HVD_RECV && r->root == P2P_ANY;
    if (any && at->size == 1)
        return error_set(err, HVD_INVALID,
                         "tensor '%s': rank %d can't receive from any rank: the process set has no "
                         "other rank",
                         r->name, at->rank);
    if (!any && (r->root < 0 || r->root >= at->size || r->root == at->rank))
        return error_set(
            err, HVD_INVALID,
            "tensor '%s': rank %d can't %s rank %d: expected another rank from 0 to %d", r->name,
            at->rank, r->kind == HVD_SEND ? "send to" : "receive from", r->root, at->size - 1);
    rest.kind = HVD_BROADCAST;
    if (any) rest.root = 0;
    return request_check(&rest, at->size, err);
}

/* ---- any thread ---- */

int p2p_submit(struct p2p *p, struct tensor *tensor, hvd_error *err) {
    mutex_lock(&p->mutex);
    int code = p->closed ? p->why.code : HVD_OK;
    if (code) *err = p->why;
    tensor->near = NULL;
    if (!code) tensor_list_add(&p->fresh, tensor, tensor);
    if (!code) atomic_fetch_add(&p->count, 1);
    mutex_unlock(&p->mutex);
    return code;
}

void p2p_refuse(struct p2p *p, const hvd_error *why) {
    mutex_lock(&p->mutex);
    if (!p->closed) p->why = *why;
    p->closed = true;
    mutex_unlock(&p->mutex);
}

/* ---- sends ---- */

static bool is_near(const struct p2p *p, int rank) {
    const struct layout *l = &p->t->layout;
    return l->host.window && l->host_of[rank] == l->host_of[p->t->at.rank];
}

static int finish_listed(struct p2p *p, struct tensor_list *list, struct tensor *tensor) {
    tensor_list_remove(list, tensor);
    p2p_finish(p, tensor, NULL);
    return HVD_OK;
}

static int send_offer(struct p2p *p, struct tensor *tensor, hvd_error *err) {
    size_t bytes = request_bytes(&tensor->request), size = bytes;
    int to = tensor->request.root;
    struct p2p_head head = {.type = P2P_OFFER, .number = ++p->number, .bytes = bytes};
    head.code = (uint32_t)tensor->request.dtype;
    struct p2p_near near = {0};
    const void *data = tensor->in;
    tensor->id = head.number;
    tensor->agreed = bytes <= P2P_SHORT ? bytes : 0;
    tensor->direct = false; /* false: the data goes in messages, not through the bounce buffer */
    tensor->met = 0;
    tensor_list_add(&p->sends, tensor, tensor);
    if (bytes > P2P_SHORT) {
        size = is_near(p, to) ? sizeof near : 0;
        data = &near;
        near.loan = loan_of(tensor->in, &p->cookie);
        if (size) bounce_make(&p->peers[to].to, near.bounce);
    }
    return p2p_post(p, to, head, tensor->request.name, data, size, err);
}

/* Fills the free slots of the bounce buffer with the tensor's next data. */
static int feed_bounce(struct p2p *p, struct tensor *tensor, hvd_error *err) {
    size_t bytes = request_bytes(&tensor->request);
    int to = tensor->request.root, slot;
    struct bounce *bounce = &p->peers[to].to;
    while (tensor->agreed < bytes && (slot = bounce_take(bounce)) >= 0) {
        size_t left = bytes - tensor->agreed, size = left < BOUNCE_SLOT ? left : BOUNCE_SLOT;
        struct p2p_head head = {.type = P2P_PIECE, .number = tensor->id, .bytes = size};
        head.code = (uint32_t)slot + 1;
        lines_copy(bounce_slot(bounce, slot), (const char *)tensor->in + tensor->agreed, size);
        tensor->agreed += size;
        HVD_TRY(p2p_post(p, to, head, "", NULL, 0, err));
    }
    return tensor->agreed < bytes ? HVD_OK : finish_listed(p, &p->sends, tensor);
}

/* Handles a P2P_FREE: the sends that use the bounce buffer go on, the oldest first. */
static int free_slot(struct p2p *p, int from, uint32_t code, hvd_error *err) {
    struct bounce *bounce = &p->peers[from].to;
    bounce->busy &= ~(1u << (code - 1));
    for (struct tensor *t = p->sends.oldest, *newer; t; t = newer) {
        newer = t->newer;
        if (t->direct && t->request.root == from) HVD_TRY(feed_bounce(p, t, err));
    }
    return HVD_OK;
}

static int send_pieces(struct p2p *p, struct tensor *tensor, uint64_t upto, hvd_error *err) {
    size_t bytes = request_bytes(&tensor->request);
    while (tensor->agreed < bytes && tensor->agreed < upto) {
        size_t left = bytes - tensor->agreed, size = left < P2P_PART ? left : P2P_PART;
        HVD_TRY(p2p_post(p, tensor->request.root,
                         (struct p2p_head){.type = P2P_PIECE, .number = tensor->id}, "",
                         (const char *)tensor->in + tensor->agreed, size, err));
        tensor->agreed += size;
    }
    return upto < bytes ? HVD_OK : finish_listed(p, &p->sends, tensor);
}

/* Answers a receiver that has read the tensor's memory: the send is still under way, so the data is
 * valid. */
static int confirm_read(struct p2p *p, struct tensor *tensor, hvd_error *err) {
    struct p2p_head head = {.type = P2P_DONE, .number = tensor->id};
    HVD_TRY(p2p_post(p, tensor->request.root, head, "", NULL, 0, err));
    return finish_listed(p, &p->sends, tensor);
}

static void fail_refused(struct p2p *p, struct tensor *tensor, int by, uint32_t code,
                         const char *text) {
    hvd_error why;
    bool known = code == HVD_RANK_LEFT || code == HVD_STALLED;
    error_set(&why, known ? (int)code : HVD_MISMATCH, "%s", text);
    /* HVD_STALLED: this rank was late, and `by` was not */
    transport_blame(p->t, code == HVD_STALLED ? p->t->at.rank : by, &why);
    tensor_list_remove(&p->sends, tensor);
    p2p_finish(p, tensor, &why);
}

/* ---- the stepping thread ---- */

static int know_peers(struct p2p *p, hvd_error *err) {
    if (p->peers) return HVD_OK;
    p->peers = calloc((size_t)p->t->at.size, sizeof *p->peers);
    p->cookie = loan_cookie();
    return p->peers ? HVD_OK : error_set(err, HVD_NO_MEMORY, "no memory for sends and receives");
}

static struct tensor_list take_fresh(struct p2p *p) {
    mutex_lock(&p->mutex);
    struct tensor_list fresh = p->fresh;
    p->fresh = (struct tensor_list){0};
    mutex_unlock(&p->mutex);
    return fresh;
}

int p2p_step(void *p2p, bool *progress, hvd_error *err) {
    struct p2p *p = p2p;
    struct tensor_list fresh = take_fresh(p);
    int code = fresh.oldest ? know_peers(p, err) : HVD_OK;
    for (struct tensor *t; !code && (t = fresh.oldest);) {
        tensor_list_remove(&fresh, t);
        *progress = true;
        t->flight = flight_add(p->flight, &t->request, t->submitted, p->group, 0);
        code = t->request.kind == HVD_SEND ? send_offer(p, t, err) : p2p_receive(p, t, err);
    }
    /* after a failure, p2p_close fails these tensors together with all of `sends` */
    if (fresh.oldest) tensor_list_add(&p->sends, fresh.oldest, fresh.newest);
    return code ? code : p2p_read(p, progress, err);
}

bool p2p_is_message(const struct message *m) { return m->size && *(uint8_t *)m->data == P2P_MARK; }

static struct tensor *find_tensor(const struct tensor_list *list, int peer, uint64_t number) {
    for (struct tensor *t = list->oldest; t; t = t->newer)
        if (t->id == number && t->request.root == peer) return t;
    return NULL;
}

static int set_damaged(const struct message *m, hvd_error *err) {
    return error_set(err, HVD_INTERNAL, "a message of %zu bytes from rank %d is damaged", m->size,
                     m->from);
}

static int take_for_tensor(struct p2p *p, const struct message *m, const struct p2p_head *head,
                           char *rest, size_t size, hvd_error *err) {
    bool is_piece = head->type == P2P_PIECE, is_done = head->type == P2P_DONE;
    const struct bounce *bounce = &p->peers[m->from].from;
    if (is_piece && head->code) { /* the data is in a slot of the bounce buffer */
        if (!bounce->memory || head->code > BOUNCE_SLOTS || head->bytes > BOUNCE_SLOT)
            return set_damaged(m, err);
        rest = bounce_slot(bounce, (int)head->code - 1);
        size = head->bytes;
    }
    struct tensor *t =
        find_tensor(is_piece || is_done ? &p->arriving : &p->sends, m->from, head->number);
    if (!t && p->withdrew && !is_piece && !is_done)
        return HVD_OK; /* the peer did not know yet that this rank has withdrawn the send */
    if (!t || is_done != !!t->near) return set_damaged(m, err);
    if (is_piece && size > request_bytes(&t->request) - t->agreed) return set_damaged(m, err);
    if (is_piece) return p2p_take_piece(p, t, rest, size, head->code, err);
    if (is_done) return finish_listed(p, &p->arriving, t);
    if (head->type != P2P_REFUSE && t->met <= 0) t->met = clock_now();
    if (head->type == P2P_READ) return t->agreed ? set_damaged(m, err) : confirm_read(p, t, err);
    if (head->type == P2P_WANT && head->code && p->peers[m->from].to.memory) {
        t->direct = true;
        return feed_bounce(p, t, err);
    }
    if (head->type == P2P_WANT) return send_pieces(p, t, head->bytes, err);
    char text[sizeof err->text];
    snprintf(text, sizeof text, "%.*s", (int)head->name, rest);
    fail_refused(p, t, m->from, head->code, text);
    return HVD_OK;
}

int p2p_take(struct p2p *p, const struct message *m, hvd_error *err) {
    struct p2p_head head;
    char *rest = (char *)m->data + sizeof head;
    if (m->size < sizeof head) return set_damaged(m, err);
    memcpy(&head, m->data, sizeof head);
    size_t size = m->size - sizeof head - head.name;
    if (head.name > m->size - sizeof head || head.type > P2P_LEFT) return set_damaged(m, err);
    HVD_TRY(know_peers(p, err));
    bool first = !p->peers[m->from].talked;
    p->peers[m->from].talked = true;
    if (p->left && first)
        HVD_TRY(p2p_post(p, m->from, (struct p2p_head){.type = P2P_LEFT}, p->reason, NULL, 0, err));
    switch (head.type) {
    case P2P_HELLO: return HVD_OK;
    case P2P_OFFER: return p2p_take_offer(p, m->from, &head, rest, size, err);
    case P2P_FREE:
        return head.code && head.code <= BOUNCE_SLOTS ? free_slot(p, m->from, head.code, err)
                                                      : set_damaged(m, err);
    case P2P_WITHDRAW: return p2p_take_withdrawal(p, m->from, head.number, err);
    case P2P_LEFT: p2p_take_left(p, m->from, rest, head.name); return HVD_OK;
    default: return take_for_tensor(p, m, &head, rest, size, err);
    }
}

bool p2p_awaits(const struct p2p *p, int rank) {
    const struct tensor_list *lists[] = {&p->sends, &p->receives, &p->reading, &p->arriving};
    for (int i = 0; i < 4; i++)
        for (struct tensor *t = lists[i]->oldest; t; t = t->newer)
            if (t->request.root == rank || t->request.root == P2P_ANY) return true;
    return false;
}

const struct tensor *p2p_oldest(const struct p2p *p) {
    const struct tensor_list *lists[] = {&p->receives, &p->reading, &p->arriving, &p->sends};
    const struct tensor *oldest = NULL;
    for (int i = 0; i < 4; i++) {
        const struct tensor *t = lists[i]->oldest;
        if (t && (!oldest || t->submitted < oldest->submitted)) oldest = t;
    }
    return oldest;
}

int p2p_leave(struct p2p *p, const char *reason, hvd_error *err) {
    bool ignored;
    if (p->left) return HVD_OK;
    HVD_TRY(p2p_step(p, &ignored, err)); /* first handles all tensors submitted so far */
    p->left = true;
    snprintf(p->reason, sizeof p->reason, "%s", reason);
    for (int r = 0; p->peers && r < p->t->at.size; r++)
        if (p->peers[r].talked)
            HVD_TRY(p2p_post(p, r, (struct p2p_head){.type = P2P_LEFT}, reason, NULL, 0, err));
    for (struct p2p_offer *o; (o = p->offers);) {
        HVD_TRY(p2p_refuse_as_left(p, o, err));
        p->offers = o->next;
        free(o);
    }
    return HVD_OK;
}

static void fail_all(struct p2p *p, struct tensor_list *list, const hvd_error *why) {
    for (struct tensor *t; (t = list->oldest);) {
        hvd_error own = *why;
        error_while(&own, "tensor '%.300s' waited", t->request.name);
        tensor_list_remove(list, t);
        p2p_finish(p, t, &own);
    }
}

void p2p_close(struct p2p *p, const hvd_error *why) {
    p2p_refuse(p, why);
    struct tensor_list fresh = take_fresh(p);
    struct tensor_list *lists[] = {&p->reading, &p->arriving, &p->receives, &p->sends, &fresh};
    for (int i = 0; i < 5; i++) fail_all(p, lists[i], why);
}

/* The receiver's side of point-to-point: a receive matches an offer, then gets the data. */
#include "base/os.h"
#include "engine/p2p_state.h"
#include "shm/window.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static void fail_left(struct p2p *p, struct tensor *tensor, int rank) {
    hvd_error left;
    error_set(&left, HVD_RANK_LEFT, "tensor '%s': rank %d, which should send it, has left: %s",
              tensor->request.name, transport_job_rank(p->t, rank), p->peers[rank].reason);
    transport_blame(p->t, rank, &left);
    p2p_finish(p, tensor, &left);
}

/* ---- receives ---- */

int p2p_refuse_as_left(struct p2p *p, const struct p2p_offer *o, hvd_error *err) {
    hvd_error left;
    error_set(&left, HVD_RANK_LEFT, "tensor '%s': rank %d, which should receive it, has left: %s",
              o->name, transport_job_rank(p->t, p->t->at.rank), p->reason);
    return p2p_refuse_offer(p, o->from, o->head.number, &left, err);
}

/* Fails a receive and an offer that differ in size or dtype. The receive must be in no list. */
static int fail_mismatch(struct p2p *p, struct tensor *tensor, const struct p2p_offer *o,
                         hvd_error *err) {
    hvd_error why;
    error_set(
        &why, HVD_MISMATCH,
        "tensor '%s': rank %d sends %" PRIu64
        " bytes of %s, and rank %d expects %zu bytes of %s: give both the same shape and dtype",
        o->name, transport_job_rank(p->t, o->from), o->head.bytes, dtype_name((int)o->head.code),
        transport_job_rank(p->t, p->t->at.rank), request_bytes(&tensor->request),
        dtype_name(tensor->request.dtype));
    transport_blame(p->t, o->from, &why);
    int code = p2p_refuse_offer(p, o->from, o->head.number, &why, err);
    p2p_finish(p, tensor, &why);
    return code;
}

/* Asks the sender for the first data. near: NULL if the sender is on another host. */
static int want_first(struct p2p *p, struct tensor *tensor, const struct p2p_near *near,
                      hvd_error *err) {
    size_t bytes = request_bytes(&tensor->request);
    int from = tensor->request.root;
    bool by_bounce = near && bounce_map(&p->peers[from].from, near->bounce);
    tensor_list_add(&p->arriving, tensor, tensor);
    return p2p_want(p, from, tensor->id, by_bounce || P2P_AHEAD > bytes ? bytes : P2P_AHEAD,
                    by_bounce, err);
}

static int start_long(struct p2p *p, struct tensor *tensor, const struct p2p_offer *o,
                      hvd_error *err) {
    if (!o->size) return want_first(p, tensor, NULL, err);
    struct p2p_near near;
    memcpy(&near, o->text + o->head.name + 1, sizeof near);
    near.bounce[SHMEM_ADDRESS - 1] = 0;
    if (o->head.bytes >= P2P_LOAN && !p->peers[o->from].unreadable)
        tensor->near = malloc(sizeof near);
    if (!tensor->near) return want_first(p, tensor, &near, err);
    *tensor->near = near;
    tensor_list_add(&p->reading, tensor, tensor);
    bool soon = p->reading.oldest == tensor && o->head.bytes <= P2P_READ_STEP;
    if (soon) return HVD_OK; /* the next step reads all and posts P2P_READ */
    /* asks for 0 bytes: tells the sender that a receive has matched the send */
    return p2p_want(p, o->from, tensor->id, 0, false, err);
}

int p2p_read(struct p2p *p, bool *progress, hvd_error *err) {
    struct tensor *t = p->reading.oldest;
    if (!t) return HVD_OK;
    size_t bytes = request_bytes(&t->request), left = bytes - t->agreed;
    size_t size = left < P2P_READ_STEP ? left : P2P_READ_STEP;
    struct p2p_near near = *t->near;
    *progress = true;
    bool *unreadable = &p->peers[t->request.root].unreadable;
    enum loan_end end = LOAN_FORBIDDEN;
    if (!*unreadable) end = loan_read(&near.loan, t->agreed, (char *)t->out + t->agreed, size);
    t->agreed += size;
    if (end == LOAN_READ && t->agreed < bytes) return HVD_OK;
    tensor_list_remove(&p->reading, t);
    if (end == LOAN_READ) {
        struct p2p_head head = {.type = P2P_READ, .number = t->id};
        tensor_list_add(&p->arriving, t, t);
        return p2p_post(p, t->request.root, head, "", NULL, 0, err);
    }
    /* asks the sender for the data; if the sender is dead, no data arrives, and the job fails */
    *unreadable |= end == LOAN_FORBIDDEN;
    free(t->near);
    t->near = NULL;
    t->agreed = 0;
    return want_first(p, t, &near, err);
}

static int accept_offer(struct p2p *p, struct tensor *tensor, const struct p2p_offer *o,
                        hvd_error *err) {
    size_t bytes = request_bytes(&tensor->request);
    tensor->request.root = o->from;
    tensor->met = clock_now();
    if (o->head.bytes != bytes || o->head.code != (uint32_t)tensor->request.dtype)
        return fail_mismatch(p, tensor, o, err);
    tensor->id = o->head.number;
    tensor->agreed = 0;
    if (bytes > P2P_SHORT && (!o->size || o->size == sizeof *tensor->near))
        return start_long(p, tensor, o, err);
    if (o->size != bytes) {
        tensor_list_add(&p->arriving, tensor, tensor); /* the error ends the job and this receive */
        return error_set(err, HVD_INTERNAL, "the message that offers '%s' is damaged", o->name);
    }
    if (bytes) memcpy(tensor->out, o->text + o->head.name + 1, bytes);
    int code = p2p_want(p, o->from, o->head.number, bytes, false, err);
    p2p_finish(p, tensor, NULL);
    return code;
}

static bool all_left(const struct p2p *p) {
    for (int r = 0; r < p->t->at.size; r++)
        if (r != p->t->at.rank && !p->peers[r].left) return false;
    return true;
}

/* Asks each possible sender to tell this rank when the sender leaves. */
static int send_hello(struct p2p *p, int from, hvd_error *err) {
    for (int r = 0; r < p->t->at.size; r++)
        if ((r == from || from == P2P_ANY) && r != p->t->at.rank && !p->peers[r].talked)
            HVD_TRY(p2p_post(p, r, (struct p2p_head){.type = P2P_HELLO}, "", NULL, 0, err));
    return HVD_OK;
}

/* If rank `from` has withdrawn a send that fits the receive, fails the receive and returns true. */
static bool fails_withdrawn(struct p2p *p, struct tensor *tensor, int from) {
    from = p2p_take_failed(&p->withdrawn, from, tensor->request.name);
    if (from != P2P_NOBODY) p2p_fail_withdrawn(p, tensor, from);
    return from != P2P_NOBODY;
}

int p2p_receive(struct p2p *p, struct tensor *tensor, hvd_error *err) {
    int from = tensor->request.root;
    for (struct p2p_offer **at = &p->offers, *o; (o = *at); at = &o->next) {
        if (!p2p_is_match(from, tensor->request.name, o)) continue;
        /* the withdrawn send is older than the offer, so it matches first */
        if (fails_withdrawn(p, tensor, o->from)) return HVD_OK;
        *at = o->next;
        int code = accept_offer(p, tensor, o, err);
        free(o);
        return code;
    }
    if (fails_withdrawn(p, tensor, from)) return HVD_OK;
    if (from == P2P_ANY ? all_left(p) : p->peers[from].left) {
        /* if all other ranks have left, the error of a receive from any rank names the lowest */
        fail_left(p, tensor, from == P2P_ANY ? p->t->at.rank == 0 : from);
        return HVD_OK;
    }
    tensor_list_add(&p->receives, tensor, tensor);
    return send_hello(p, from, err);
}

static int match_offer(struct p2p *p, struct p2p_offer *o, bool *kept, hvd_error *err) {
    struct p2p_offer **last = &p->offers;
    int code;
    if (p2p_refuse_expired(p, o, &code, err)) return code;
    for (struct tensor *t = p->receives.oldest; t; t = t->newer) {
        if (!p2p_is_match(t->request.root, t->request.name, o)) continue;
        tensor_list_remove(&p->receives, t);
        return accept_offer(p, t, o, err);
    }
    if (p->left) return p2p_refuse_as_left(p, o, err);
    while (*last) last = &(*last)->next;
    *last = o;
    *kept = true;
    return HVD_OK;
}

int p2p_take_offer(struct p2p *p, int from, const struct p2p_head *head, const char *rest,
                   size_t size, hvd_error *err) {
    bool kept = false;
    struct p2p_offer *o = malloc(sizeof *o + head->name + 1 + size);
    if (!o) return error_set(err, HVD_NO_MEMORY, "no memory for a message of %zu bytes", size);
    *o = (struct p2p_offer){.from = from, .head = *head, .size = size, .name = o->text};
    memcpy(o->text, rest, head->name);
    o->text[head->name] = 0;
    memcpy(o->text + head->name + 1, rest + head->name, size);
    int code = match_offer(p, o, &kept, err);
    if (!kept) free(o);
    return code;
}

int p2p_take_piece(struct p2p *p, struct tensor *tensor, char *data, size_t size, uint32_t code,
                   hvd_error *err) {
    size_t bytes = request_bytes(&tensor->request), before = tensor->agreed;
    int from = tensor->request.root;
    char *to = (char *)tensor->out + before;
    if (code)
        lines_copy_over(to, data, size);
    else
        memcpy(to, data, size);
    tensor->agreed += size;
    if (code) {
        struct p2p_head head = {.type = P2P_FREE, .code = code};
        HVD_TRY(p2p_post(p, from, head, "", NULL, 0, err));
    }
    if (tensor->agreed == bytes) {
        tensor_list_remove(&p->arriving, tensor);
        p2p_finish(p, tensor, NULL);
        return HVD_OK;
    }
    if (code) return HVD_OK;
    size_t step = before / P2P_STEP, wanted = step * P2P_STEP + P2P_AHEAD;
    if (tensor->agreed / P2P_STEP == step || wanted >= bytes) return HVD_OK;
    wanted += P2P_STEP;
    return p2p_want(p, from, tensor->id, wanted < bytes ? wanted : bytes, false, err);
}

void p2p_take_left(struct p2p *p, int from, const char *text, size_t size) {
    struct p2p_peer *peer = &p->peers[from];
    if (size >= sizeof peer->reason) size = sizeof peer->reason - 1;
    memcpy(peer->reason, text, size);
    peer->left = true;
    bool all = all_left(p);
    for (struct tensor *t = p->receives.oldest, *newer; t; t = newer) {
        newer = t->newer;
        if (t->request.root != from && !(all && t->request.root == P2P_ANY)) continue;
        tensor_list_remove(&p->receives, t);
        fail_left(p, t, from);
    }
}

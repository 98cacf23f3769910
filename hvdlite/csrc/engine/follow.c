/* What every rank does for the negotiation: it reports tensors and obeys decisions. */
#include "engine/negotiate.h"

#include "engine/run_log.h"
#include "negotiation/fusion.h"

#include <stdlib.h>
#include <string.h>

/* ---- this rank's reports to the coordinator ---- */

static int send_up(struct negotiation *n, struct wire_item *item, hvd_error *err) {
    item->rank = n->t->at.rank;
    return aggregate_take(&n->aggregate, item->rank, item, n->now, &n->out, err);
}

static int keep_rows(struct tensor *tensor, const int64_t *rows, size_t nrows, hvd_error *err) {
    if (!nrows) return HVD_OK;
    if (!tensor->rows) tensor->rows = malloc(nrows * sizeof *rows);
    if (!tensor->rows)
        return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", tensor->request.name);
    memcpy(tensor->rows, rows, nrows * sizeof *rows);
    return HVD_OK;
}

static int report_whole(struct negotiation *n, struct tensor *tensor, uint64_t asked,
                        uint64_t instead, hvd_error *err) {
    HVD_TRY(tensors_set_id(n->tensors, tensor, 0, err));
    struct wire_item item = {
        .type = WIRE_REQUEST, .id = asked, .instead = instead, .request = tensor->request};
    if (tensor->why) error_set(&item.error, HVD_INVALID, "%s", tensor->why);
    return send_up(n, &item, err);
}

/* Returns true if this rank must send the whole request although the request is cached, because a
 * caller has waited OFTEN times on this rank, but not on all ranks. The whole request makes the
 * coordinator find out again whether callers wait on all ranks. */
static bool asks_again(struct cache_entry *known) {
    enum { OFTEN = 16 }; /* chosen, not measured */
    bool asks = known->waited_alone >= OFTEN;
    if (asks) known->waited_alone = 0;
    return asks;
}

static int report_tensor(struct negotiation *n, struct tensor *tensor, hvd_error *err) {
    tensor->stage = TENSOR_SAID;
    struct cache_entry *known = cache_by_name(n->cache, &tensor->node);
    if (!known || !request_same(&known->request, &tensor->request) || asks_again(known))
        return report_whole(n, tensor, 0, known ? known->id : 0, err);
    HVD_TRY(tensors_set_id(n->tensors, tensor, known->id, err));
    HVD_TRY(keep_rows(tensor, known->rows, known->nrows, err));
    return send_up(n, &(struct wire_item){.type = WIRE_HIT, .id = known->id}, err);
}

static int report_join(struct negotiation *n, struct tensor *tensor, hvd_error *err) {
    HVD_TRY(fast_hosts_join(n->fast, n->now, err));
    return report_tensor(n, tensor, err);
}

static int submit_tensor(struct negotiation *n, struct tensor *tensor, hvd_error *err) {
    bool entered, again = cache_by_name(n->cache, &tensor->node);
    tensor->flight = flight_add(n->flight, &tensor->request, tensor->submitted, n->group,
                                again ? tensor->node.hash : 0);
    HVD_TRY(fast_hosts_enter(n->fast, tensor, n->now, &entered, err));
    if (entered) return HVD_OK;
    if (tensor->request.kind != HVD_JOIN) return report_tensor(n, tensor, err);
    if (!n->fast->hosts.entered) return report_join(n, tensor, err);
    n->joins = tensor;
    return HVD_OK;
}

int follow_report(struct negotiation *n, hvd_error *err) {
    for (struct tensor *tensor = tensors_take(n->tensors), *newer; tensor; tensor = newer) {
        newer = tensor->newer; /* read first, because submit_tensor may complete the tensor */
        HVD_TRY(submit_tensor(n, tensor, err));
    }
    struct tensor *joins = n->joins;
    if (!joins || n->fast->hosts.entered) return HVD_OK;
    n->joins = NULL;
    return report_join(n, joins, err);
}

int follow_round(struct negotiation *n, struct message *m, hvd_error *err) {
    struct tensor *back;
    HVD_TRY(fast_hosts_receive(n->fast, m, n->now, &back, err));
    return back ? report_tensor(n, back, err) : HVD_OK;
}

int follow_leave(struct negotiation *n, const char *reason, hvd_error *err) {
    if (n->left) return HVD_OK;
    HVD_TRY(follow_report(n, err));
    /* An unfinished fast-path round may end without a result. Then this rank must report the
     * round's tensor to the coordinator, and only then leave. */
    if (n->fast->hosts.entered) return HVD_OK;
    n->left = true;
    struct wire_item item = {.type = WIRE_LEAVE};
    error_set(&item.error, HVD_OK, "%s", reason);
    return send_up(n, &item, err);
}

/* ---- the coordinator's decisions ---- */

int follow_abort(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    n->abort_cause = item->error;
    return error_set(err, HVD_TRANSPORT, "%s", item->error.text);
}

/* Finds the item's tensor, which must be at this stage. */
static int find_tensor(struct negotiation *n, const struct wire_item *item, enum tensor_stage stage,
                       struct tensor **out, hvd_error *err) {
    *out = *item->request.name ? tensors_find(n->tensors, item->request.name)
                               : tensors_find_id(n->tensors, item->id);
    if (*out && (*out)->stage == stage) return HVD_OK;
    return error_set(err, HVD_INTERNAL, "the coordinator decided on tensor '%s' (id %llu), %s",
                     item->request.name, (unsigned long long)item->id,
                     *out ? "which waits for no decision" : "which this rank does not have");
}

static bool lists_this_rank(const struct negotiation *n, const struct wire_item *item) {
    bool ours = false;
    for (uint32_t i = 0; i < item->nrows; i++) ours |= item->rows[i] == n->t->at.rank;
    return ours;
}

static int set_contradiction(const char *name, hvd_error *err) {
    return error_set(
        err, HVD_INTERNAL,
        "tensor '%s': the coordinator's decision contradicts this rank's request: report this bug",
        name);
}

/* Notes whether the callers on all ranks wait for the tensor. */
static int note_waits(struct negotiation *n, const struct wire_item *item,
                      const struct tensor *tensor, hvd_error *err) {
    if (item->waited) return fast_path_agreed(n->fast, tensor, err);
    struct cache_entry *known = tensor->request.waited ? cache_by_id(n->cache, item->id) : NULL;
    if (known) known->waited_alone++;
    return HVD_OK;
}

static int set_agreed(struct negotiation *n, const struct wire_item *item, struct tensor *tensor,
                      hvd_error *err) {
    struct request *r = &tensor->request;
    /* if the item has the whole request, item->rows lists the ranks that have joined */
    uint32_t nrows = item->whole ? 0 : item->nrows;
    uint32_t expected = request_rows_vary(r) ? (uint32_t)n->t->at.size : r->kind == HVD_JOIN;
    if ((nrows && nrows != expected) || (item->direct && !tensor->region))
        return set_contradiction(r->name, err);
    tensor->direct = item->direct;
    tensor->uneven = item->uneven;
    HVD_TRY(keep_rows(tensor, item->rows, nrows, err));
    if (expected && !tensor->rows) return set_contradiction(r->name, err);
    if (*item->request.name && item->id)
        HVD_TRY(cache_put(n->cache, item->id, r, item->rows, nrows, err));
    if (!*item->request.name) HVD_TRY(note_waits(n, item, tensor, err));
    if (!item->direct)
        /* the coordinator does the same: fusion_fits, which compares regions, must agree with it */
        r->region = 0;
    return HVD_OK;
}

/* Finds the item's tensor, which this rank has submitted. If this rank has joined instead, makes a
 * tensor of zeros. */
static int begin_tensor(struct negotiation *n, const struct wire_item *item, struct tensor **out,
                        hvd_error *err) {
    uint32_t joined = item->whole ? item->nrows : 0, size = (uint32_t)n->t->at.size;
    if (joined >= size) return set_contradiction(item->request.name, err);
    if (item->whole && lists_this_rank(n, item)) {
        HVD_TRY(request_check(&item->request, n->t->at.size, err));
        if (!request_takes_zeros(&item->request)) return set_contradiction(item->request.name, err);
        HVD_TRY(tensors_add_zeros(n->tensors, &item->request, out, err));
    } else {
        HVD_TRY(find_tensor(n, item, TENSOR_SAID, out, err));
        HVD_TRY(set_agreed(n, item, *out, err));
    }
    if ((*out)->request.kind == HVD_JOIN) {
        aggregate_joined(&n->aggregate);
        n->fast->hosts.joined = false;
    }
    (*out)->request.contributors = (int32_t)(size - joined);
    (*out)->stage = TENSOR_AGREED;
    return HVD_OK;
}

/* Records that a part of the tensor is in a batch. The decisions on the parts arrive in order. */
static int take_piece(const struct wire_item *item, struct tensor *tensor, struct batch_piece *out,
                      hvd_error *err) {
    const struct request *r = &tensor->request;
    size_t bytes = request_bytes(r), element = dtype_size(r->dtype);
    *out = (struct batch_piece){tensor, 0, bytes};
    if (item->cut) {
        out->begin = item->begin;
        out->end = item->end;
        if (!request_can_be_cut(r) || item->begin >= item->end || item->end > bytes ||
            item->begin % element || item->end % element)
            return set_contradiction(r->name, err);
    }
    if (out->begin != tensor->agreed) return set_contradiction(r->name, err);
    tensor->agreed = out->end;
    return HVD_OK;
}

static int open_piece(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    aggregate_decided(&n->aggregate, item->id);
    struct tensor *tensor;
    struct batch_piece piece;
    bool first = !item->cut || !item->begin;
    HVD_TRY(first ? begin_tensor(n, item, &tensor, err)
                  : find_tensor(n, item, TENSOR_AGREED, &tensor, err));
    HVD_TRY(take_piece(item, tensor, &piece, err));
    const struct run_log *log = &n->run_log;
    if (log->nopen && !fusion_fits(&log->open[0].tensor->request, &tensor->request))
        return set_contradiction(tensor->request.name, err);
    return run_log_add(&n->run_log, piece, err);
}

static int resend(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    if (item->rank != n->t->at.rank) return HVD_OK;
    struct tensor *tensor;
    HVD_TRY(find_tensor(n, item, TENSOR_SAID, &tensor, err));
    return report_whole(n, tensor, item->id, 0, err);
}

static int finish_failed(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    if (!lists_this_rank(n, item)) return HVD_OK;
    struct tensor *tensor;
    HVD_TRY(find_tensor(n, item, TENSOR_SAID, &tensor, err));
    flight_ended(n->flight, tensor->flight, true, n->now);
    hvd_error why = item->error;
    transport_complete(n->t, &why);
    flight_blame(n->flight, &why);
    tensors_finish(n->tensors, tensor, &why);
    return HVD_OK;
}

int follow_decision(struct negotiation *n, int from, const struct wire_item *item, hvd_error *err) {
    switch (item->type) {
    case WIRE_TENSOR: return open_piece(n, item, err);
    case WIRE_RUN:
        HVD_TRY(run_log_append(&n->run_log, n->now, err));
        record_agreed(n->flight, n->run_log.last);
        return HVD_OK;
    case WIRE_FAIL: return finish_failed(n, item, err);
    case WIRE_RESEND: return resend(n, item, err);
    case WIRE_ABORT: return follow_abort(n, item, err);
    case WIRE_BYE:
        n->bye = true;
        atomic_store(&n->fast->shared.over, true);
        return HVD_OK;
    case WIRE_REQUEST:
    case WIRE_HIT:
    case WIRE_HITS:
    case WIRE_LEAVE: return aggregate_take(&n->aggregate, from, item, n->now, &n->out, err);
    case WIRE_ASK: return silence_answer(n, from, err);
    case WIRE_ALIVE: return HVD_OK;
    case WIRE_SILENT: silence_report(n, item->rank, item->error.text); return HVD_OK;
    default:
        return error_set(
            err, HVD_INTERNAL,
            "the coordinator (rank %d) sent a message of unknown type %d: report this bug", from,
            item->type);
    }
}

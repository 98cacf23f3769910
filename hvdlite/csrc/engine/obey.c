#include "engine/obey.h"

#include "engine/record.h"
#include "engine/say.h"
#include "engine/silence.h"
#include "negotiation/fusion.h"

#include <stdlib.h>
#include <string.h>

int negotiate_hear_abort(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    n->heard = item->error;
    return error_set(err, HVD_TRANSPORT, "%s", item->error.text);
}

/* Finds the tensor that an item names: one that this rank has told the coordinator, or one of which
 * there are batches. */
static int find(struct negotiation *n, const struct wire_item *item, enum tensor_stage stage,
                struct tensor **out, hvd_error *err) {
    *out = *item->request.name ? tensors_find(n->tensors, item->request.name)
                               : tensors_find_id(n->tensors, item->id);
    if (*out && (*out)->stage == stage) return HVD_OK;
    return error_set(err, HVD_INTERNAL, "the coordinator names tensor '%s' (id %llu), %s",
                     item->request.name, (unsigned long long)item->id,
                     *out ? "which waits for no decision" : "which this rank does not have");
}

static bool lists_this_rank(const struct negotiation *n, const struct wire_item *item) {
    bool ours = false;
    for (uint32_t i = 0; i < item->nrows; i++) ours |= item->rows[i] == n->t->at.rank;
    return ours;
}

static int contradiction(const char *name, hvd_error *err) {
    return error_set(err, HVD_INTERNAL,
                     "the coordinator's decision on tensor '%s' does not fit this rank's tensor",
                     name);
}

/* How many rows the coordinator sends for the tensor, now or with its cached id. */
static uint32_t rows_expected(const struct negotiation *n, const struct request *r) {
    if (request_rows_vary(r)) return (uint32_t)n->t->at.size;
    return r->kind == HVD_JOIN ? 1 : 0;
}

/* Adds to a submitted tensor what the ranks have agreed on. */
static int agree(struct negotiation *n, const struct wire_item *item, struct tensor *tensor,
                 hvd_error *err) {
    struct request *r = &tensor->request;
    uint32_t nrows = item->whole ? 0 : item->nrows; /* else ranks that have joined */
    uint32_t expected = rows_expected(n, r);
    if ((nrows && nrows != expected) || (item->direct && !tensor->region))
        return contradiction(r->name, err);
    tensor->direct = item->direct;
    HVD_TRY(negotiate_keep_rows(tensor, item->rows, nrows, err));
    if (expected && !tensor->rows) return contradiction(r->name, err);
    if (*item->request.name && item->id)
        HVD_TRY(cache_put(n->cache, item->id, r, item->rows, nrows, err));
    if (!item->direct) r->region = 0; /* fusion_fits compares it as the coordinator does */
    return HVD_OK;
}

static int add_zeros(struct negotiation *n, const struct wire_item *item, struct tensor **out,
                     hvd_error *err) {
    HVD_TRY(request_check(&item->request, n->t->at.size, err));
    if (!request_takes_zeros(&item->request)) return contradiction(item->request.name, err);
    return tensors_add_zeros(n->tensors, &item->request, out, err);
}

/* The tensor of the item, which this rank brings or, having joined, makes. */
static int first_piece(struct negotiation *n, const struct wire_item *item, struct tensor **out,
                       hvd_error *err) {
    uint32_t joined = item->whole ? item->nrows : 0, size = (uint32_t)n->t->at.size;
    if (joined >= size) return contradiction(item->request.name, err);
    if (item->whole && lists_this_rank(n, item)) {
        HVD_TRY(add_zeros(n, item, out, err));
    } else {
        HVD_TRY(find(n, item, TENSOR_SAID, out, err));
        HVD_TRY(agree(n, item, *out, err));
    }
    if ((*out)->request.kind == HVD_JOIN) gather_joined(&n->gather);
    (*out)->request.contributors = (int32_t)(size - joined);
    (*out)->stage = TENSOR_AGREED;
    return HVD_OK;
}

/* Takes the piece's bytes: a tensor's pieces come in order. */
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
            return contradiction(r->name, err);
    }
    if (out->begin != tensor->agreed) return contradiction(r->name, err);
    tensor->agreed = out->end;
    return HVD_OK;
}

static int open_piece(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    gather_decided(&n->gather, item->id);
    struct tensor *tensor;
    struct batch_piece piece;
    bool first = !item->cut || !item->begin;
    HVD_TRY(first ? first_piece(n, item, &tensor, err)
                  : find(n, item, TENSOR_AGREED, &tensor, err));
    HVD_TRY(take_piece(item, tensor, &piece, err));
    if (n->nopen && !fusion_fits(&n->open[0].tensor->request, &tensor->request))
        return contradiction(tensor->request.name, err);
    if (n->nopen == n->open_capacity) {
        size_t capacity = 2 * n->open_capacity + 16;
        struct batch_piece *open = realloc(n->open, capacity * sizeof *open);
        if (!open)
            return error_set(err, HVD_NO_MEMORY, "no memory for a batch of %zu tensors", capacity);
        n->open = open;
        n->open_capacity = capacity;
    }
    n->open[n->nopen++] = piece;
    return HVD_OK;
}

static int append_batch(struct negotiation *n, hvd_error *err) {
    if (!n->nopen)
        return error_set(err, HVD_INTERNAL, "the coordinator runs a batch of no tensors");
    struct batch *b = malloc(sizeof *b + n->nopen * sizeof *n->open);
    if (!b) return error_set(err, HVD_NO_MEMORY, "no memory for a batch of %zu tensors", n->nopen);
    *b = (struct batch){.n = n->nopen, .decided = n->now, .number = ++n->nbatches};
    memcpy(b->pieces, n->open, n->nopen * sizeof *n->open);
    n->nopen = 0;
    record_agreed(n, b);
    *n->last = b;
    n->last = &b->next;
    return HVD_OK;
}

static int resend(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    if (item->rank != n->t->at.rank) return HVD_OK;
    struct tensor *tensor;
    HVD_TRY(find(n, item, TENSOR_SAID, &tensor, err));
    return negotiate_say_whole(n, tensor, item->id, err);
}

static int finish_failed(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    if (!lists_this_rank(n, item)) return HVD_OK;
    struct tensor *tensor;
    HVD_TRY(find(n, item, TENSOR_SAID, &tensor, err));
    record_failed(n, tensor);
    tensors_finish(n->tensors, tensor, &item->error);
    return HVD_OK;
}

int negotiate_obey(struct negotiation *n, int from, const struct wire_item *item, hvd_error *err) {
    switch (item->type) {
    case WIRE_TENSOR: return open_piece(n, item, err);
    case WIRE_RUN: return append_batch(n, err);
    case WIRE_FAIL: return finish_failed(n, item, err);
    case WIRE_RESEND: return resend(n, item, err);
    case WIRE_ABORT: return negotiate_hear_abort(n, item, err);
    case WIRE_BYE: n->bye = true; return HVD_OK;
    case WIRE_REQUEST:
    case WIRE_HIT:
    case WIRE_HITS:
    case WIRE_LEAVE: return gather_take(&n->gather, from, item, n->now, &n->out, err);
    case WIRE_ASK: return silence_answer(n, from, err);
    case WIRE_ALIVE: return HVD_OK;
    case WIRE_SILENT: silence_report(n, item->rank, item->error.text); return HVD_OK;
    default:
        return error_set(err, HVD_INTERNAL, "the coordinator (rank %d) sent an item of type %d",
                         from, item->type);
    }
}

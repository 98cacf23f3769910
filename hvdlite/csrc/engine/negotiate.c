#include "engine/negotiate.h"

#include "base/clock.h"
#include "engine/record.h"
#include "negotiation/fusion.h"

#include <stdlib.h>
#include <string.h>

enum { COORDINATOR = 0 };

int negotiate_open(struct negotiation *n, struct transport *t, struct tensors *tensors,
                   const struct coordinator_config *config, hvd_error *err) {
    *n = (struct negotiation){
        .t = t, .tensors = tensors, .cache = cache_new(config->cache_capacity)};
    n->last = &n->first;
    bool coordinates = t->at.rank == COORDINATOR;
    if (coordinates) n->coordinator = coordinator_new(config);
    if (n->cache && (n->coordinator || !coordinates)) return HVD_OK;
    negotiate_close(n);
    return error_set(err, HVD_NO_MEMORY, "no memory for the negotiation");
}

void negotiate_close(struct negotiation *n) {
    for (struct batch *b; (b = negotiate_next_batch(n));) free(b);
    cache_free(n->cache);
    coordinator_free(n->coordinator);
    wire_free(&n->out);
    wire_free(&n->decided);
    free(n->open);
    *n = (struct negotiation){0};
}

struct batch *negotiate_next_batch(struct negotiation *n) {
    struct batch *b = n->first;
    if (!b) return NULL;
    n->first = b->next;
    if (!n->first) n->last = &n->first;
    return b;
}

void negotiate_finished(struct negotiation *n) {
    if (n->coordinator) coordinator_finished(n->coordinator, clock_now());
}

/* ---- this rank to the coordinator ---- */

/* `asked`: the id of the RESEND that this answers, else 0. */
static int say_whole(struct negotiation *n, struct tensor *tensor, uint64_t asked, hvd_error *err) {
    HVD_TRY(tensors_set_id(n->tensors, tensor, 0, err));
    struct wire_item item = {.type = WIRE_REQUEST, .id = asked, .request = tensor->request};
    return wire_put(&n->out, &item, err);
}

static int keep_rows(struct tensor *tensor, const int64_t *rows, size_t nrows, hvd_error *err) {
    if (!nrows) return HVD_OK;
    if (!tensor->rows) tensor->rows = malloc(nrows * sizeof *rows);
    if (!tensor->rows)
        return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", tensor->request.name);
    memcpy(tensor->rows, rows, nrows * sizeof *rows);
    return HVD_OK;
}

static int say_tensor(struct negotiation *n, struct tensor *tensor, hvd_error *err) {
    tensor->stage = TENSOR_SAID;
    const struct cache_entry *known = cache_by_name(n->cache, &tensor->node);
    record_said(n, tensor, known);
    if (!known || !request_same(&known->request, &tensor->request))
        return say_whole(n, tensor, 0, err);
    HVD_TRY(tensors_set_id(n->tensors, tensor, known->id, err));
    HVD_TRY(keep_rows(tensor, known->rows, known->nrows, err));
    return wire_put(&n->out, &(struct wire_item){.type = WIRE_HIT, .id = known->id}, err);
}

static int say_submitted(struct negotiation *n, hvd_error *err) {
    for (struct tensor *tensor = tensors_take(n->tensors); tensor; tensor = tensor->newer)
        HVD_TRY(say_tensor(n, tensor, err));
    return HVD_OK;
}

int negotiate_leave(struct negotiation *n, const char *reason, hvd_error *err) {
    if (n->left) return HVD_OK;
    n->left = true;
    HVD_TRY(say_submitted(n, err));
    struct wire_item item = {.type = WIRE_LEAVE};
    error_set(&item.error, HVD_OK, "%s", reason);
    return wire_put(&n->out, &item, err);
}

/* ---- the coordinator hears ---- */

static int hear_abort(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    n->heard = item->error;
    return error_set(err, HVD_TRANSPORT, "%s", item->error.text);
}

static int hear_item(struct negotiation *n, int from, const struct wire_item *item,
                     hvd_error *err) {
    switch (item->type) {
    case WIRE_REQUEST:
        return (item->id ? coordinator_resent : coordinator_request)(n->coordinator, from,
                                                                     &item->request, n->now, err);
    case WIRE_HIT: return coordinator_hit(n->coordinator, from, item->id, n->now, &n->decided, err);
    case WIRE_LEAVE: coordinator_leave(n->coordinator, from, item->error.text); return HVD_OK;
    case WIRE_ABORT: return hear_abort(n, item, err);
    default:
        return error_set(err, HVD_INTERNAL, "rank %d sent the coordinator an item of type %d", from,
                         item->type);
    }
}

/* ---- every rank obeys ---- */

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
    HVD_TRY(keep_rows(tensor, item->rows, nrows, err));
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
    return say_whole(n, tensor, item->id, err);
}

static int finish_failed(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    if (!lists_this_rank(n, item)) return HVD_OK;
    struct tensor *tensor;
    HVD_TRY(find(n, item, TENSOR_SAID, &tensor, err));
    record_failed(n, tensor);
    tensors_finish(n->tensors, tensor, &item->error);
    return HVD_OK;
}

static int obey_item(struct negotiation *n, int from, const struct wire_item *item,
                     hvd_error *err) {
    switch (item->type) {
    case WIRE_TENSOR: return open_piece(n, item, err);
    case WIRE_RUN: return append_batch(n, err);
    case WIRE_FAIL: return finish_failed(n, item, err);
    case WIRE_RESEND: return resend(n, item, err);
    case WIRE_ABORT: return hear_abort(n, item, err);
    case WIRE_BYE: n->bye = true; return HVD_OK;
    default:
        return error_set(err, HVD_INTERNAL, "the coordinator (rank %d) sent an item of type %d",
                         from, item->type);
    }
}

typedef int item_handler(struct negotiation *n, int from, const struct wire_item *item,
                         hvd_error *err);

static int handle(struct negotiation *n, int from, const void *data, size_t size,
                  item_handler *handler, hvd_error *err) {
    struct wire_reader reader;
    struct wire_item item = {.type = WIRE_RUN};
    bool more = true;
    int code = wire_open(&reader, data, size, err);
    while (!code && more) {
        code = wire_next(&reader, &item, &more, err);
        if (!code && more) code = handler(n, from, &item, err);
    }
    wire_reader_free(&reader);
    return code;
}

/* ---- the step ---- */

static int send_said(struct negotiation *n, bool *progress, hvd_error *err) {
    if (!n->out.size) return HVD_OK;
    *progress = true;
    int code = n->coordinator ? handle(n, COORDINATOR, n->out.data, n->out.size, hear_item, err)
                              : transport_send(n->t, COORDINATOR, n->out.data, n->out.size, err);
    wire_reset(&n->out);
    return code;
}

static int hear_all(struct negotiation *n, bool *progress, hvd_error *err) {
    for (;;) {
        struct message m;
        HVD_TRY(transport_receive(n->t, &m, err));
        if (!m.data) return HVD_OK;
        *progress = true;
        int code = handle(n, m.from, m.data, m.size, n->coordinator ? hear_item : obey_item, err);
        free(m.data);
        if (code) return code;
    }
}

static int tell_all(struct negotiation *n, const struct wire_writer *message, hvd_error *err) {
    for (int i = 0; i < n->t->at.size; i++)
        if (i != n->t->at.rank) HVD_TRY(transport_send(n->t, i, message->data, message->size, err));
    return HVD_OK;
}

static int decide(struct negotiation *n, bool *progress, hvd_error *err) {
    HVD_TRY(coordinator_decide(n->coordinator, n->now, &n->decided, err));
    if (!n->decided.size) return HVD_OK;
    *progress = true;
    int code = tell_all(n, &n->decided, err);
    if (!code) code = handle(n, COORDINATOR, n->decided.data, n->decided.size, obey_item, err);
    wire_reset(&n->decided);
    return code;
}

int negotiate_step(struct negotiation *n, bool *progress, hvd_error *err) {
    HVD_TRY(say_submitted(n, err));
    n->now = clock_now(); /* after every submission so far */
    HVD_TRY(send_said(n, progress, err));
    HVD_TRY(hear_all(n, progress, err));
    return n->coordinator ? decide(n, progress, err) : HVD_OK;
}

/* As far as it goes: a dead rank must not keep the others from hearing it. */
static void tell_abort(struct negotiation *n, const struct wire_writer *message) {
    bool all = n->coordinator || transport_is_dead(n->t, COORDINATOR);
    hvd_error ignored;
    for (int i = 0; i < n->t->at.size; i++)
        if (i != n->t->at.rank && (all || i == COORDINATOR) && !transport_is_dead(n->t, i))
            transport_send(n->t, i, message->data, message->size, &ignored);
}

void negotiate_abort(struct negotiation *n, const hvd_error *why) {
    if (n->said_abort || (n->heard.code && !n->coordinator)) return;
    n->said_abort = true;
    struct wire_writer message = {0};
    hvd_error ignored; /* the job is over: a rank that can't be told learns it from the launcher */
    if (!wire_put(&message, &(struct wire_item){.type = WIRE_ABORT, .error = *why}, &ignored))
        tell_abort(n, &message);
    wire_free(&message);
}

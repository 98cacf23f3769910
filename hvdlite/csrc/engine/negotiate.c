#include "engine/negotiate.h"

#include "base/os.h"
#include "collectives/coll.h"

#include <stdlib.h>

int negotiate_open(struct negotiation *n, struct transport *t, struct tensors *tensors,
                   const struct coordinator_config *config, const struct log *log, hvd_error *err) {
    *n = (struct negotiation){
        .t = t, .tensors = tensors, .log = log, .cache = cache_new(config->options.cache_capacity)};
    bool coordinates = t->at.rank == COORDINATOR;
    int code = watch_open(&n->watch, t->at.size, err);
    if (!code) code = tree_open(&n->tree, t->at.rank, t->at.size, t->layout.host_of, err);
    if (!code) aggregate_open(&n->aggregate, &n->tree);
    if (coordinates && !code) n->coordinator = coordinator_new(config);
    if (!code && n->cache && (n->coordinator || !coordinates)) {
        silence_limits(n, &config->options);
        return HVD_OK;
    }
    negotiate_close(n);
    return error_set(err, HVD_NO_MEMORY, "no memory for the negotiation");
}

void negotiate_close(struct negotiation *n) {
    run_log_free(&n->run_log);
    cache_free(n->cache);
    coordinator_free(n->coordinator);
    watch_close(&n->watch);
    aggregate_close(&n->aggregate);
    tree_close(&n->tree);
    wire_free(&n->out);
    wire_free(&n->decided);
    *n = (struct negotiation){0};
}

/* ---- for the coordinator ---- */

/* The order of additions determines the bits of a sum. Timing decides which tensors share a batch
 * and where a tensor is cut. This function limits both, so that the order is always the same. */
void coordinate_in_order(struct coordinator_config *c, const struct comm *all) {
    /* fixed, because the length that ahead.c computes depends on timing; chosen, not measured */
    enum { PIECE = 4 << 20 };
    size_t alike = coll_alike(all);
    if (alike == SIZE_MAX) return;
    if (c->options.fusion_bytes > alike) c->options.fusion_bytes = alike;
    c->piece_bytes = PIECE;
}

static int take_hits(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    const int *ranks = n->tree.ranks + n->tree.at[item->rank];
    int many = item->type == WIRE_HITS ? n->tree.many[item->rank] : 1;
    for (int i = 0; i < many; i++)
        HVD_TRY(coordinator_hit(n->coordinator, ranks[i], item->id, n->now, &n->decided, err));
    return HVD_OK;
}

static int take_request(struct negotiation *n, const struct wire_item *item, hvd_error *err) {
    struct coordinator *c = n->coordinator;
    if (item->id) return coordinator_resent(c, item->rank, &item->request, n->now, err);
    const char *why = item->request.failed ? item->error.text : "";
    return coordinator_request(c, item->rank, &item->request, why, n->now, err);
}

static int take_report(struct negotiation *n, int from, const struct wire_item *item,
                       hvd_error *err) {
    HVD_TRY(tree_check(&n->tree, from, item->rank, err));
    if (item->type == WIRE_REQUEST) return take_request(n, item, err);
    if (item->type != WIRE_LEAVE) return take_hits(n, item, err);
    coordinator_leave(n->coordinator, item->rank, item->error.text);
    return HVD_OK;
}

static int coordinate_item(struct negotiation *n, int from, const struct wire_item *item,
                           hvd_error *err) {
    switch (item->type) {
    case WIRE_REQUEST:
    case WIRE_HIT:
    case WIRE_HITS:
    case WIRE_LEAVE: return take_report(n, from, item, err);
    case WIRE_ABORT: return follow_abort(n, item, err);
    case WIRE_ASK: return silence_answer(n, from, err);
    case WIRE_ALIVE: return HVD_OK;
    default:
        return error_set(
            err, HVD_INTERNAL,
            "rank %d sent the coordinator a message of unknown type %d: report this bug", from,
            item->type);
    }
}

typedef int item_handler(struct negotiation *n, int from, const struct wire_item *item,
                         hvd_error *err);

static int handle_items(struct negotiation *n, int from, const void *data, size_t size,
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

static int send_up_report(struct negotiation *n, bool *progress, hvd_error *err) {
    if (!n->out.size) return HVD_OK;
    *progress = true;
    int parent = n->tree.parents[n->t->at.rank];
    int code = n->coordinator
                   ? handle_items(n, COORDINATOR, n->out.data, n->out.size, coordinate_item, err)
                   : transport_send(n->t, parent, n->out.data, n->out.size, err);
    wire_reset(&n->out);
    return code;
}

static int forward_decision(struct negotiation *n, const void *data, size_t size, hvd_error *err) {
    for (int i = 0; i < n->tree.nchildren; i++)
        HVD_TRY(transport_send(n->t, n->tree.children[i], data, size, err));
    return HVD_OK;
}

/* Handles a message. Forwards it first, because other ranks also wait for it. */
static int take_message(struct negotiation *n, struct message *m, hvd_error *err) {
    if (fast_hosts_is_message(m)) return follow_round(n, m, err);
    if (p2p_is_message(m)) return p2p_take(n->p2p, m, err);
    if (n->coordinator) return handle_items(n, m->from, m->data, m->size, coordinate_item, err);
    if (wire_spreads(m->data, m->size)) HVD_TRY(forward_decision(n, m->data, m->size, err));
    return handle_items(n, m->from, m->data, m->size, follow_decision, err);
}

static int take_messages(struct negotiation *n, bool *progress, hvd_error *err) {
    for (;;) {
        struct message m;
        HVD_TRY(transport_receive(n->t, &m, err));
        if (!m.data) return HVD_OK;
        *progress = true;
        watch_heard(&n->watch, m.from);
        int code = take_message(n, &m, err);
        free(m.data);
        if (code) return code;
    }
}

static int decide(struct negotiation *n, bool *progress, hvd_error *err) {
    HVD_TRY(coordinator_decide(n->coordinator, n->now, n->watch.silent, &n->decided, err));
    if (!n->decided.size) return HVD_OK;
    *progress = true;
    int code = forward_decision(n, n->decided.data, n->decided.size, err);
    if (!code)
        code = handle_items(n, COORDINATOR, n->decided.data, n->decided.size, follow_decision, err);
    wire_reset(&n->decided);
    return code;
}

int negotiate_step(struct negotiation *n, bool *progress, hvd_error *err) {
    n->now = clock_now();
    HVD_TRY(follow_report(n, err));
    HVD_TRY(p2p_step(n->p2p, progress, err));
    n->now = clock_now(); /* read again, so that no submission so far is later than n->now */
    HVD_TRY(take_messages(n, progress, err));
    HVD_TRY(fast_hosts_ask(n->fast, n->now, err));
    HVD_TRY(aggregate_late(&n->aggregate, n->now, &n->out, err));
    HVD_TRY(send_up_report(n, progress, err));
    HVD_TRY(silence_look(n, err));
    return n->coordinator ? decide(n, progress, err) : HVD_OK;
}

/* Ignores errors, because the message must reach the other ranks even if one rank is dead. */
static void send_abort(struct negotiation *n, const struct wire_writer *message) {
    bool silent = n->lost.code && n->lost_rank == COORDINATOR;
    bool all = n->coordinator || silent || transport_is_dead(n->t, COORDINATOR);
    hvd_error ignored;
    for (int i = 0; i < n->t->at.size; i++)
        if (i != n->t->at.rank && (all || i == COORDINATOR) && !transport_is_dead(n->t, i))
            transport_send(n->t, i, message->data, message->size, &ignored);
}

void negotiate_abort(struct negotiation *n, const hvd_error *why) {
    if (n->sent_abort || (n->abort_cause.code && !n->coordinator)) return;
    n->sent_abort = true;
    struct wire_writer message = {0};
    hvd_error ignored; /* the launcher ends all ranks that the message does not reach */
    if (!wire_put(&message, &(struct wire_item){.type = WIRE_ABORT, .error = *why}, &ignored))
        send_abort(n, &message);
    wire_free(&message);
}

#include "engine/coordinate.h"

#include "collectives/coll.h"
#include "engine/follow.h"
#include "engine/silence.h"

/* The bits of a sum depend on the order of addition. So what shares a batch must not change it, nor
 * where a tensor is cut, both of which depend on the time. */
void coordinate_in_order(struct coordinator_config *c, const struct comm *all) {
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
    return coordinator_refused(c, item->rank, &item->request, why, n->now, err);
}

static int take_report(struct negotiation *n, int from, const struct wire_item *item,
                       hvd_error *err) {
    HVD_TRY(tree_check(&n->tree, from, item->rank, err));
    if (item->type == WIRE_REQUEST) return take_request(n, item, err);
    if (item->type != WIRE_LEAVE) return take_hits(n, item, err);
    coordinator_leave(n->coordinator, item->rank, item->error.text);
    return HVD_OK;
}

int coordinate_item(struct negotiation *n, int from, const struct wire_item *item, hvd_error *err) {
    switch (item->type) {
    case WIRE_REQUEST:
    case WIRE_HIT:
    case WIRE_HITS:
    case WIRE_LEAVE: return take_report(n, from, item, err);
    case WIRE_ABORT: return follow_abort(n, item, err);
    case WIRE_ASK: return silence_answer(n, from, err);
    case WIRE_ALIVE: return HVD_OK;
    default:
        return error_set(err, HVD_INTERNAL, "rank %d sent the coordinator an item of type %d", from,
                         item->type);
    }
}

#include "engine/say.h"

#include "engine/record.h"

#include <stdlib.h>
#include <string.h>

static int say(struct negotiation *n, struct wire_item *item, hvd_error *err) {
    item->rank = n->t->at.rank;
    return gather_take(&n->gather, item->rank, item, n->now, &n->out, err);
}

static int say_whole(struct negotiation *n, struct tensor *tensor, uint64_t asked, uint64_t instead,
                     hvd_error *err) {
    HVD_TRY(tensors_set_id(n->tensors, tensor, 0, err));
    struct wire_item item = {
        .type = WIRE_REQUEST, .id = asked, .instead = instead, .request = tensor->request};
    return say(n, &item, err);
}

int negotiate_say_whole(struct negotiation *n, struct tensor *tensor, uint64_t asked,
                        hvd_error *err) {
    return say_whole(n, tensor, asked, 0, err);
}

int negotiate_keep_rows(struct tensor *tensor, const int64_t *rows, size_t nrows, hvd_error *err) {
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
        return say_whole(n, tensor, 0, known ? known->id : 0, err);
    HVD_TRY(tensors_set_id(n->tensors, tensor, known->id, err));
    HVD_TRY(negotiate_keep_rows(tensor, known->rows, known->nrows, err));
    return say(n, &(struct wire_item){.type = WIRE_HIT, .id = known->id}, err);
}

int negotiate_say_submitted(struct negotiation *n, hvd_error *err) {
    for (struct tensor *tensor = tensors_take(n->tensors); tensor; tensor = tensor->newer)
        HVD_TRY(say_tensor(n, tensor, err));
    return HVD_OK;
}

int negotiate_leave(struct negotiation *n, const char *reason, hvd_error *err) {
    if (n->left) return HVD_OK;
    n->left = true;
    HVD_TRY(negotiate_say_submitted(n, err));
    struct wire_item item = {.type = WIRE_LEAVE};
    error_set(&item.error, HVD_OK, "%s", reason);
    return say(n, &item, err);
}

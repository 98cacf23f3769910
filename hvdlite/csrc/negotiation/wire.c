#include "negotiation/wire.h"

#include <stdlib.h>
#include <string.h>

enum { WIRE_VERSION = 12 };

/* Of a TENSOR. */
enum { DIRECT = 1, WHOLE = 2, CUT = 4, UNEVEN = 8, WAITED = 16 };

/* ---- writing ---- */

static int reserve(struct wire_writer *w, size_t more, hvd_error *err) {
    if (w->size + more <= w->capacity) return HVD_OK;
    size_t capacity = 2 * (w->size + more) + 256;
    uint8_t *data = realloc(w->data, capacity);
    if (!data)
        return error_set(err, HVD_NO_MEMORY, "no memory for a message of %zu bytes", capacity);
    w->data = data;
    w->capacity = capacity;
    return HVD_OK;
}

/* The caller has reserved the room. */
static void put_uint(struct wire_writer *w, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) w->data[w->size++] = (uint8_t)(value >> (8 * i));
}

static void put_double(struct wire_writer *w, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_uint(w, bits, 8);
}

static void put_text(struct wire_writer *w, const char *text) {
    size_t length = strlen(text);
    put_uint(w, length, 2);
    memcpy(w->data + w->size, text, length);
    w->size += length;
}

static void put_request(struct wire_writer *w, const struct request *r) {
    put_text(w, r->name);
    put_uint(w, (uint64_t)r->kind, 1);
    put_uint(w, (uint64_t)r->dtype, 1);
    put_uint(w, (uint64_t)r->op, 1);
    put_uint(w, (uint64_t)r->ndim, 1);
    put_uint(w, r->failed, 1);
    put_uint(w, r->uneven, 1);
    put_uint(w, r->waited, 1);
    put_uint(w, (uint32_t)r->root, 4);
    put_uint(w, (uint32_t)r->priority, 4);
    put_uint(w, (uint32_t)r->grouped, 4);
    put_uint(w, (uint32_t)r->region, 4);
    put_uint(w, (uint64_t)r->offset, 8);
    put_double(w, r->prescale);
    put_double(w, r->postscale);
    put_uint(w, (uint64_t)r->codec.kind, 1);
    put_double(w, r->codec.parameter);
    put_uint(w, (uint64_t)r->rule, 1);
    for (int i = 0; i < r->ndim; i++) put_uint(w, (uint64_t)r->dims[i], 8);
}

static void put_rows(struct wire_writer *w, const struct wire_item *item) {
    put_uint(w, item->nrows, 4);
    for (uint32_t i = 0; i < item->nrows; i++) put_uint(w, (uint64_t)item->rows[i], 8);
}

static void put_tensor(struct wire_writer *w, const struct wire_item *item) {
    put_uint(w, item->id, 8);
    unsigned flags = (item->direct ? DIRECT : 0u) | (item->whole ? WHOLE : 0u) |
                     (item->cut ? CUT : 0u) | (item->uneven ? UNEVEN : 0u) |
                     (item->waited ? WAITED : 0u);
    put_uint(w, flags, 1);
    if (item->cut) {
        put_uint(w, item->begin, 8);
        put_uint(w, item->end, 8);
    }
    if (item->whole)
        put_request(w, &item->request);
    else
        put_text(w, item->request.name);
    put_rows(w, item);
}

static void put_error(struct wire_writer *w, const hvd_error *error) {
    put_uint(w, (uint64_t)error->code, 1);
    put_uint(w, (uint64_t)error->nblamed, 4);
    for (int i = 0; i < error_nlisted(error); i++) put_uint(w, (uint32_t)error->blamed[i], 4);
    put_uint(w, (uint64_t)error->pid, 8);
    put_text(w, error->host);
    put_text(w, error->text);
}

int wire_put(struct wire_writer *w, const struct wire_item *item, hvd_error *err) {
    size_t most = 64 + sizeof item->request + sizeof item->error + 8 * (size_t)item->nrows;
    HVD_TRY(reserve(w, most, err));
    if (w->size == 0) put_uint(w, WIRE_VERSION, 1);
    put_uint(w, item->type, 1);
    switch (item->type) {
    case WIRE_REQUEST:
        put_uint(w, (uint32_t)item->rank, 4);
        put_uint(w, item->id, 8);
        put_uint(w, item->instead, 8);
        put_request(w, &item->request);
        if (item->request.failed) put_text(w, item->error.text);
        break;
    case WIRE_LEAVE:
    case WIRE_SILENT:
        put_uint(w, (uint32_t)item->rank, 4);
        put_text(w, item->error.text);
        break;
    case WIRE_ABORT: put_error(w, &item->error); break;
    case WIRE_TENSOR: put_tensor(w, item); break;
    case WIRE_FAIL:
        put_text(w, item->request.name);
        put_rows(w, item);
        put_error(w, &item->error);
        break;
    case WIRE_HIT:
    case WIRE_HITS:
    case WIRE_RESEND:
        put_uint(w, (uint32_t)item->rank, 4);
        put_uint(w, item->id, 8);
        break;
    case WIRE_RUN:
    case WIRE_BYE:
    case WIRE_ASK:
    case WIRE_ALIVE: break;
    }
    return HVD_OK;
}

void wire_reset(struct wire_writer *w) { w->size = 0; }

void wire_free(struct wire_writer *w) {
    free(w->data);
    *w = (struct wire_writer){0};
}

/* ---- reading ---- */

static int damaged(const struct wire_reader *r, hvd_error *err) {
    return error_set(err, HVD_INTERNAL, "a negotiation message of %zu bytes is damaged at byte %zu",
                     r->size, r->at);
}

static int get_uint(struct wire_reader *r, int bytes, uint64_t *value, hvd_error *err) {
    *value = 0;
    if (r->size - r->at < (size_t)bytes) return damaged(r, err);
    for (int i = 0; i < bytes; i++) *value |= (uint64_t)r->data[r->at++] << (8 * i);
    return HVD_OK;
}

static int get_int(struct wire_reader *r, int bytes, int32_t *value, hvd_error *err) {
    uint64_t bits;
    HVD_TRY(get_uint(r, bytes, &bits, err));
    *value = (int32_t)(uint32_t)bits;
    return HVD_OK;
}

static int get_double(struct wire_reader *r, double *value, hvd_error *err) {
    uint64_t bits;
    HVD_TRY(get_uint(r, 8, &bits, err));
    memcpy(value, &bits, sizeof bits);
    return HVD_OK;
}

static int get_text(struct wire_reader *r, char *text, size_t size, hvd_error *err) {
    uint64_t length;
    HVD_TRY(get_uint(r, 2, &length, err));
    if (length >= size || length > r->size - r->at) return damaged(r, err);
    memcpy(text, r->data + r->at, length);
    text[length] = 0;
    r->at += length;
    return HVD_OK;
}

static int get_request(struct wire_reader *r, struct request *q, hvd_error *err) {
    uint64_t dim, offset, failed, uneven, waited;
    HVD_TRY(get_text(r, q->name, sizeof q->name, err));
    HVD_TRY(get_int(r, 1, &q->kind, err));
    HVD_TRY(get_int(r, 1, &q->dtype, err));
    HVD_TRY(get_int(r, 1, &q->op, err));
    HVD_TRY(get_int(r, 1, &q->ndim, err));
    HVD_TRY(get_uint(r, 1, &failed, err));
    q->failed = failed != 0;
    HVD_TRY(get_uint(r, 1, &uneven, err));
    q->uneven = uneven != 0;
    HVD_TRY(get_uint(r, 1, &waited, err));
    q->waited = waited != 0;
    HVD_TRY(get_int(r, 4, &q->root, err));
    HVD_TRY(get_int(r, 4, &q->priority, err));
    HVD_TRY(get_int(r, 4, &q->grouped, err));
    HVD_TRY(get_int(r, 4, &q->region, err));
    HVD_TRY(get_uint(r, 8, &offset, err));
    q->offset = (int64_t)offset;
    HVD_TRY(get_double(r, &q->prescale, err));
    HVD_TRY(get_double(r, &q->postscale, err));
    HVD_TRY(get_int(r, 1, &q->codec.kind, err));
    HVD_TRY(get_double(r, &q->codec.parameter, err));
    HVD_TRY(get_int(r, 1, &q->rule, err));
    if (q->ndim > HVD_MAX_DIMS) return damaged(r, err);
    for (int i = 0; i < q->ndim; i++) {
        HVD_TRY(get_uint(r, 8, &dim, err));
        q->dims[i] = (int64_t)dim;
    }
    return HVD_OK;
}

static int get_rows(struct wire_reader *r, struct wire_item *item, hvd_error *err) {
    uint64_t nrows, row;
    HVD_TRY(get_uint(r, 4, &nrows, err));
    if (nrows > (r->size - r->at) / 8) return damaged(r, err);
    if (nrows > r->rows_capacity) {
        int64_t *rows = realloc(r->rows, nrows * sizeof *rows);
        if (!rows)
            return error_set(err, HVD_NO_MEMORY, "no memory for the rows of %zu ranks",
                             (size_t)nrows);
        r->rows = rows;
        r->rows_capacity = nrows;
    }
    for (size_t i = 0; i < nrows; i++) {
        HVD_TRY(get_uint(r, 8, &row, err));
        r->rows[i] = (int64_t)row;
    }
    item->nrows = (uint32_t)nrows;
    item->rows = r->rows;
    return HVD_OK;
}

static int get_tensor(struct wire_reader *r, struct wire_item *item, hvd_error *err) {
    uint64_t flags;
    HVD_TRY(get_uint(r, 8, &item->id, err));
    HVD_TRY(get_uint(r, 1, &flags, err));
    if (flags > (DIRECT | WHOLE | CUT | UNEVEN | WAITED)) return damaged(r, err);
    item->direct = flags & DIRECT;
    item->whole = flags & WHOLE;
    item->cut = flags & CUT;
    item->uneven = flags & UNEVEN;
    item->waited = flags & WAITED;
    if (item->cut) {
        HVD_TRY(get_uint(r, 8, &item->begin, err));
        HVD_TRY(get_uint(r, 8, &item->end, err));
    }
    HVD_TRY(item->whole ? get_request(r, &item->request, err)
                        : get_text(r, item->request.name, sizeof item->request.name, err));
    return get_rows(r, item, err);
}

static int get_error(struct wire_reader *r, hvd_error *error, hvd_error *err) {
    uint64_t pid;
    error->tensor[0] = 0;
    HVD_TRY(get_int(r, 1, &error->code, err));
    if (error->code <= HVD_OK || error->code > HVD_INTERNAL) return damaged(r, err);
    HVD_TRY(get_int(r, 4, &error->nblamed, err));
    if (error->nblamed < 0) return damaged(r, err);
    for (int i = 0; i < error_nlisted(error); i++) HVD_TRY(get_int(r, 4, &error->blamed[i], err));
    HVD_TRY(get_uint(r, 8, &pid, err));
    error->pid = (int64_t)pid;
    HVD_TRY(get_text(r, error->host, sizeof error->host, err));
    return get_text(r, error->text, sizeof error->text, err);
}

bool wire_spreads(const void *data, size_t size) {
    const uint8_t *bytes = data;
    if (size < 2) return false;
    switch ((enum wire_type)bytes[1]) { /* of the first item, behind the version */
    case WIRE_TENSOR:
    case WIRE_RUN:
    case WIRE_FAIL:
    case WIRE_RESEND:
    case WIRE_BYE: return true;
    default: return false;
    }
}

int wire_open(struct wire_reader *r, const void *data, size_t size, hvd_error *err) {
    *r = (struct wire_reader){.data = data, .size = size};
    uint64_t version;
    HVD_TRY(get_uint(r, 1, &version, err));
    if (version != WIRE_VERSION)
        return error_set(err, HVD_INTERNAL,
                         "another rank sent a message of version %d, this rank's hvdlite reads "
                         "version %d: install "
                         "the same hvdlite on every host",
                         (int)version, WIRE_VERSION);
    return HVD_OK;
}

int wire_next(struct wire_reader *r, struct wire_item *item, bool *more, hvd_error *err) {
    *more = r->at < r->size;
    if (!*more) return HVD_OK;
    uint64_t type;
    HVD_TRY(get_uint(r, 1, &type, err));
    item->type = (enum wire_type)type;
    item->request.name[0] = 0; /* not the previous item's */
    switch (item->type) {
    case WIRE_REQUEST:
        HVD_TRY(get_int(r, 4, &item->rank, err));
        HVD_TRY(get_uint(r, 8, &item->id, err));
        HVD_TRY(get_uint(r, 8, &item->instead, err));
        HVD_TRY(get_request(r, &item->request, err));
        if (!item->request.failed) return HVD_OK;
        return get_text(r, item->error.text, sizeof item->error.text, err);
    case WIRE_LEAVE:
    case WIRE_SILENT:
        HVD_TRY(get_int(r, 4, &item->rank, err));
        return get_text(r, item->error.text, sizeof item->error.text, err);
    case WIRE_ABORT: return get_error(r, &item->error, err);
    case WIRE_TENSOR: return get_tensor(r, item, err);
    case WIRE_FAIL:
        HVD_TRY(get_text(r, item->request.name, sizeof item->request.name, err));
        HVD_TRY(get_rows(r, item, err));
        return get_error(r, &item->error, err);
    case WIRE_HIT:
    case WIRE_HITS:
    case WIRE_RESEND:
        HVD_TRY(get_int(r, 4, &item->rank, err));
        return get_uint(r, 8, &item->id, err);
    case WIRE_RUN:
    case WIRE_BYE:
    case WIRE_ASK:
    case WIRE_ALIVE: return HVD_OK;
    }
    r->at--;
    return damaged(r, err);
}

void wire_reader_free(struct wire_reader *r) { free(r->rows); }

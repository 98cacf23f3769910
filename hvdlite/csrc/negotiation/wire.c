#include "negotiation/wire.h"

#include <stdlib.h>
#include <string.h>

enum { WIRE_VERSION = 15 };

/* A message that is being written or read. Depending on the stream, each pass_* function writes or
 * reads its value, so both directions have the same fields in the same order. Writing does not
 * change the value. */
struct stream {
    struct wire_writer *to;   /* destination of items; NULL: the message is read */
    struct wire_reader *from; /* source of items; NULL: the message is written */
    hvd_error *err;
};

/* Always inlined, so that the compiler makes separate code for writing and for reading. */
#define BOTH static inline __attribute__((always_inline))

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

static int set_damaged(const struct wire_reader *r, hvd_error *err) {
    return error_set(err, HVD_INTERNAL, "a negotiation message of %zu bytes is damaged at byte %zu",
                     r->size, r->at);
}

BOTH int pass_bits(struct stream *s, uint64_t *value, int bytes) {
    struct wire_reader *r = s->from;
    if (s->to) {
        uint8_t *to = s->to->data + s->to->size;
        for (int i = 0; i < bytes; i++) to[i] = (uint8_t)(*value >> (8 * i));
        s->to->size += (size_t)bytes;
        return HVD_OK;
    }
    if (r->size - r->at < (size_t)bytes) return set_damaged(r, s->err);
    const uint8_t *from = r->data + r->at;
    *value = 0;
    for (int i = 0; i < bytes; i++) *value |= (uint64_t)from[i] << (8 * i);
    r->at += (size_t)bytes;
    return HVD_OK;
}

BOTH int pass_int(struct stream *s, int32_t *value, int bytes) {
    uint64_t bits = s->to ? (uint32_t)*value : 0;
    HVD_TRY(pass_bits(s, &bits, bytes));
    if (s->from) *value = (int32_t)(uint32_t)bits;
    return HVD_OK;
}

BOTH int pass_long(struct stream *s, int64_t *value) {
    uint64_t bits = s->to ? (uint64_t)*value : 0;
    HVD_TRY(pass_bits(s, &bits, 8));
    if (s->from) *value = (int64_t)bits;
    return HVD_OK;
}

BOTH int pass_bool(struct stream *s, bool *value) {
    uint64_t bits = s->to && *value;
    HVD_TRY(pass_bits(s, &bits, 1));
    if (s->from) *value = bits != 0;
    return HVD_OK;
}

BOTH int pass_double(struct stream *s, double *value) {
    uint64_t bits = 0;
    if (s->to) memcpy(&bits, value, sizeof bits);
    HVD_TRY(pass_bits(s, &bits, 8));
    if (s->from) memcpy(value, &bits, sizeof bits);
    return HVD_OK;
}

BOTH int pass_text(struct stream *s, char *text, size_t size) {
    struct wire_reader *r = s->from;
    uint64_t length = s->to ? strlen(text) : 0;
    HVD_TRY(pass_bits(s, &length, 2));
    if (s->to) {
        memcpy(s->to->data + s->to->size, text, length);
        s->to->size += length;
        return HVD_OK;
    }
    if (length >= size || length > r->size - r->at) return set_damaged(r, s->err);
    memcpy(text, r->data + r->at, length);
    text[length] = 0;
    r->at += length;
    return HVD_OK;
}

BOTH int pass_request(struct stream *s, struct request *q) {
    HVD_TRY(pass_text(s, q->name, sizeof q->name));
    HVD_TRY(pass_text(s, q->call, sizeof q->call));
    HVD_TRY(pass_int(s, &q->kind, 1));
    HVD_TRY(pass_int(s, &q->dtype, 1));
    HVD_TRY(pass_int(s, &q->op, 1));
    HVD_TRY(pass_int(s, &q->ndim, 1));
    HVD_TRY(pass_int(s, &q->delegated, 1));
    HVD_TRY(pass_int(s, &q->failed, 1));
    HVD_TRY(pass_bool(s, &q->uneven));
    HVD_TRY(pass_bool(s, &q->waited));
    HVD_TRY(pass_bool(s, &q->last));
    HVD_TRY(pass_int(s, &q->root, 4));
    HVD_TRY(pass_int(s, &q->priority, 4));
    HVD_TRY(pass_int(s, &q->grouped, 4));
    HVD_TRY(pass_int(s, &q->states, 4));
    HVD_TRY(pass_int(s, &q->region, 4));
    HVD_TRY(pass_long(s, &q->offset));
    HVD_TRY(pass_double(s, &q->prescale));
    HVD_TRY(pass_double(s, &q->postscale));
    HVD_TRY(pass_int(s, &q->codec.kind, 1));
    HVD_TRY(pass_double(s, &q->codec.parameter));
    HVD_TRY(pass_int(s, &q->rule, 1));
    if (s->from && q->ndim > HVD_MAX_DIMS) return set_damaged(s->from, s->err);
    for (int i = 0; i < q->ndim; i++) HVD_TRY(pass_long(s, &q->dims[i]));
    return HVD_OK;
}

/* Makes room for the rows that will be read. */
static int make_rows(struct wire_reader *r, struct wire_item *item, uint64_t n, hvd_error *err) {
    if (n > (r->size - r->at) / 8) return set_damaged(r, err);
    if (n > r->rows_capacity) {
        int64_t *rows = realloc(r->rows, n * sizeof *rows);
        if (!rows)
            return error_set(err, HVD_NO_MEMORY, "no memory for the rows of %zu ranks", (size_t)n);
        r->rows = rows;
        r->rows_capacity = n;
    }
    item->nrows = (uint32_t)n;
    item->rows = r->rows;
    return HVD_OK;
}

BOTH int pass_rows(struct stream *s, struct wire_item *item) {
    uint64_t n = s->to ? item->nrows : 0;
    HVD_TRY(pass_bits(s, &n, 4));
    if (s->from) HVD_TRY(make_rows(s->from, item, n, s->err));
    for (size_t i = 0; i < n; i++) HVD_TRY(pass_long(s, (int64_t *)&item->rows[i]));
    return HVD_OK;
}

BOTH int pass_flags(struct stream *s, struct wire_item *item) {
    bool *const of[] = {&item->direct, &item->whole, &item->cut, &item->uneven, &item->waited};
    enum { FLAGS = sizeof of / sizeof *of };
    uint64_t flags = 0;
    for (int i = 0; i < FLAGS && s->to; i++) flags |= (uint64_t)*of[i] << i;
    HVD_TRY(pass_bits(s, &flags, 1));
    if (s->from && flags >> FLAGS) return set_damaged(s->from, s->err);
    for (int i = 0; i < FLAGS && s->from; i++) *of[i] = flags >> i & 1;
    return HVD_OK;
}

BOTH int pass_tensor(struct stream *s, struct wire_item *item) {
    HVD_TRY(pass_bits(s, &item->id, 8));
    HVD_TRY(pass_flags(s, item));
    if (item->cut) HVD_TRY(pass_bits(s, &item->begin, 8));
    if (item->cut) HVD_TRY(pass_bits(s, &item->end, 8));
    HVD_TRY(item->whole ? pass_request(s, &item->request)
                        : pass_text(s, item->request.name, sizeof item->request.name));
    return pass_rows(s, item);
}

BOTH int pass_error(struct stream *s, hvd_error *error) {
    if (s->from) error->tensor[0] = 0;
    HVD_TRY(pass_int(s, &error->code, 1));
    HVD_TRY(pass_int(s, &error->nblamed, 4));
    if (s->from && (error->code <= HVD_OK || error->code > HVD_INTERNAL || error->nblamed < 0))
        return set_damaged(s->from, s->err);
    for (int i = 0; i < error_nlisted(error); i++) HVD_TRY(pass_int(s, &error->blamed[i], 4));
    HVD_TRY(pass_int(s, &error->fate, 1));
    HVD_TRY(pass_long(s, &error->pid));
    HVD_TRY(pass_text(s, error->host, sizeof error->host));
    return pass_text(s, error->text, sizeof error->text);
}

BOTH int pass_item(struct stream *s, struct wire_item *item) {
    char *const name = item->request.name, *const text = item->error.text;
    switch (item->type) {
    case WIRE_REQUEST:
        HVD_TRY(pass_int(s, &item->rank, 4));
        HVD_TRY(pass_bits(s, &item->id, 8));
        HVD_TRY(pass_bits(s, &item->instead, 8));
        HVD_TRY(pass_request(s, &item->request));
        return item->request.failed ? pass_text(s, text, sizeof item->error.text) : HVD_OK;
    case WIRE_LEAVE:
    case WIRE_SILENT:
        HVD_TRY(pass_int(s, &item->rank, 4));
        return pass_text(s, text, sizeof item->error.text);
    case WIRE_ABORT: return pass_error(s, &item->error);
    case WIRE_TENSOR: return pass_tensor(s, item);
    case WIRE_FAIL:
        HVD_TRY(pass_text(s, name, sizeof item->request.name));
        HVD_TRY(pass_rows(s, item));
        return pass_error(s, &item->error);
    case WIRE_HIT:
    case WIRE_HITS:
    case WIRE_RESEND: HVD_TRY(pass_int(s, &item->rank, 4)); return pass_bits(s, &item->id, 8);
    case WIRE_RUN:
    case WIRE_BYE:
    case WIRE_ASK:
    case WIRE_ALIVE: return HVD_OK;
    }
    s->from->at--;
    return set_damaged(s->from, s->err);
}

int wire_put(struct wire_writer *w, const struct wire_item *item, hvd_error *err) {
    struct stream s = {.to = w, .err = err};
    uint64_t version = WIRE_VERSION, type = item->type;
    HVD_TRY(
        reserve(w, 64 + sizeof item->request + sizeof item->error + 8 * (size_t)item->nrows, err));
    if (!w->size) HVD_TRY(pass_bits(&s, &version, 1));
    HVD_TRY(pass_bits(&s, &type, 1));
    return pass_item(&s, (struct wire_item *)item);
}

void wire_reset(struct wire_writer *w) { w->size = 0; }

void wire_free(struct wire_writer *w) {
    free(w->data);
    *w = (struct wire_writer){0};
}

bool wire_spreads(const void *data, size_t size) {
    const uint8_t *bytes = data;
    if (size < 2) return false;
    switch ((enum wire_type)bytes[1]) { /* the first item's type follows the version byte */
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
    uint64_t version = 0;
    HVD_TRY(pass_bits(&(struct stream){NULL, r, err}, &version, 1));
    if (version != WIRE_VERSION)
        return error_set(err, HVD_INTERNAL,
                         "another rank sent a message of version %d, but this rank's hvdlite reads "
                         "version %d: install the same hvdlite on every host",
                         (int)version, WIRE_VERSION);
    return HVD_OK;
}

int wire_next(struct wire_reader *r, struct wire_item *item, bool *more, hvd_error *err) {
    struct stream s = {.from = r, .err = err};
    uint64_t type = 0;
    *more = r->at < r->size;
    if (!*more) return HVD_OK;
    HVD_TRY(pass_bits(&s, &type, 1));
    item->type = (enum wire_type)type;
    item->request.name[0] = 0; /* clears fields of the previous item */
    item->nrows = 0;
    return pass_item(&s, item);
}

void wire_reader_free(struct wire_reader *r) { free(r->rows); }

#include "shm/mailbox.h"

#include <stdlib.h>
#include <string.h>

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Writes as much as there is room for; returns how much. */
static size_t write_some(struct mailbox *box, const unsigned char *data, size_t size) {
    uint64_t written = atomic_load_explicit(&box->written, memory_order_relaxed);
    uint64_t read = atomic_load_explicit(&box->read, memory_order_acquire);
    size_t n = least(size, MAILBOX_BYTES - (size_t)(written - read));
    size_t at = written % MAILBOX_BYTES, straight = least(n, MAILBOX_BYTES - at);
    memcpy(box->bytes + at, data, straight);
    memcpy(box->bytes, data + straight, n - straight);
    atomic_store_explicit(&box->written, written + n, memory_order_release);
    return n;
}

static size_t read_some(struct mailbox *box, unsigned char *data, size_t size) {
    uint64_t read = atomic_load_explicit(&box->read, memory_order_relaxed);
    uint64_t written = atomic_load_explicit(&box->written, memory_order_acquire);
    size_t n = least(size, (size_t)(written - read));
    size_t at = read % MAILBOX_BYTES, straight = least(n, MAILBOX_BYTES - at);
    memcpy(data, box->bytes + at, straight);
    memcpy(data + straight, box->bytes, n - straight);
    atomic_store_explicit(&box->read, read + n, memory_order_release);
    return n;
}

static int keep(struct mail_out *out, const void *data, size_t size, hvd_error *err) {
    if (out->size + size > out->capacity) {
        size_t capacity = 2 * (out->size + size);
        unsigned char *waiting = realloc(out->waiting, capacity);
        if (!waiting)
            return error_set(err, HVD_NO_MEMORY, "no memory for a message of %zu bytes", size);
        out->waiting = waiting;
        out->capacity = capacity;
    }
    memcpy(out->waiting + out->size, data, size);
    out->size += size;
    return HVD_OK;
}

static int put(struct mailbox *box, struct mail_out *out, const void *data, size_t size,
               hvd_error *err) {
    size_t sent = out->size ? 0 : write_some(box, data, size);
    return sent == size ? HVD_OK : keep(out, (const char *)data + sent, size - sent, err);
}

int mailbox_send(struct mailbox *box, struct mail_out *out, const void *data, size_t size,
                 hvd_error *err) {
    uint64_t length = size;
    mailbox_flush(box, out);
    HVD_TRY(put(box, out, &length, sizeof length, err));
    return put(box, out, data, size, err);
}

bool mailbox_flush(struct mailbox *box, struct mail_out *out) {
    if (!out->size) return true;
    size_t sent = write_some(box, out->waiting, out->size);
    out->size -= sent;
    memmove(out->waiting, out->waiting + sent, out->size);
    return !out->size;
}

static int begin(struct mail_in *in, hvd_error *err) {
    uint64_t length;
    memcpy(&length, in->length, sizeof length);
    in->size = sizeof length + length;
    in->data = malloc(length + 1);
    return in->data ? HVD_OK
                    : error_set(err, HVD_NO_MEMORY, "no memory for a message of %zu bytes",
                                (size_t)length);
}

int mailbox_receive(struct mailbox *box, struct mail_in *in, void **data, size_t *size,
                    hvd_error *err) {
    enum { HEAD = sizeof in->length };
    *data = NULL;
    if (in->got < HEAD) in->got += read_some(box, in->length + in->got, HEAD - in->got);
    if (in->got < HEAD) return HVD_OK;
    if (!in->data) HVD_TRY(begin(in, err));
    in->got += read_some(box, in->data + (in->got - HEAD), in->size - in->got);
    if (in->got < in->size) return HVD_OK;
    *data = in->data;
    *size = in->size - HEAD;
    *in = (struct mail_in){0};
    return HVD_OK;
}

void mail_out_free(struct mail_out *out) { free(out->waiting); }

void mail_in_free(struct mail_in *in) { free(in->data); }

#include "shm/mailbox.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static int set_damaged(uint64_t written, uint64_t read, hvd_error *err) {
    return error_set(err, HVD_INTERNAL,
                     "the memory that the ranks of this host share is damaged: a mailbox of %d "
                     "bytes can't contain %" PRIu64 " bytes written minus %" PRIu64 " bytes read",
                     MAILBOX_BYTES, written, read);
}

/* Writes as many bytes of `data` as the ring has room for. */
static int write_some(struct mailbox *box, uint64_t *written, const unsigned char *data,
                      size_t size, size_t *done, hvd_error *err) {
    uint64_t read = atomic_load_explicit(&box->read, memory_order_acquire);
    if (*written - read > MAILBOX_BYTES) return set_damaged(*written, read, err);
    size_t n = least(size, MAILBOX_BYTES - (size_t)(*written - read));
    size_t at = *written % MAILBOX_BYTES, straight = least(n, MAILBOX_BYTES - at);
    memcpy(box->bytes + at, data, straight);
    memcpy(box->bytes, data + straight, n - straight);
    *written += *done = n;
    atomic_store_explicit(&box->written, *written, memory_order_release);
    return HVD_OK;
}

/* Reads the bytes that have arrived, at most `size`, and adds their number to in->arrived. */
static int read_some(struct mailbox *box, struct mail_in *in, unsigned char *data, size_t size,
                     hvd_error *err) {
    uint64_t written = atomic_load_explicit(&box->written, memory_order_acquire);
    if (written - in->read > MAILBOX_BYTES) return set_damaged(written, in->read, err);
    size_t n = least(size, (size_t)(written - in->read));
    size_t at = in->read % MAILBOX_BYTES, straight = least(n, MAILBOX_BYTES - at);
    memcpy(data, box->bytes + at, straight);
    memcpy(data + straight, box->bytes, n - straight);
    in->arrived += n;
    in->read += n;
    atomic_store_explicit(&box->read, in->read, memory_order_release);
    return HVD_OK;
}

/* Makes room for `more` queued bytes. Removes sent bytes from the buffer only when they fill more
 * than half of it, so that each byte is moved about once. */
static int make_room(struct mail_out *out, size_t more, hvd_error *err) {
    if (out->size + more > out->capacity && out->sent > out->size / 2) {
        out->size -= out->sent;
        memmove(out->waiting, out->waiting + out->sent, out->size);
        out->sent = 0;
    }
    if (out->size + more <= out->capacity) return HVD_OK;
    size_t capacity = 2 * (out->size + more);
    unsigned char *waiting = realloc(out->waiting, capacity);
    if (!waiting)
        return error_set(err, HVD_NO_MEMORY, "no memory for a message of %zu bytes", more);
    out->waiting = waiting;
    out->capacity = capacity;
    return HVD_OK;
}

static int put_bytes(struct mailbox *box, struct mail_out *out, const void *data, size_t size,
                     hvd_error *err) {
    size_t sent = 0;
    if (!out->size) HVD_TRY(write_some(box, &out->written, data, size, &sent, err));
    if (sent == size) return HVD_OK;
    HVD_TRY(make_room(out, size - sent, err));
    memcpy(out->waiting + out->size, (const char *)data + sent, size - sent);
    out->size += size - sent;
    return HVD_OK;
}

static int check_length(uint64_t length, hvd_error *err) {
    return length <= MAILBOX_LONGEST
               ? HVD_OK
               : error_set(err, HVD_INTERNAL,
                           "a message has %" PRIu64 " bytes: expected at most %d", length,
                           MAILBOX_LONGEST);
}

int mailbox_send(struct mailbox *box, struct mail_out *out, const void *data, size_t size,
                 hvd_error *err) {
    uint64_t length = size;
    HVD_TRY(check_length(length, err));
    HVD_TRY(mailbox_flush(box, out, err));
    HVD_TRY(put_bytes(box, out, &length, sizeof length, err));
    return put_bytes(box, out, data, size, err);
}

int mailbox_flush(struct mailbox *box, struct mail_out *out, hvd_error *err) {
    size_t sent = 0;
    if (!out->size) return HVD_OK;
    HVD_TRY(write_some(box, &out->written, out->waiting + out->sent, out->size - out->sent, &sent,
                       err));
    out->sent += sent;
    if (out->sent == out->size) out->sent = out->size = 0;
    return HVD_OK;
}

static int begin_message(struct mail_in *in, hvd_error *err) {
    uint64_t length;
    memcpy(&length, in->length, sizeof length);
    HVD_TRY(check_length(length, err));
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
    if (in->arrived < HEAD)
        HVD_TRY(read_some(box, in, in->length + in->arrived, HEAD - in->arrived, err));
    if (in->arrived < HEAD) return HVD_OK;
    if (!in->data) HVD_TRY(begin_message(in, err));
    HVD_TRY(read_some(box, in, in->data + (in->arrived - HEAD), in->size - in->arrived, err));
    if (in->arrived < in->size) return HVD_OK;
    *data = in->data;
    *size = in->size - HEAD;
    *in = (struct mail_in){.read = in->read};
    return HVD_OK;
}

void mail_out_free(struct mail_out *out) { free(out->waiting); }

void mail_in_free(struct mail_in *in) { free(in->data); }

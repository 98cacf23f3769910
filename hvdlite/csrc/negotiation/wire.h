/* The wire format of negotiation messages: a version byte, then items.
 *
 * Integers are little-endian. The reader checks each length against the rest of the message. So a
 * message that is damaged or not from hvdlite causes an error, but no read outside of the message.
 *
 * From rank `rank` to the coordinator, up the tree (tree.h):
 *   - REQUEST: a tensor that is new or has changed. `id`: the id of the RESEND that this request
 *     answers, or 0. `instead`: the id of the tensor's old cached version, or 0
 *   - HIT: a cached tensor, by its id
 *   - HITS: a cached tensor, by its id, for `rank` and all ranks below this rank
 *   - LEAVE: the rank submits nothing more, and why
 *
 * From a rank directly to the coordinator: ABORT, which says that the sender can't go on.
 *
 * From any rank to any other rank: ASK, which asks whether the engine runs; the answer is ALIVE.
 *
 * From the coordinator to all ranks, down the tree. But ABORT and SILENT go directly to each rank,
 * each in a message of its own:
 *   - TENSOR: a tensor, or a piece of a tensor, of the batch that the next RUN closes. The pieces
 *     of a tensor are in order
 *   - RUN: append the batch to the run log
 *   - FAIL: the tensor ends with an error on the listed ranks, which have submitted it; on other
 *     ranks the name may stand for a later tensor
 *   - RESEND: rank `rank` must send the whole request, because the coordinator has dropped the id
 *   - ABORT: the job can't go on; all pending tensors end with this error
 *   - SILENT: rank `rank` does not answer; a text for the logs of the ranks that wait for it
 *   - BYE: every rank has left: stop */
#ifndef HVDLITE_NEGOTIATION_WIRE_H
#define HVDLITE_NEGOTIATION_WIRE_H

#include "negotiation/request.h"

enum wire_type {
    WIRE_REQUEST = 1,
    WIRE_HIT,
    WIRE_HITS,
    WIRE_LEAVE,
    WIRE_ABORT,
    WIRE_TENSOR,
    WIRE_RUN,
    WIRE_FAIL,
    WIRE_RESEND,
    WIRE_BYE,
    WIRE_ASK,
    WIRE_ALIVE,
    WIRE_SILENT
};

/* One item, encoded or decoded. Fields that the type does not use are ignored. */
struct wire_item {
    enum wire_type type;
    struct request request; /* REQUEST: whole; TENSOR, FAIL: only the name, or "" if `id` is used */
    uint64_t id;            /* HIT, HITS, RESEND; TENSOR (0: not cached); REQUEST (0: no RESEND) */
    bool whole;             /* TENSOR: includes the whole request, for ranks that have joined */
    bool direct;            /* TENSOR: the tensor has the same offset in a region on every rank */
    bool cut;               /* TENSOR: the batch contains only the tensor's bytes [begin, end) */
    bool uneven;            /* TENSOR: an alltoall for which some rank has given splits */
    bool waited;            /* TENSOR: a caller waits for the tensor on every rank */
    uint64_t begin, end;
    uint64_t instead; /* REQUEST: id of the tensor's old version; 0: none */
    int32_t rank;     /* REQUEST, HIT, HITS, LEAVE, RESEND, SILENT */
    /* LEAVE, SILENT, ABORT, FAIL: the reason (FAIL: without the tensor's name); REQUEST: why the
     * sender has no data, if request.failed is set */
    hvd_error error;
    uint32_t nrows; /* length of `rows` */
    /* TENSOR: each rank's number of rows, if ranks may have different numbers; in a join, only the
     * last rank that joined; if `whole`, the ranks that have joined. FAIL: the ranks on
     * which the tensor fails. A decoded `rows` is valid until the next wire_next or
     * wire_reader_free. */
    const int64_t *rows;
};

struct wire_writer {
    uint8_t *data; /* owned; the message is data[0 .. size) */
    size_t size, capacity;
};

struct wire_reader {
    const uint8_t *data; /* the struct does not own these bytes */
    size_t size, at;
    int64_t *rows; /* owned */
    size_t rows_capacity;
};

/* Appends an item. A zeroed writer is an empty message; `size` stays 0 until the first item. */
int wire_put(struct wire_writer *w, const struct wire_item *item, hvd_error *err);
void wire_reset(struct wire_writer *w); /* makes the message empty and keeps its memory */
void wire_free(struct wire_writer *w);

/* Returns whether the message contains decisions of the coordinator. If so, the receiver passes the
 * message down the tree. */
bool wire_spreads(const void *data, size_t size);

/* Begins to read a message. Fails if another version of hvdlite has written the message. */
int wire_open(struct wire_reader *r, const void *data, size_t size, hvd_error *err);
/* Decodes the next item. *more becomes false at the end of the message. */
int wire_next(struct wire_reader *r, struct wire_item *item, bool *more, hvd_error *err);
void wire_reader_free(struct wire_reader *r);

#endif

/* The wire format of negotiation messages: a version byte, then items.
 *
 * Integers are little-endian. Every length is checked against the rest of the message before it is
 * used: a damaged or foreign message is an error, never a wild read.
 *
 * From rank `rank` to the coordinator, by the tree (tree.h):
 *   - REQUEST: a tensor that is new or has changed; `id`: of the RESEND that it answers, or 0;
 *     `instead`: the id of the tensor's old cached version, or 0
 *   - HIT: a cached tensor, by its id
 *   - HITS: a cached tensor, by its id, for the rank and all ranks below it
 *   - LEAVE: the rank submits nothing more; and why
 *
 * From a rank directly to the coordinator: ABORT, this rank can't go on.
 *
 * From any rank to any other rank: ASK, which asks whether its engine runs; the answer is ALIVE.
 *
 * From the coordinator to all ranks, by the tree; ABORT and SILENT directly, each in a message of
 * its own:
 *   - TENSOR: one tensor, or a piece of one, of the batch that the next RUN closes; a
 *     tensor's pieces come in order
 *   - RUN: append the batch to the run log
 *   - FAIL: the tensor ends with an error on the listed ranks, which have submitted it; on other
 *     ranks the name may stand for a later tensor
 *   - RESEND: rank `rank`: the coordinator has dropped the id; send the whole request
 *   - ABORT: the job can't go on; all pending tensors end with this error
 *   - SILENT: rank `rank` does not answer; a text for the logs of the ranks that wait
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

/* One item, encoded or decoded. Fields that the type does not have are ignored. */
struct wire_item {
    enum wire_type type;
    struct request request; /* REQUEST; TENSOR, FAIL: only its name ("": see the id) */
    uint64_t id; /* HIT, HITS, RESEND; TENSOR (0: not cached), REQUEST (0: not asked for) */
    bool whole;  /* TENSOR: with the whole request, for ranks that have joined */
    bool direct; /* TENSOR: the tensor has the same offset in a region on every rank */
    bool cut;    /* TENSOR: the batch has only its bytes [begin, end) */
    bool uneven; /* TENSOR: a rank chooses how many rows go to each rank */
    bool waited; /* TENSOR: on every rank a caller waits for the tensor */
    uint64_t begin, end;
    uint64_t instead; /* REQUEST */
    int32_t rank;     /* REQUEST, HIT, HITS, LEAVE, RESEND, SILENT */
    /* LEAVE, SILENT, a REQUEST that has failed (text: why), ABORT, FAIL (without the tensor) */
    hvd_error error;
    /* of `rows`: rows of every rank, where they vary; or ranks: the last to join (a join), those
     * that have joined (whole), those whose tensor fails (FAIL) */
    uint32_t nrows;
    const int64_t *rows; /* decoded: valid until the next wire_next or wire_reader_free */
};

struct wire_writer {
    uint8_t *data; /* owned; the message is data[0 .. size) */
    size_t size, capacity;
};

struct wire_reader {
    const uint8_t *data; /* the bytes, which the struct does not own */
    size_t size, at;
    int64_t *rows; /* owned */
    size_t rows_capacity;
};

/* A zeroed writer is an empty message; size stays 0 until the first item. */
int wire_put(struct wire_writer *w, const struct wire_item *item, hvd_error *err);
void wire_reset(struct wire_writer *w); /* makes the message empty and keeps its memory */
void wire_free(struct wire_writer *w);

/* True: the message has decisions of the coordinator, which its receiver passes down the tree. */
bool wire_spreads(const void *data, size_t size);

/* Fails on another version byte. */
int wire_open(struct wire_reader *r, const void *data, size_t size, hvd_error *err);
/* Decodes the next item; *more: false at the end of the message. */
int wire_next(struct wire_reader *r, struct wire_item *item, bool *more, hvd_error *err);
void wire_reader_free(struct wire_reader *r);

#endif

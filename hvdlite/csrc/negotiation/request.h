/* A request: what a rank tells the coordinator about a tensor.
 *
 * A plain value that owns nothing: copy it freely. Most of it is room for long names and
 * many dimensions, though: where it counts request_copy leaves out what is not in use. */
#ifndef HVDLITE_NEGOTIATION_REQUEST_H
#define HVDLITE_NEGOTIATION_REQUEST_H

#include "base/error.h"
#include "base/types.h"
#include "kernels/codec.h"

#include <stdbool.h>

struct request {
    int32_t kind, dtype;        /* hvd_kind, hvd_dtype */
    int32_t op;                 /* hvd_op; allreduce, reducescatter */
    int32_t root;               /* rank; broadcast */
    int32_t priority;           /* higher goes first; never compared between ranks */
    int32_t contributors;       /* ranks that bring data; the coordinator tells */
    int32_t ndim;               /* 0: one element */
    double prescale, postscale; /* allreduce, reducescatter */
    struct codec codec;         /* how an allreduce of float32 travels */
    int32_t region; /* id of the region in which the tensor lies, 0: in none; allreduce in place */
    int64_t offset; /* in the region's part, bytes */
    bool failed;    /* no data: the rank only tells the others that it has none */
    int64_t dims[HVD_MAX_DIMS];
    /* The same on every rank; tells kind and owner: "allreduce.trainer0.3" */
    char name[HVD_MAX_NAME];
};

/* Of a request that has been checked. */
void request_copy(struct request *to, const struct request *from);

/* The parts on which ranks can disagree, in the order in which they are compared. */
enum request_field {
    FIELD_NONE,
    FIELD_FAILED,
    FIELD_KIND,
    FIELD_CODEC,
    FIELD_DTYPE,
    FIELD_SHAPE,
    FIELD_OP,
    FIELD_SCALES,
    FIELD_ROOT
};

/* Checks every value against its range (the name's too); the error names the tensor. */
int request_check(const struct request *r, int size, hvd_error *err);

/* Elements; rows are what an allgather joins: the first dimension, 1 for a 0-d tensor. */
size_t request_count(const struct request *r);
int64_t request_rows(const struct request *r);
size_t request_bytes(const struct request *r);
size_t request_row_bytes(const struct request *r);

/* An allreduce or reducescatter: it has op and scales. */
bool request_reduces(const struct request *r);
/* An allgather or alltoall: every rank brings its own number of rows. */
bool request_rows_vary(const struct request *r);
/* A reducescatter: the rows that a rank gets, the first ones one more than the others. */
int64_t request_part_rows(const struct request *r, int rank, int size);

/* Zeros may stand in for a rank that has joined. */
bool request_takes_zeros(const struct request *r);

/* Both lie at the same place of the same region. */
bool request_same_place(const struct request *a, const struct request *b);

bool request_same_codec(const struct request *a, const struct request *b);

/* Where the collective itself would go wrong; where rows vary, ranks may differ in them. */
enum request_field request_conflict(const struct request *a, const struct request *b);

/* Equal in all that travels, priority aside: what a cache hit stands for. */
bool request_same(const struct request *a, const struct request *b);

const char *field_name(enum request_field field);
/* The field as the user would write it: "float32", "(17, 3)", "Average". */
void field_text(const struct request *r, enum request_field field, char *text, size_t size);
/* "allreduce 'name' (float32, (17, 3))", for chains of causes. */
void request_text(const struct request *r, char *text, size_t size);

#endif

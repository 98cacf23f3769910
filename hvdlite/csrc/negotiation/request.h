/* A request: what a rank tells the coordinator about a tensor.
 *
 * A plain value that owns nothing. Most of it is room for long names and many dimensions;
 * request_copy copies only the used part. */
#ifndef HVDLITE_NEGOTIATION_REQUEST_H
#define HVDLITE_NEGOTIATION_REQUEST_H

#include "base/error.h"
#include "base/types.h"
#include "kernels/codec.h"

enum { REQUEST_DEALT = 64 }; /* added to a rule */

struct request {
    int32_t kind, dtype;        /* hvd_kind, hvd_dtype */
    int32_t op;                 /* hvd_op; of an allreduce or reducescatter */
    int32_t root;               /* rank; of a broadcast */
    int32_t priority;           /* higher goes first; never compared between ranks */
    int32_t grouped;            /* tensors of its grouped call, named x[0], x[1], ...; 0: alone */
    int32_t states;             /* digest of what its optimizer has just loaded; 0: nothing */
    int32_t contributors;       /* number of ranks with data; the coordinator's */
    int32_t ndim;               /* 0: one element */
    double prescale, postscale; /* allreduce, reducescatter */
    struct codec codec;         /* of an allreduce of float32 */
    int32_t
        rule; /* hvd_rule; of an allreduce of float32; plus REQUEST_DEALT if the tensor is dealt */
    int32_t region; /* of an allreduce in place: the tensor's region; 0: none */
    int64_t offset; /* bytes, in the region's part */
    bool delegated; /* another library moves the data */
    bool failed;    /* this rank has no data for the tensor */
    bool uneven;    /* an alltoall: this rank chooses how many rows go to each rank */
    bool waited;    /* a caller waits for the tensor, and steps the engine meanwhile */
    bool last;      /* this rank submits no other tensor before its end */
    int64_t dims[HVD_MAX_DIMS];
    /* The same on every rank; has kind and owner: "allreduce.trainer0.3" */
    char name[HVD_MAX_NAME];
};

/* Copies a request that has passed request_check. */
void request_copy(struct request *to, const struct request *from);
_Static_assert(offsetof(struct request, dims) + sizeof(int64_t[HVD_MAX_DIMS]) + HVD_MAX_NAME ==
                   sizeof(struct request),
               "dims and name are last: the room that copies leave out");

/* What ranks can disagree on, in the order of comparison. */
enum request_field {
    FIELD_NONE,
    FIELD_FAILED,
    FIELD_GROUPED,
    FIELD_STATES,
    FIELD_KIND,
    FIELD_CODEC,
    FIELD_RULE,
    FIELD_DTYPE,
    FIELD_SHAPE,
    FIELD_OP,
    FIELD_SCALES,
    FIELD_ROOT,
    FIELD_DELEGATED
};

/* Checks that every value, and the name, is in its range; the error names the tensor. */
int request_check(const struct request *r, int size, hvd_error *err);

/* Elements. Rows: the first dimension; 1 for a 0-d tensor. */
size_t request_count(const struct request *r);
int64_t request_rows(const struct request *r);
size_t request_bytes(const struct request *r);
size_t request_row_bytes(const struct request *r);

/* An allreduce or reducescatter: they have op and scales. */
bool request_reduces(const struct request *r);
/* An allgather or alltoall: ranks may bring different numbers of rows. */
bool request_rows_vary(const struct request *r);
/* reducescatter: the rows that a rank gets; the first ranks may get one more. */
int64_t request_part_rows(const struct request *r, int rank, int size);

/* Zeros may stand in for a rank that has joined. */
bool request_takes_zeros(const struct request *r);

/* The request's elements may go in several batches. Codecs and Adasum need the whole tensor. */
bool request_can_be_cut(const struct request *r);

/* Both tensors have the same offset in the same region. */
bool request_same_offset(const struct request *a, const struct request *b);

bool request_same_codec(const struct request *a, const struct request *b);

/* The first field whose difference makes the collective fail. Rows may differ if they vary. */
enum request_field request_conflict(const struct request *a, const struct request *b);

/* Equal in all fields that are sent, except the priority: a cache hit stands for the request. */
bool request_same(const struct request *a, const struct request *b);

/* Both are tensors of one grouped call, or of calls of the same name on two ranks, and r is
 * x[first] or a later tensor of the call. */
bool request_same_call(const struct request *r, const struct request *other, int first);

const char *field_name(enum request_field field);
/* The field as users write it: "float32", "(17, 3)", "Average". */
void field_text(const struct request *r, enum request_field field, char *text, size_t size);
/* "allreduce 'name' (float32, (17, 3))", for chains of causes. */
void request_text(const struct request *r, char *text, size_t size);

#endif

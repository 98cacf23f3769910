/* A request: what a rank tells the coordinator about a tensor.
 *
 * A plain value that owns nothing. Most of it is room for long names and many dimensions;
 * request_copy copies only the used part. */
#ifndef HVDLITE_NEGOTIATION_REQUEST_H
#define HVDLITE_NEGOTIATION_REQUEST_H

#include "base/error.h"
#include "base/types.h"
#include "kernels/codec.h"

enum { REQUEST_DEALT = 64 }; /* a flag, added to a rule */

struct request {
    int32_t kind, dtype; /* hvd_kind, hvd_dtype */
    int32_t op;          /* hvd_op; of an allreduce or reducescatter */
    int32_t root;        /* rank; of a broadcast */
    int32_t priority;    /* higher goes first; never compared between ranks */
    /* number of tensors in its grouped call, named x[0], x[1], ...; 0: no grouped call */
    int32_t grouped;
    /* digest of the states that its optimizer has just loaded; 0: none */
    int32_t states;
    int32_t contributors;       /* number of ranks with data; the coordinator sets it */
    int32_t ndim;               /* 0: one element */
    double prescale, postscale; /* allreduce, reducescatter */
    struct codec codec;         /* for an allreduce of float32 */
    int32_t rule;   /* hvd_rule for float32 sums, plus REQUEST_DEALT if the tensor is dealt */
    int32_t region; /* region of a tensor that is reduced in place; 0: none */
    int64_t offset; /* bytes from the begin of the region's part */
    bool delegated; /* another library moves the data */
    bool failed;    /* this rank has no data for the tensor */
    bool uneven;    /* an alltoall: this rank chooses how many rows go to each rank */
    bool waited;    /* a caller waits for the tensor, and steps the engine meanwhile */
    bool last;      /* this rank submits no other tensor before its end */
    int64_t dims[HVD_MAX_DIMS];
    /* The same on every rank; begins with kind and owner: "allreduce.trainer0.3" */
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

/* The number of elements; the number of rows, the first dimension (1 for a 0-d tensor). */
size_t request_count(const struct request *r);
int64_t request_rows(const struct request *r);
size_t request_bytes(const struct request *r);
size_t request_row_bytes(const struct request *r);

/* True for an allreduce or reducescatter, which have op and scales. */
bool request_reduces(const struct request *r);
/* True for an allgather or alltoall, in which ranks may have different numbers of rows. */
bool request_rows_vary(const struct request *r);
/* reducescatter: the rows that a rank gets; the first ranks may get one more. */
int64_t request_part_rows(const struct request *r, int rank, int size);

/* True: zeros may stand in for the data of a rank that has joined. */
bool request_takes_zeros(const struct request *r);

/* True: the tensor may move in several batches. Codecs and Adasum need the whole tensor at once. */
bool request_can_be_cut(const struct request *r);

/* Both tensors have the same offset in the same region. */
bool request_same_offset(const struct request *a, const struct request *b);

bool request_same_codec(const struct request *a, const struct request *b);

/* The first field whose difference makes the collective fail. Rows may differ if they vary. */
enum request_field request_conflict(const struct request *a, const struct request *b);

/* True: all fields that are sent are equal, except the priority. Then a cache hit can stand for
 * the request. */
bool request_same(const struct request *a, const struct request *b);

/* True: both are tensors of one grouped call, or of two ranks' grouped calls of the same name,
 * and r is x[first] or a later tensor of its call. */
bool request_same_call(const struct request *r, const struct request *other, int first);

const char *field_name(enum request_field field);
/* The field as users write it: "float32", "(17, 3)", "Average". */
void field_text(const struct request *r, enum request_field field, char *text, size_t size);
/* "allreduce 'name' (float32, (17, 3))", for chains of causes. */
void request_text(const struct request *r, char *text, size_t size);

#endif

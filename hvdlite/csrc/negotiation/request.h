/* A request: a rank's description of a tensor for the coordinator.
 *
 * A plain value, which owns no memory. Most of its bytes are room for long names and many
 * dimensions; request_copy copies only the bytes in use. */
#ifndef HVDLITE_NEGOTIATION_REQUEST_H
#define HVDLITE_NEGOTIATION_REQUEST_H

#include "base/error.h"
#include "base/types.h"
#include "kernels/codec.h"

enum { REQUEST_DEALT = 64 }; /* a flag that is added to `rule` */

struct request {
    int32_t kind, dtype; /* hvd_kind, hvd_dtype */
    int32_t op;          /* an hvd_op; for allreduce and reducescatter */
    int32_t root;        /* for broadcast */
    int32_t priority;    /* higher runs first; may differ between ranks */
    /* number of tensors in the grouped call, named x[0], x[1], ...; 0: not a grouped call */
    int32_t grouped;
    /* digest of the optimizer states loaded before this step; 0: none. The digest is negative if
     * this rank has also changed the optimizer's parameters. From HVD_DIVISORS: see hvd_tensor */
    int32_t states;
    /* HVD_OK: this rank has data. HVD_NO_MEMORY: this rank has no memory for the splits, or to
     * encode the data. Other codes: this rank has no data for another reason. */
    int32_t failed;
    int32_t delegated;          /* 1: another library moves the data; HVD_ASKS: no rank has data */
    int32_t contributors;       /* number of ranks with data; set when all ranks have submitted */
    int32_t ndim;               /* 0: a tensor with one element */
    double prescale, postscale; /* allreduce, reducescatter */
    struct codec codec;         /* for an allreduce of float32 */
    int32_t rule;   /* hvd_rule, for float32 sums; plus REQUEST_DEALT if hosts divide states */
    int32_t region; /* region of a tensor that is reduced in place; 0: no region */
    int64_t offset; /* offset of the tensor in this rank's part of the region, in bytes */
    bool uneven;    /* alltoall: this rank chooses how many rows each rank gets */
    bool waited;    /* a caller waits for the tensor and steps the engine meanwhile */
    bool last;      /* this rank submits no other tensor until this tensor has ended */
    char call[HVD_MAX_CALL]; /* see hvd_tensor; "": the kind and the dtype describe the call */
    int64_t dims[HVD_MAX_DIMS];
    /* Equal on every rank; begins with kind and owner: "allreduce.trainer0.3" */
    char name[HVD_MAX_NAME];
};

/* Copies a request that request_check has accepted. */
void request_copy(struct request *to, const struct request *from);
_Static_assert(offsetof(struct request, dims) + sizeof(int64_t[HVD_MAX_DIMS]) + HVD_MAX_NAME ==
                   sizeof(struct request),
               "struct request must end with dims and name: request_copy leaves out the rest");

/* Fields on which ranks can disagree, in the order of comparison. */
enum request_field {
    FIELD_NONE,
    FIELD_FAILED,
    FIELD_GROUPED,
    FIELD_CHANGES,
    FIELD_STATES,
    FIELD_DIVISOR,
    FIELD_CALL,
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

/* Checks that every value and the name are in range; the error names the tensor. */
int request_check(const struct request *r, int size, hvd_error *err);

/* Return the number of elements and the number of rows (the first dimension; 1 if ndim is 0). */
size_t request_count(const struct request *r);
int64_t request_rows(const struct request *r);
size_t request_bytes(const struct request *r);
size_t request_row_bytes(const struct request *r);

/* Returns true for allreduce and reducescatter, which have an op and scales. */
bool request_reduces(const struct request *r);
/* Returns true for allgather and alltoall, where ranks may have different numbers of rows. */
bool request_rows_vary(const struct request *r);
/* reducescatter: returns how many rows a rank gets; the first ranks may get one row more. */
int64_t request_part_rows(const struct request *r, int rank, int size);

/* Returns whether zeros may replace the data of a rank that has joined. */
bool request_takes_zeros(const struct request *r);

/* Returns whether several batches may move the tensor. Codecs and Adasum need the whole tensor in
 * one batch. */
bool request_can_be_cut(const struct request *r);

/* Returns whether both tensors have the same offset in the same region. */
bool request_same_offset(const struct request *a, const struct request *b);

bool request_same_codec(const struct request *a, const struct request *b);

/* Returns the first field whose difference makes the collective fail. A different number of rows is
 * no conflict if request_rows_vary. */
enum request_field request_conflict(const struct request *a, const struct request *b);

/* Returns whether a rank may report `b` by the cache id of `a`. The requests may differ in
 * `priority`, in `last`, and in fields that their kind does not use. */
bool request_same(const struct request *a, const struct request *b);

/* Returns true if `r` is in a grouped call, and `other` in a call of the same name, on one rank or
 * on two ranks, and `r` has an index (x[index]) of at least `first` in its call. */
bool request_same_call(const struct request *r, const struct request *other, int first);

const char *field_name(enum request_field field);
/* Writes the field as users write it: "float32", "(17, 3)", "Average". */
void field_text(const struct request *r, enum request_field field, char *text, size_t size);
/* Writes "allreduce 'name' (float32, (17, 3))", for error_while. */
void request_text(const struct request *r, char *text, size_t size);

#endif

/* The ready tensors: submitted by every rank, not decided yet, in the order in which they shall
 * run; cut into pieces and planned as batches.
 *
 * A large tensor is cut, so that an urgent tensor waits for a piece and not for the whole. Tensor
 * fusion trades copies to and from a buffer for fewer, longer messages. Used by the coordinator. */
#ifndef HVDLITE_NEGOTIATION_READY_H
#define HVDLITE_NEGOTIATION_READY_H

#include "negotiation/pending.h"

/* A zeroed struct is empty. Its highest priority is then 0, the default priority. */
struct ready {
    struct pending **of; /* [first .. n); below `checked` they are sorted and free of conflicts */
    size_t first, n, checked, capacity;
    int32_t highest; /* highest priority of all tensors so far */
    bool changed;    /* for the coordinator: more may be decided than when it last looked */
};

/* The part of a tensor that one batch moves. */
struct piece {
    struct pending *tensor;
    size_t begin, end;  /* bytes */
    struct piece *next; /* the next piece of the same batch */
};

size_t piece_bytes(const struct piece *first); /* bytes of a batch */

/* Batches in the order in which they shall run. */
struct ready_plan {
    size_t n;
    struct piece **first; /* by batch */
    size_t seen;          /* the index of the first ready tensor that is not planned */
    void *memory;
};

int ready_add(struct ready *r, struct pending *p, hvd_error *err);
void ready_free(struct ready *r);

/* All ready tensors count as checked from now on: sorts them. */
void ready_sort(struct ready *r);

/* True: a checked tensor has a lower priority than a tensor that came earlier and may come
 * again, so cutting it is of use. */
bool ready_can_be_overtaken(const struct ready *r);

/* Plans the first `most` bytes and the tensors that share a batch with them. A piece has at most
 * `longest` bytes if its tensor can be cut; a batch of several tensors at most `longest` and
 * `threshold`. */
int ready_plan(const struct ready *r, size_t most, size_t longest, size_t threshold,
               struct ready_plan *plan, hvd_error *err);
void ready_plan_free(struct ready_plan *plan);

/* Marks the piece as decided, so it is not planned again. */
void ready_decided(const struct piece *piece);
/* Drops the planned tensors that are decided whole. */
void ready_clean(struct ready *r, const struct ready_plan *plan);

/* ---- fusion: chooses the tensors that one collective moves together ---- */

/* One collective may move both tensors. */
bool fusion_fits(const struct request *a, const struct request *b);

/* A tensor, or a piece of it that has so many bytes. */
struct fusion_item {
    const struct request *request;
    size_t bytes;
    /* true: the next piece of the previous item's tensor, which must go into a later batch */
    bool behind;
};

/* Cuts n tensors, in the order in which they shall run, into batches. batch[i] is the batch of
 * tensor i. Batches are numbered from 0 in the order of their first tensor; their number is
 * returned. All tensors of a batch have one kind, dtype, codec, op, scales, root and region. A
 * batch has at most `threshold` bytes, unless it is a single tensor; threshold 0 fuses nothing.
 * Only allreduces and broadcasts are fused; not Adasum, whose rule is for one tensor. A tensor
 * may overtake others to join one of the last FUSION_OPEN batches that have room for it. */
enum { FUSION_OPEN = 32 };
size_t fusion_plan(const struct fusion_item *tensors, size_t n, size_t threshold, size_t *batch);

#endif

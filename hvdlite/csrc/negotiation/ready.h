/* Plans the batches of the ready tensors, which every rank has submitted. For the coordinator.
 *
 * The tensors are sorted in the order in which they shall run, and cut into pieces. A large tensor
 * is cut, so that an urgent tensor waits only for a piece of the large tensor. Then tensor fusion
 * (fusion.h) puts pieces of several tensors into one batch. */
#ifndef HVDLITE_NEGOTIATION_READY_H
#define HVDLITE_NEGOTIATION_READY_H

#include "negotiation/pending.h"

/* A zeroed struct is empty; its `highest` is then 0, the default priority. */
struct ready {
    /* used from `first` to n; tensors before `checked` are sorted, and the ranks agree on them */
    struct pending **of;
    size_t first, n, checked, capacity;
    int32_t highest; /* highest priority of any tensor so far */
    bool changed;    /* true: something has changed since the coordinator last looked for a batch */
};

/* The part of a tensor that one batch moves. */
struct piece {
    struct pending *tensor;
    size_t begin, end;  /* bytes */
    struct piece *next; /* the next piece of the same batch */
};

size_t piece_bytes(const struct piece *first); /* bytes of a batch */

/* Batches, in the order in which they shall run. */
struct ready_plan {
    size_t n;
    struct piece **first; /* by batch */
    size_t seen;          /* index of the first ready tensor that is not planned */
    void *memory;         /* contains all arrays of this struct; the caller frees it */
};

int ready_add(struct ready *r, struct pending *p, hvd_error *err);
void ready_free(struct ready *r);

/* Sorts the ready tensors; all of them count as checked from now on. */
void ready_sort(struct ready *r);

/* Returns whether to cut tensors, so that a more urgent tensor can overtake the rest: true if a
 * checked tensor has a lower priority than an earlier tensor, which may be submitted again. */
bool ready_can_be_overtaken(const struct ready *r);

/* Plans checked tensors, until the plan has `most` bytes or more. A tensor that can be cut is cut
 * into pieces of about `longest` bytes. A batch of several tensors has at most `longest` and at
 * most `threshold` bytes. */
int ready_plan(const struct ready *r, size_t most, size_t longest, size_t threshold,
               struct ready_plan *plan, hvd_error *err);

/* Marks the part of a tensor as decided, so that it is not planned again. */
void ready_decided(const struct piece *piece);
/* Drops the planned tensors that are completely decided. */
void ready_clean(struct ready *r, const struct ready_plan *plan);

#endif

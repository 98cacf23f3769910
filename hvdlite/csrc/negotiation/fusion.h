/* Tensor fusion: chooses which tensors one collective moves together.
 *
 * Fusion needs copies to and from a buffer, but sends fewer and longer messages. For the
 * coordinator. Pure: the functions change only their arguments. */
#ifndef HVDLITE_NEGOTIATION_FUSION_H
#define HVDLITE_NEGOTIATION_FUSION_H

#include "negotiation/request.h"

/* Returns whether one collective may move both tensors. */
bool fusion_fits(const struct request *a, const struct request *b);

/* A tensor, or a piece of a tensor with `bytes` bytes. */
struct fusion_item {
    const struct request *request;
    size_t bytes;
    /* true: a piece of the same tensor as the previous item; it must begin a new batch */
    bool behind;
};

/* Cuts n tensors, given in the order in which they shall run, into batches; returns the number of
 * batches. batch[i] is the batch of tensor i. Batches are numbered from 0 in the order of their
 * first tensors. All tensors of a batch have the same kind, dtype, codec, op, scales, root and
 * region. A batch of several tensors has at most `threshold` bytes; threshold 0 fuses nothing. Only
 * allreduces and broadcasts are fused; Adasum is not, because its rule applies to single tensors.
 * To join a batch, a tensor may overtake other tensors. A tensor may join only the last FUSION_OPEN
 * batches that have room, which limits the search; the number is chosen, not measured. */
enum { FUSION_OPEN = 32 };
size_t fusion_plan(const struct fusion_item *tensors, size_t n, size_t threshold, size_t *batch);

#endif

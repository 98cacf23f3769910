/* The fusion planner: chooses the tensors that one collective moves together.
 *
 * Tensor fusion trades a copy to and from a buffer for fewer, longer messages. */
#ifndef HVDLITE_NEGOTIATION_FUSION_H
#define HVDLITE_NEGOTIATION_FUSION_H

#include "negotiation/request.h"

/* One collective may move both tensors. */
bool fusion_fits(const struct request *a, const struct request *b);

/* A tensor, or a piece of it that has so many bytes. */
struct fusion_item {
    const struct request *request;
    size_t bytes;
    bool behind; /* the next piece of the tensor before it: goes into a later batch than that */
};

/* Cuts n tensors, in the order in which they shall run, into batches. batch[i] is the batch of
 * tensor i. Batches are numbered from 0 in the order of their first tensor; their number is
 * returned. All tensors of a batch have one kind, dtype, codec, op, scales, root and region. A
 * batch has at most `threshold` bytes, unless it is a single tensor; threshold 0 fuses nothing.
 * Only allreduces and broadcasts are fused; not Adasum, whose rule is for one tensor. A tensor that
 * fits is drawn forward past others, into one of the last FUSION_OPEN batches with room. */
enum { FUSION_OPEN = 32 };
size_t fusion_plan(const struct fusion_item *tensors, size_t n, size_t threshold, size_t *batch);

#endif

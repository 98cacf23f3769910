/* The fusion planner: which ready tensors one collective moves together.
 *
 * Tensor fusion trades a copy in and out of a buffer for fewer, longer messages. */
#ifndef HVDLITE_NEGOTIATION_FUSION_H
#define HVDLITE_NEGOTIATION_FUSION_H

#include "negotiation/request.h"

/* One collective may move both. */
bool fusion_fits(const struct request *a, const struct request *b);

/* Cuts n tensors, in the order in which they shall go, into batches: batch[i] is the batch of
 * tensor i, batches are numbered from 0 in the order of their first tensor, and the number of
 * batches is returned. A batch has one kind, dtype, codec, op, scales, root and region, and at most
 * `threshold` bytes unless it is a single tensor; threshold 0 fuses nothing. Only allreduces and
 * broadcasts are fused, and no Adasum, whose rule is for one tensor. Later tensors that fit are drawn
 * forward past others that do not, as long as their batch is one of the last FUSION_OPEN with room. */
enum { FUSION_OPEN = 32 };
size_t fusion_plan(const struct request *const *tensors, size_t n, size_t threshold, size_t *batch);

#endif

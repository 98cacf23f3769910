/* Kernels that update weights with their gradients; the table has one row for each rule.
 *
 * g is the gradient times RESCALE, v a state, lr LEARNING_RATE, wd WEIGHT_DECAY, mu MOMENTUM:
 *
 *   SGD            w += -lr wd w - lr clip(g)
 *   SGD momentum   v = mu v - lr wd w - lr clip(g);  w += v
 *   NAG            w += -mu v + (mu + 1) (mu v - lr (clip(g) + wd w));
 *                  v = mu v - lr (clip(g) + wd w), with the new w
 *                  (Sutskever et al., "On the importance of initialization and momentum in deep
 *                  learning", ICML 2013)
 *   Adam           h = clip(g + wd w);  m = beta1 m + (1 - beta1) h;  v = beta2 v + (1 - beta2) h h
 *                  w -= lr m / (sqrt(v) + epsilon); the caller's lr includes the bias correction
 *                  (Kingma and Ba, "Adam", ICLR 2015)
 *
 * MXNet's operators do the same operations in the same order, so the results have the same bits.
 * The compiler vectorizes all loops. */
#ifndef HVDLITE_KERNELS_UPDATE_H
#define HVDLITE_KERNELS_UPDATE_H

#include "base/types.h"

/* Updates weights and states at the indices from `at` to at + n - 1 with the n gradients. */
void update_apply(const hvd_update *u, const float *gradient, size_t at, size_t n);

int update_states(int rule);

#endif

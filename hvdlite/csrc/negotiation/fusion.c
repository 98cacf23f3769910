#include "negotiation/fusion.h"

static bool fusible(const struct request *a, const struct request *b) {
    if (a->kind != b->kind || a->members != b->members || a->dtype != b->dtype) return false;
    if (a->kind == HVD_BROADCAST) return a->root == b->root;
    if (a->kind != HVD_ALLREDUCE || a->op == HVD_ADASUM) return false;
    return a->region == b->region && a->op == b->op && a->prescale == b->prescale &&
           a->postscale == b->postscale && request_same_codec(a, b);
}

size_t fusion_plan(const struct request *const *tensors, size_t n, size_t threshold,
                   size_t *batch) {
    const size_t NONE = (size_t)-1;
    size_t batches = 0;
    for (size_t i = 0; i < n; i++) batch[i] = NONE;
    for (size_t first = 0; first < n; first++) {
        if (batch[first] != NONE) continue;
        size_t bytes = request_bytes(tensors[first]);
        batch[first] = batches;
        for (size_t i = first + 1; i < n && bytes < threshold; i++) {
            if (batch[i] != NONE || !fusible(tensors[first], tensors[i])) continue;
            size_t more = request_bytes(tensors[i]);
            if (more > threshold - bytes) continue;
            bytes += more;
            batch[i] = batches;
        }
        batches++;
    }
    return batches;
}

#include "negotiation/fusion.h"

#include <string.h>

bool fusion_fits(const struct request *a, const struct request *b) {
    if (a->delegated != b->delegated || a->kind != b->kind || a->contributors != b->contributors ||
        a->dtype != b->dtype)
        return false;
    if (a->kind == HVD_BROADCAST) return a->root == b->root;
    if (a->kind != HVD_ALLREDUCE || a->op == HVD_ADASUM) return false;
    return a->region == b->region && a->rule == b->rule && a->op == b->op &&
           a->prescale == b->prescale && a->postscale == b->postscale && request_same_codec(a, b);
}

/* The open batches, which have room for more tensors, the oldest first. */
struct open {
    size_t n;
    struct batch_room {
        size_t batch, first, left; /* number of the batch; its first tensor; bytes of room */
    } of[FUSION_OPEN];
};

static void close_one(struct open *open, size_t i) {
    open->n--;
    memmove(&open->of[i], &open->of[i + 1], (open->n - i) * sizeof *open->of);
}

/* Adds an open batch. If the list is full, first closes the oldest batch, because more tensors did
 * not fit into it than into any other batch. */
static void add_open(struct open *open, struct batch_room room) {
    if (open->n == FUSION_OPEN) close_one(open, 0);
    open->of[open->n++] = room;
}

size_t fusion_plan(const struct fusion_item *tensors, size_t n, size_t threshold, size_t *batch) {
    struct open open = {0};
    size_t batches = 0;
    for (size_t i = 0; i < n; i++) {
        const struct request *request = tensors[i].request;
        size_t bytes = tensors[i].bytes, k = tensors[i].behind ? open.n : 0;
        while (k < open.n && (bytes > open.of[k].left ||
                              !fusion_fits(tensors[open.of[k].first].request, request)))
            k++;
        if (k < open.n) {
            batch[i] = open.of[k].batch;
            open.of[k].left -= bytes;
            if (!open.of[k].left) close_one(&open, k);
            continue;
        }
        batch[i] = batches++;
        if (bytes < threshold && fusion_fits(request, request))
            add_open(&open, (struct batch_room){batch[i], i, threshold - bytes});
    }
    return batches;
}

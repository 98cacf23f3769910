/* The update of weights that exist once on a host, after the allreduce of their gradients.
 *
 * Each rank of the host updates the chunk of the weights that has its number. */
#include "collectives/algorithm.h"
#include "kernels/update.h"

/* Cost for a host: 5 S bytes of memory traffic if the rule has one state; 1 flag. */
static void update_chunk(const struct coll_args *args, struct coll_range chunk) {
    size_t begin = 0;
    for (size_t i = 0; i < args->ntensors; i++) {
        const struct coll_tensor *tensor = &args->tensors[i];
        struct coll_range part = coll_overlap(chunk, begin, tensor->bytes);
        size_t at = part.begin / sizeof(float), n = coll_length(part) / sizeof(float);
        const float *result = (const float *)(const void *)tensor->out + at;
        update_apply(tensor->update, result, tensor->before + at, n);
        begin += tensor->bytes;
    }
}

int coll_update(const struct comm *host, const struct coll_args *args, hvd_error *err) {
    update_chunk(args, coll_chunk(args->bytes, sizeof(float), host->size, host->rank));
    return coll_meet(host, err);
}

/* Update of weights that exist once on a host, by reduced gradients.
 *
 * Each rank of the host updates its chunk, then waits until the others have. Cost for a host: 5 S
 * bytes with one state; 1 flag. */
#include "collectives/coll.h"

#include "kernels/update.h"

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

int coll_meet(const struct comm *host, hvd_error *err) {
    struct window *w = host->window;
    if (host->size == 1) return HVD_OK;
    window_raise(w, WINDOW_STAGED, w->rounds);
    window_raise(w, WINDOW_REDUCED, w->rounds);
    HVD_TRY(comm_wait_flags(host, WINDOW_REDUCED, w->rounds, err));
    window_raise(w, WINDOW_TAKEN, w->rounds++);
    return HVD_OK;
}

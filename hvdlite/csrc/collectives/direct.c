/* Direct allreduce: of tensors in memory that all ranks of the host can read and write.
 *
 * Each rank adds its chunk of the elements from all ranks' memory, in the order of ranks, and
 * writes the sum to the memory of all ranks. Nothing is staged or packed. p = 2:
 *
 *            memory of a            memory of b
 *   before   a0 a1                  b0 b1
 *   after    S0 S1                  S0 S1          rank a has written S0, rank b S1, in both
 *
 * Cost: 2 p S bytes of memory traffic in all, the least possible: every input is read once and
 * every result written once; 2 flags.
 *
 * Tensors with an update keep their memory. Each rank updates the weights of its chunk by the sum,
 * while the first cache has it: with one state (p + 4) S bytes in all, instead of 2 p S and then
 * 5 p S on p copies of the weights. */
#include "collectives/coll.h"

#include "kernels/update.h"

#include <string.h>

enum {
    BLOCK = 4096
}; /* bytes that are added at a time, then copied while the first cache has them */

struct direct {
    const struct coll_args *args;
    int n, self;     /* ranks; this one */
    const char **in; /* [n]: where their block lies */
};

/* Writes the sum of the block at `offset` of every rank's memory to all of them. */
static void add_block(const struct direct *d, size_t offset, size_t bytes) {
    const struct reduce_kernels *k = d->args->reduce;
    char *const *memory = d->args->memory;
    for (int i = 0; i < d->n; i++) d->in[i] = memory[i] + offset;
    reduce_all(k, memory[0] + offset, d->in, d->n, bytes / k->size, d->args->prescale,
               d->args->final);
    for (int i = 1; i < d->n; i++) memcpy(memory[i] + offset, memory[0] + offset, bytes);
}

/* Updates the tensor's weights from `at` on by the sum of the block at `offset` of every rank. */
static void update_block(const struct direct *d, const struct coll_tensor *tensor, size_t at,
                         size_t offset, size_t bytes) {
    const struct reduce_kernels *k = d->args->reduce;
    float sum[BLOCK / sizeof(float)];
    for (int i = 0; i < d->n; i++) d->in[i] = d->args->memory[i] + offset;
    reduce_all(k, sum, d->in, d->n, bytes / k->size, d->args->prescale, d->args->final);
    update_apply(tensor->update, sum, tensor->before + at / k->size, bytes / k->size);
}

/* Adds this rank's chunk of all tensors, as if they lay in a row. */
static void add_chunk(const struct direct *d, struct coll_range chunk) {
    const char *own = d->args->memory[d->self];
    size_t begin = 0;
    for (size_t i = 0; i < d->args->ntensors; i++) {
        const struct coll_tensor *tensor = &d->args->tensors[i];
        size_t offset = (size_t)(tensor->in - own);
        struct coll_range part = coll_overlap(chunk, begin, tensor->bytes);
        for (size_t at = part.begin; at < part.end; at += BLOCK) {
            size_t bytes = part.end - at < BLOCK ? part.end - at : BLOCK;
            if (tensor->update)
                update_block(d, tensor, at, offset + at, bytes);
            else
                add_block(d, offset + at, bytes);
        }
        begin += tensor->bytes;
    }
}

int coll_direct_allreduce(const struct comm *comm, const struct coll_args *args, hvd_error *err) {
    struct window *w = comm->window;
    struct direct d = {.args = args, .n = w->n, .self = w->self};
    void *memory;
    if (!args->bytes) return HVD_OK;
    HVD_TRY(scratch_get(args->scratch, (size_t)w->n * sizeof *d.in, &memory, err));
    d.in = memory;
    window_raise(w, WINDOW_STAGED, w->rounds);
    HVD_TRY(comm_wait_flags(comm, WINDOW_STAGED, w->rounds, err));
    struct coll_range chunk = coll_chunk(args->bytes, args->reduce->size, w->n, w->self);
    add_chunk(&d, chunk);
    comm_count_window(comm, coll_length(chunk) * (size_t)(w->n - 1));
    window_raise(w, WINDOW_REDUCED, w->rounds);
    HVD_TRY(comm_wait_flags(comm, WINDOW_REDUCED, w->rounds, err));
    window_raise(w, WINDOW_TAKEN, w->rounds++);
    return HVD_OK;
}

/* Divides the data of a collective among the ranks: the parts of an allgather, say. */
#include "engine/execute.h"

#include "transport/transport.h"

#include <inttypes.h>
#include <string.h>

/* Appends a part of `rows` rows at offset `end`; returns the part's end. */
static size_t add_part(struct coll_args *args, size_t end, int64_t rows, size_t row_bytes) {
    size_t bytes = (size_t)rows * row_bytes;
    if (bytes > args->longest) args->longest = bytes;
    return end + bytes;
}

static int allgather_parts(struct coll_args *args, struct tensor *tensor, const struct comm *comm,
                           size_t *part_end, hvd_error *err) {
    size_t row_bytes = request_row_bytes(&tensor->request);
    if (tensor->rows[comm->rank] != request_rows(&tensor->request))
        return error_set(err, HVD_INTERNAL,
                         "this rank has %" PRId64 " rows, but the ranks agreed on %" PRId64,
                         request_rows(&tensor->request), tensor->rows[comm->rank]);
    HVD_TRY(tensor_fit_output(tensor, tensor->rows, 1, (size_t)comm->size, err));
    for (int i = 0; i < comm->size; i++)
        part_end[i] = args->bytes = add_part(args, args->bytes, tensor->rows[i], row_bytes);
    return HVD_OK;
}

static void reducescatter_parts(struct coll_args *args, const struct request *r, int size,
                                size_t *in_end) {
    size_t row_bytes = request_row_bytes(r);
    for (int i = 0; i < size; i++)
        in_end[i] = args->bytes =
            add_part(args, args->bytes, request_part_rows(r, i, size), row_bytes);
}

/* Gathers the splits of all ranks. `own`: this rank's splits. */
static int exchange_splits(struct executor *x, const int64_t *own, int64_t *splits,
                           size_t *part_end, hvd_error *err) {
    size_t n = (size_t)x->comm->size, each = n * sizeof *own;
    struct coll_args args = {.kind = HVD_ALLGATHER,
                             .in = own,
                             .data = splits,
                             .bytes = n * each,
                             .longest = each,
                             .part_end = part_end,
                             .scratch = &x->work,
                             .outer = &x->outer};
    for (size_t i = 0; i < n; i++) part_end[i] = (i + 1) * each;
    return coll_run(x->comm, &args, err);
}

static int check_splits(const struct comm *comm, const int64_t *splits, const int64_t *rows,
                        hvd_error *err) {
    const size_t n = (size_t)comm->size;
    for (size_t from = 0; from < n; from++) {
        int64_t left = rows[from];
        for (size_t to = 0; to < n && left >= 0; to++) {
            int64_t one = splits[from * n + to];
            left = one < 0 || one > left ? -1 : left - one;
        }
        if (left < 0)
            return error_set(err, HVD_INTERNAL,
                             "the splits of rank %d do not fit its %" PRId64 " rows",
                             transport_job_rank(comm->transport, (int)from), rows[from]);
    }
    return HVD_OK;
}

/* Sets (*out)[from * n + to] to the number of rows that rank `from` sends to rank `to`. The ranks
 * exchange splits only if a rank has chosen its own; otherwise each rank splits its rows evenly. */
static int find_splits(struct executor *x, const struct tensor *tensor, size_t *part_end,
                       int64_t **out, hvd_error *err) {
    size_t n = (size_t)x->comm->size;
    void *memory;
    HVD_TRY(scratch_get(&x->list, (n * n + n) * sizeof **out, &memory, err));
    int64_t *splits = *out = memory, *own = splits + n * n;
    for (size_t i = 0; i < n * n; i++) splits[i] = tensor->rows[i / n] / (int64_t)n;
    if (!tensor->uneven) return HVD_OK;
    const int64_t *mine = tensor->splits ? tensor->splits : splits + (size_t)x->comm->rank * n;
    memcpy(own, mine, n * sizeof *own);
    HVD_TRY(exchange_splits(x, own, splits, part_end, err));
    return check_splits(x->comm, splits, tensor->rows, err);
}

static int alltoall_parts(struct executor *x, struct coll_args *args, struct tensor *tensor,
                          size_t *in_end, size_t *part_end, hvd_error *err) {
    size_t row_bytes = request_row_bytes(&tensor->request), in = 0, out = 0;
    size_t n = (size_t)x->comm->size, self = (size_t)x->comm->rank;
    int64_t *splits;
    HVD_TRY(find_splits(x, tensor, part_end, &splits, err));
    HVD_TRY(tensor_fit_output(tensor, splits + self, n, n, err));
    for (size_t i = 0; i < n * n; i++)
        args->bytes = add_part(args, args->bytes, splits[i], row_bytes);
    for (size_t i = 0; i < n; i++) {
        in_end[i] = in = in + (size_t)splits[self * n + i] * row_bytes;
        part_end[i] = out = out + (size_t)splits[i * n + self] * row_bytes;
    }
    return HVD_OK;
}

int parts_prepare(struct executor *x, struct tensor *tensor, struct coll_args *args,
                  hvd_error *err) {
    const size_t size = (size_t)x->comm->size;
    void *ends;
    HVD_TRY(scratch_get(&x->fusion, 2 * size * sizeof(size_t), &ends, err));
    size_t *in_end = ends, *part_end = in_end + size;
    args->in = tensor->in;
    args->in_end = in_end;
    args->part_end = part_end;
    if (args->kind == HVD_ALLGATHER) HVD_TRY(allgather_parts(args, tensor, x->comm, part_end, err));
    if (args->kind == HVD_REDUCESCATTER)
        reducescatter_parts(args, &tensor->request, x->comm->size, in_end);
    if (args->kind == HVD_ALLTOALL) HVD_TRY(alltoall_parts(x, args, tensor, in_end, part_end, err));
    args->data = tensor->out;
    args->listed = tensor->listed;
    return HVD_OK;
}

/* Checks that a tensor's splits, update and output fit its request. */
#include "engine/tensors.h"

#include "kernels/update.h"

#include <inttypes.h>
#include <stdlib.h>

static int check_even(const struct request *r, int size, hvd_error *err) {
    if (request_rows(r) % size == 0) return HVD_OK;
    return error_set(err, HVD_INVALID,
                     "tensor '%s': %" PRId64
                     " rows can't be divided evenly among %d ranks: expected "
                     "a multiple of %d, or splits",
                     r->name, request_rows(r), size, size);
}

static int check_splits(const struct tensor *tensor, int size, hvd_error *err) {
    const struct request *r = &tensor->request;
    int64_t left = request_rows(r);
    if (!tensor->splits) return check_even(r, size, err);
    if (tensor->nsplits != (size_t)size)
        return error_set(err, HVD_INVALID,
                         "tensor '%s': expected %d splits, one for each rank, got %zu", r->name,
                         size, tensor->nsplits);
    for (int to = 0; to < size; to++) {
        int64_t rows = tensor->splits[to];
        if (rows < 0 || rows > left)
            return error_set(err, HVD_INVALID,
                             "tensor '%s': splits[%d] is %" PRId64 ": expected 0 to %" PRId64
                             ", the rows that the splits before it have left",
                             r->name, to, rows, left);
        left -= rows;
    }
    return HVD_OK;
}

/* Checks an update. `in` and `out` must be equal, because the result may be written to `in`. */
static int check_update(const struct tensor *tensor, hvd_error *err) {
    const hvd_update *u = &tensor->update;
    if (tensor->request.rule == HVD_RULE_NONE) return HVD_OK;
    bool complete = u->weights && tensor->in == tensor->out;
    for (int i = 0; i < update_states(u->rule); i++) complete &= u->states[i] != NULL;
    return complete ? HVD_OK
                    : error_set(err, HVD_INVALID,
                                "tensor '%s': an update by %s is done in place: pass the input as "
                                "the output, and the addresses of the weights and of %d states",
                                tensor->request.name, rule_name(u->rule), update_states(u->rule));
}

int tensor_check(const struct tensor *tensor, int rank, int size, hvd_error *err) {
    const struct request *r = &tensor->request;
    HVD_TRY(check_update(tensor, err));
    if (r->kind == HVD_ALLTOALL) return check_splits(tensor, size, err);
    int64_t expected = request_part_rows(r, rank, size);
    if (r->kind != HVD_REDUCESCATTER || tensor->out_rows == expected) return HVD_OK;
    return error_set(err, HVD_INVALID,
                     "tensor '%s': the output has room for %" PRId64 " rows: expected %" PRId64,
                     r->name, tensor->out_rows, expected);
}

static size_t aligned(size_t bytes) {
    enum { LINE = 64 };
    return (bytes + LINE - 1) / LINE * LINE;
}

/* Returns the sum of n numbers of rows; -1 if a number is negative or the bytes overflow. */
static int64_t sum_rows(const int64_t *received, size_t stride, size_t n, size_t row_bytes) {
    const int64_t limit = (int64_t)((size_t)INT64_MAX / 2 / (row_bytes ? row_bytes : 1));
    int64_t rows = 0;
    for (size_t i = 0; i < n; i++) {
        if (received[i * stride] < 0 || received[i * stride] > limit - rows) return -1;
        rows += received[i * stride];
    }
    return rows;
}

int tensor_fit_output(struct tensor *tensor, const int64_t *received, size_t stride, size_t n,
                      hvd_error *err) {
    size_t row_bytes = request_row_bytes(&tensor->request), counts = aligned(n * sizeof *received);
    int64_t rows = sum_rows(received, stride, n, row_bytes);
    bool fits =
        tensor->request.delegated || (rows == tensor->out_rows && (tensor->out || !tensor->open));
    if (rows < 0 || (!fits && !tensor->open))
        return error_set(err, HVD_INTERNAL,
                         "the output has room for %" PRId64 " rows, but the ranks send %" PRId64
                         " rows (-1: an invalid number)",
                         tensor->out_rows, rows);
    if (!tensor->open) return HVD_OK;
    size_t bytes = counts + (fits ? 0 : (size_t)rows * row_bytes);
    int64_t *made = tensor->made = aligned_alloc(aligned(1), aligned(bytes));
    if (!made) return error_set(err, HVD_NO_MEMORY, "no memory for an output of %zu bytes", bytes);
    for (size_t i = 0; i < n; i++) made[i] = received[i * stride];
    if (!fits) tensor->out = (char *)made + counts;
    tensor->out_rows = rows;
    return HVD_OK;
}

#include "negotiation/pending.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(offsetof(struct pending, request) + sizeof(struct request) == sizeof(struct pending),
               "struct pending must end with the request: pending_new zeroes all before it");

/* Allocates the struct and its arrays as one block. */
struct pending *pending_new(const struct request *first, int size, const int *job_ranks,
                            double now) {
    struct pending *p;
    size_t n = (size_t)size;
    size_t arrays =
        n * (sizeof *p->other + sizeof *p->why + sizeof *p->rows + sizeof *p->submitted);
    p = malloc(sizeof *p + arrays);
    if (!p) return NULL;
    memset(p, 0, offsetof(struct pending, request));
    memset(p + 1, 0, arrays);
    request_copy(&p->request, first);
    p->size = size;
    p->job_ranks = job_ranks;
    p->since = now;
    p->other = (struct request **)(p + 1);
    p->why = (char **)(p->other + n);
    p->rows = (int64_t *)(p->why + n);
    p->submitted = (bool *)(p->rows + n);
    return p;
}

void pending_free(struct pending *p) {
    if (!p) return;
    for (int i = 0; i < p->size; i++) {
        free(p->other[i]);
        free(p->why[i]);
    }
    free(p);
}

void pending_free_all(struct pending *first) {
    for (struct pending *next; first; first = next) {
        next = first->next;
        pending_free(first);
    }
}

int pending_add(struct pending *p, int rank, const struct request *request, uint64_t id,
                hvd_error *err) {
    if (p->submitted[rank])
        return error_set(err, HVD_INTERNAL, "rank %d requested tensor '%s' twice: report this bug",
                         rank, request->name);
    if (request_conflict(&p->request, request) != FIELD_NONE) {
        p->other[rank] = malloc(sizeof **p->other);
        if (!p->other[rank])
            return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", request->name);
        *p->other[rank] = *request;
    }
    p->failed |= request->failed;
    p->request.uneven |= request->uneven;
    p->request.waited &= request->waited;
    p->conflict |= p->failed || p->other[rank];
    if (p->nsubmitted == 0) p->id = id;
    if (p->nsubmitted == 0) p->direct = request->region != 0;
    p->direct &= request_same_offset(&p->request, request);
    if (p->id != id) p->id = 0;
    p->rows[rank] = request_rows(request);
    p->submitted[rank] = true;
    p->nsubmitted++;
    return HVD_OK;
}

int pending_refused(struct pending *p, int rank, const char *why, hvd_error *err) {
    size_t bytes = strlen(why) + 1;
    p->why[rank] = malloc(bytes);
    if (!p->why[rank])
        return error_set(err, HVD_NO_MEMORY, "no memory for tensor '%s'", p->request.name);
    memcpy(p->why[rank], why, bytes);
    p->refused = true;
    return HVD_OK;
}

/* Returns the request of a rank that has submitted the tensor. */
static struct request request_by(const struct pending *p, int rank) {
    struct request own = p->other[rank] ? *p->other[rank] : p->request;
    if (request_rows_vary(&own) && own.ndim) own.dims[0] = p->rows[rank];
    return own;
}

static int by_priority(const void *a, const void *b) {
    const struct pending *p = *(struct pending *const *)a, *q = *(struct pending *const *)b;
    if (p->request.priority != q->request.priority)
        return p->request.priority > q->request.priority ? -1 : 1;
    return (p->order > q->order) - (p->order < q->order);
}

/* Sorts only if the order is wrong, because gradients usually arrive in the order of priority. */
void pending_sort(struct pending **ready, size_t n) {
    size_t i = 1;
    while (i < n && by_priority(&ready[i - 1], &ready[i]) < 0) i++;
    if (i < n) qsort(ready, n, sizeof(struct pending *), by_priority);
}

static size_t append(char *text, size_t length, size_t used, const char *piece) {
    int more = snprintf(text + used, length - used, "%s", piece);
    size_t end = used + (size_t)more;
    return end < length ? end : length - 1;
}

void ranks_text(const bool *set, bool value, int size, const int *job_ranks, char *text,
                size_t length) {
    int count = 0;
    for (int i = 0; i < size; i++) count += set[i] == value;
    size_t used = append(text, length, 0, count == 1 ? "rank " : "ranks ");
    const char *comma = "";
    for (int i = 0; i < size; i++) {
        if (set[i] != value) continue;
        int last = i;
        while (last + 1 < size && set[last + 1] == value &&
               job_rank(job_ranks, last + 1) == job_rank(job_ranks, last) + 1)
            last++;
        char piece[64];
        snprintf(piece, sizeof piece, last > i ? (last > i + 1 ? "%s%d-%d" : "%s%d, %d") : "%s%d",
                 comma, job_rank(job_ranks, i), job_rank(job_ranks, last));
        used = append(text, length, used, piece);
        comma = ", ";
        i = last;
    }
}

/* Compares each rank's request with the first request. */
enum request_field pending_conflict(const struct pending *p) {
    enum request_field first = FIELD_NONE;
    for (int i = 0; i < p->size; i++) {
        enum request_field field =
            p->other[i] ? request_conflict(&p->request, p->other[i]) : FIELD_NONE;
        if (field != FIELD_NONE && (first == FIELD_NONE || field < first)) first = field;
    }
    return first;
}

int pending_common(const struct pending *p) {
    int common = p->request.grouped;
    for (int i = 0; i < p->size; i++)
        if (p->other[i] && p->other[i]->grouped < common) common = p->other[i]->grouped;
    return common;
}

static void own_text(const struct pending *p, int rank, enum request_field field, char *text,
                     size_t size) {
    struct request own = request_by(p, rank);
    if (field == FIELD_ROOT) own.root = job_rank(p->job_ranks, own.root);
    field_text(&own, field, text, size);
}

static void explain_refused(const struct pending *p, hvd_error *err) {
    *err = (hvd_error){0};
    for (int i = 0; i < p->size; i++) {
        int rank = job_rank(p->job_ranks, i);
        hvd_error one;
        if (!p->why[i]) continue;
        error_set(&one, HVD_INVALID, "rank %d: %s", rank, p->why[i]);
        error_also(err, &one);
        error_blame(err, rank);
    }
}

static int failure_by(const struct pending *p, int rank) {
    return p->submitted[rank] ? request_by(p, rank).failed : HVD_OK;
}

/* If an operator has failed on some ranks, the text does not name ranks that only lack memory. */
static void explain_failed(const struct pending *p, hvd_error *err) {
    char ranks[200] = "some rank";
    bool *failed = calloc((size_t)p->size, 1), short_of_memory = true;
    for (int i = 0; i < p->size; i++)
        short_of_memory &= failure_by(p, i) == HVD_OK || failure_by(p, i) == HVD_NO_MEMORY;
    for (int i = 0; failed && i < p->size; i++) {
        int why = failure_by(p, i);
        failed[i] = why && (why == HVD_NO_MEMORY) == short_of_memory;
    }
    if (failed) ranks_text(failed, true, p->size, p->job_ranks, ranks, sizeof ranks);
    const char *memory = p->request.codec.kind
                             ? "no memory to encode the tensor; start fewer processes on that "
                               "host, or do not compress the tensor"
                             : "no memory for its splits; start fewer processes on that host";
    error_set(err, short_of_memory ? HVD_NO_MEMORY : HVD_FAILED, "tensor '%s': no data from %s: %s",
              p->request.name, ranks,
              short_of_memory ? memory : "an operator failed there; see the operator's error");
    for (int i = 0; failed && i < p->size; i++)
        if (failed[i]) error_blame(err, job_rank(p->job_ranks, i));
    free(failed);
}

static const char LOAD_ALIKE[] =
    "Load the same states on every rank before a step, or broadcast what one rank has loaded: "
    "hvd.broadcast_optimizer_state(), with MXNet hvd.broadcast_trainer_states()";

static const char DIVIDE_ALIKE[] =
    "Pass the same batch size to step() on all ranks: the mean of the ranks' batch sizes, or their "
    "sum with a kvstore or op=Sum, which makes the step that of one process with the joined batch";

static const char CHANGE_ALIKE[] =
    "Change the optimizer's parameters, also whether a parameter needs a gradient, on every rank "
    "in the same step; a rank that has changed a parameter names it in its error";

static const char ALL_ON_GPUS[] =
    "Keep the tensor on a GPU on every rank or on none, or set HVDLITE_GPU=host on every rank";

void pending_explain_conflict(const struct pending *p, hvd_error *err) {
    if (p->failed) {
        (p->refused ? explain_refused : explain_failed)(p, err);
        return;
    }
    enum request_field field = pending_conflict(p);
    char list[700] = "", value[160], other[160];
    size_t used = 0;
    bool *listed = calloc((size_t)p->size, 1), *alike = calloc((size_t)p->size, 1);
    /* stops when the list is full, because p ranks with different values need p^2 comparisons */
    for (int i = 0; listed && alike && i < p->size && used + 1 < sizeof list; i++) {
        if (listed[i] || !p->submitted[i]) continue;
        own_text(p, i, field, value, sizeof value);
        for (int j = 0; j < p->size; j++) {
            own_text(p, j, field, other, sizeof other);
            alike[j] = p->submitted[j] && strcmp(value, other) == 0;
            listed[j] = listed[j] || alike[j];
        }
        char ranks[200], piece[400];
        ranks_text(alike, true, p->size, p->job_ranks, ranks, sizeof ranks);
        snprintf(piece, sizeof piece, "%s%s: %s", used ? "; " : "", ranks, value);
        used = append(list, sizeof list, used, piece);
    }
    free(listed);
    free(alike);
    snprintf(value, sizeof value, "Submit the same %s on every rank", field_name(field));
    const char *remedy = field == FIELD_CHANGES     ? CHANGE_ALIKE
                         : field == FIELD_STATES    ? LOAD_ALIKE
                         : field == FIELD_DIVISOR   ? DIVIDE_ALIKE
                         : field == FIELD_DELEGATED ? ALL_ON_GPUS
                                                    : value;
    error_set(err, HVD_MISMATCH, "tensor '%s': ranks disagree on the %s: %s. %s.", p->request.name,
              field_name(field), list, remedy);
}

void pending_explain_left(const struct pending *p, int first, const char *reason, hvd_error *err) {
    error_set(err, HVD_RANK_LEFT,
              "tensor '%s' can't complete: rank %d left the job (%s) before submitting it",
              p->request.name, job_rank(p->job_ranks, first), reason);
    error_blame(err, job_rank(p->job_ranks, first));
}

void pending_explain_last(const struct pending *p, int rank, const struct pending *last,
                          hvd_error *err) {
    int missing = job_rank(p->job_ranks, rank);
    error_set(err, HVD_MISMATCH,
              "tensor '%s' can't complete: rank %d has reached the %s without submitting this "
              "tensor. Submit the same tensors on every rank before that point.",
              p->request.name, missing, last->request.name);
    error_blame(err, missing);
}

/* The names of the ops whose column `zeros` is true. */
#define IF_true(NAME) NAME ", "
#define IF_false(NAME)
#define IF_ZEROS(OP, NAME, CLASSES, ZEROS) IF_##ZEROS(NAME)

void pending_explain_joined(const struct pending *p, hvd_error *err) {
    char joined[200], call[64] = "the first call";
    if (p->request.delegated != HVD_ASKS)
        snprintf(call, sizeof call, request_reduces(&p->request) ? "%s with op %s" : "%s",
                 kind_name(p->request.kind), op_name(p->request.op));
    ranks_text(p->submitted, false, p->size, p->job_ranks, joined, sizeof joined);
    error_set(err, HVD_MISMATCH,
              "tensor '%s': %s already joined (no more data). A rank that has joined takes part "
              "only in allreduces%s with one of the ops " OPS(IF_ZEROS) "but this is %s%s",
              p->request.name, joined,
              p->request.delegated ? " of tensors in the host's memory" : "", call,
              p->request.delegated ? " of a GPU's tensor. Set HVDLITE_GPU=host on every rank"
              : p->request.kind == HVD_ALLGATHER
                  ? ". With sparse_as_dense=True sparse gradients use an allreduce"
                  : "");
}

void pending_explain_wait(const struct pending *p, size_t more, const struct pending *const *oldest,
                          const bool *silent, double now, char *text, size_t size) {
    double waited = now - p->since;
    char have[200], missing[200], others[50] = " has";
    if (more) snprintf(others, sizeof others, " and %zu more have", more);
    ranks_text(p->submitted, true, p->size, p->job_ranks, have, sizeof have);
    ranks_text(p->submitted, false, p->size, p->job_ranks, missing, sizeof missing);
    int used = snprintf(text, size, "tensor '%s'%s waited for %.*f s: submitted by %s, not by %s",
                        p->request.name, others, waited < 1 ? 2 : 0, waited, have, missing);
    for (int i = 0; i < p->size && used >= 0 && (size_t)used < size; i++)
        if (!p->submitted[i] && silent && silent[i])
            used += snprintf(text + used, size - (size_t)used, " (rank %d does not answer)",
                             job_rank(p->job_ranks, i));
        else if (!p->submitted[i] && oldest[i])
            used += snprintf(text + used, size - (size_t)used, " (rank %d waits for '%s')",
                             job_rank(p->job_ranks, i), oldest[i]->request.name);
}

#include "engine/run_log.h"

#include "base/os.h"

#include <stdlib.h>
#include <string.h>

void run_log_free(struct run_log *log) {
    for (struct batch *b; (b = run_log_take(log));) free(b);
    free(log->open);
    *log = (struct run_log){0};
}

int run_log_add(struct run_log *log, struct batch_piece piece, hvd_error *err) {
    if (log->nopen == log->capacity) {
        size_t capacity = 2 * log->capacity + 16;
        struct batch_piece *open = realloc(log->open, capacity * sizeof *open);
        if (!open)
            return error_set(err, HVD_NO_MEMORY, "no memory for a batch of %zu tensors", capacity);
        log->open = open;
        log->capacity = capacity;
    }
    log->open[log->nopen++] = piece;
    return HVD_OK;
}

int run_log_append(struct run_log *log, double now, hvd_error *err) {
    size_t n = log->nopen;
    if (!n)
        return error_set(err, HVD_INTERNAL, "the coordinator's batch is empty: report this bug");
    struct batch *b = malloc(sizeof *b + n * sizeof *log->open);
    if (!b) return error_set(err, HVD_NO_MEMORY, "no memory for a batch of %zu tensors", n);
    *b = (struct batch){.n = n, .decided = now, .number = ++log->appended};
    memcpy(b->pieces, log->open, n * sizeof *log->open);
    log->nopen = 0;
    *(log->first ? &log->last->next : &log->first) = b;
    log->last = b;
    return HVD_OK;
}

struct batch *run_log_take(struct run_log *log) {
    struct batch *b = log->first;
    if (b) log->first = b->next;
    return b;
}

/* ---- records ---- */

void record_agreed(struct flight *flight, const struct batch *batch) {
    for (size_t i = 0; flight && i < batch->n; i++)
        if (!batch->pieces[i].begin)
            flight_agreed(flight, batch->pieces[i].tensor->flight, batch->number, batch->n,
                          batch->decided);
}

double record_started(struct flight *flight, struct timeline *timeline, const struct batch *batch) {
    if (!flight && !timeline_on(timeline)) return 0;
    double now = clock_now();
    for (size_t i = 0; flight && i < batch->n; i++)
        if (!batch->pieces[i].begin) flight_started(flight, batch->pieces[i].tensor->flight, now);
    return now;
}

static void write_timeline(struct timeline *timeline, const struct batch *batch, double started,
                           double now) {
    struct timeline_times times = {
        .decided = batch->decided, .started = started, .completed = now, .batch = batch->number};
    for (size_t i = 0; i < batch->n; i++) {
        const struct tensor *tensor = batch->pieces[i].tensor;
        /* true: this rank submitted the tensor, and this is the tensor's first piece */
        bool begins = !tensor->zeros && !batch->pieces[i].begin;
        times.later = batch->pieces[i].begin;
        times.submitted = begins ? tensor->submitted : batch->decided;
        timeline_tensor(timeline, &tensor->request, times, batch->n);
    }
}

void record_ended(struct flight *flight, struct timeline *timeline, const struct batch *batch,
                  double started) {
    bool traced = timeline_on(timeline);
    if (started <= 0 || (!flight && !traced)) return;
    double now = clock_now();
    for (size_t i = 0; flight && i < batch->n; i++)
        if (batch_piece_is_last(&batch->pieces[i]))
            flight_ended(flight, batch->pieces[i].tensor->flight, false, now);
    if (traced) write_timeline(timeline, batch, started, now);
}

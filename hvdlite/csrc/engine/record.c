#include "engine/record.h"

#include "base/clock.h"

void record_reported(struct flight *flight, int group, struct tensor *tensor, bool again) {
    tensor->flight = flight_add(flight, &tensor->request, tensor->submitted, group,
                                again ? tensor->node.hash : 0);
}

void record_agreed(struct flight *flight, const struct batch *batch) {
    for (size_t i = 0; flight && i < batch->n; i++)
        if (!batch->pieces[i].begin)
            flight_agreed(flight, batch->pieces[i].tensor->flight, batch->number, batch->n,
                          batch->decided);
}

void record_failed(struct flight *flight, const struct tensor *tensor, double now) {
    flight_ended(flight, tensor->flight, true, now);
}

static struct timeline *if_on(struct timeline *timeline) {
    return timeline && timeline_on(timeline) ? timeline : NULL;
}

double record_started(struct flight *flight, struct timeline *timeline, const struct batch *batch) {
    if (!flight && !if_on(timeline)) return 0;
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
        bool here = !tensor->zeros && !batch->pieces[i].begin; /* it waited for this decision */
        times.later = batch->pieces[i].begin;
        times.submitted = here ? tensor->submitted : batch->decided;
        timeline_tensor(timeline, &tensor->request, times, batch->n);
    }
}

void record_ended(struct flight *flight, struct timeline *timeline, const struct batch *batch,
                  double started) {
    timeline = if_on(timeline);
    if (started <= 0 || (!flight && !timeline)) return;
    double now = clock_now();
    for (size_t i = 0; flight && i < batch->n; i++)
        if (batch_piece_is_last(&batch->pieces[i]))
            flight_ended(flight, batch->pieces[i].tensor->flight, false, now);
    if (timeline) write_timeline(timeline, batch, started, now);
}

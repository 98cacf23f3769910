/* The timeline: when each tensor was submitted, agreed on and moved, as a file for a trace viewer.
 *
 * Only timeline.c writes files. Events follow the Trace Event Format, which chrome://tracing and
 * ui.perfetto.dev read: a tensor's span contains spans of its stages, in microseconds since the
 * start. Any thread. */
#ifndef HVDLITE_ENGINE_TIMELINE_H
#define HVDLITE_ENGINE_TIMELINE_H

#include "base/sync.h"
#include "negotiation/request.h"

#include <stdatomic.h>

struct timeline {
    atomic_bool on;     /* read before anything else, so a timeline that is off costs nothing */
    struct mutex mutex; /* guards the fields below */
    void *file;         /* a FILE; NULL: off */
    int failed;         /* errno of the first write that failed; 0: none */
    char path[4096];
    double origin; /* when the timeline started, in seconds */
    /* seconds by which rank 0's clock is ahead of this rank's; the largest error of that value */
    double clock_offset, clock_error;
    char about[400];  /* the job and the host, as members of a JSON object */
    uint64_t tensors; /* number of tensors written so far, for the ids of spans */
    int rank;
    bool marks_cycles;
};

/* When a tensor reached each stage, in seconds of clock_now. */
struct timeline_times {
    double submitted, decided, started, completed;
    uint64_t batch; /* number of the batch */
    bool later;     /* true: this is not the first piece of the tensor */
};

void timeline_init(struct timeline *t);
void timeline_destroy(struct timeline *t); /* after timeline_stop */
/* Call it in a forked child, whose exit would otherwise write the parent's unwritten bytes a
 * second time. */
void timeline_forked(struct timeline *t);

/* Overwrites the file. Fails when the timeline is on, or the file can't be written. */
int timeline_start(struct timeline *t, const char *path, int rank, bool mark_cycles, double now,
                   hvd_error *err);
/* Ends the file. Fails if a write has failed, as on a full disk. Does nothing if the timeline is
 * off. */
int timeline_stop(struct timeline *t, hvd_error *err);

/* False also for NULL. */
static inline bool timeline_on(struct timeline *t) {
    return t && atomic_load_explicit(&t->on, memory_order_relaxed);
}

/* Sets the clock for this timeline and for later ones, until the job ends. */
void timeline_set_clock(struct timeline *t, double offset, double error, const char *about);

/* fused: tensors in the batch, this one included. */
void timeline_tensor(struct timeline *t, const struct request *r, struct timeline_times times,
                     size_t fused);
/* Writes one span, for work of this rank alone. */
void timeline_note(struct timeline *t, const char *what, double begin, double end);
/* Marks a cycle in which the engine had work, if mark_cycles was set. */
void timeline_cycle(struct timeline *t, double now);

#endif

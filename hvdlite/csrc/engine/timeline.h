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
    atomic_bool on;     /* read first, so that a timeline that is off costs nothing */
    struct mutex mutex; /* guards what follows */
    void *file;         /* a FILE; NULL: off */
    int failed;         /* errno of the first write that failed; 0: none */
    char path[4096];
    double origin; /* when it started, seconds */
    /* seconds that rank 0's clock is ahead; the largest error of that number */
    double clock_offset, clock_error;
    char about[400];  /* the job and the host, as members of a JSON object */
    uint64_t tensors; /* tensors written so far: ids of spans */
    int rank;
    bool marks_cycles;
};

/* When a tensor reached each stage, in seconds of clock_now. */
struct timeline_times {
    double submitted, decided, started, completed;
    uint64_t batch; /* its number */
    bool later;     /* a later piece of the tensor, not its first */
};

void timeline_init(struct timeline *t);
void timeline_destroy(struct timeline *t); /* timeline_stop comes first */
/* In a forked child, whose exit would write the parent's unwritten bytes a second time. */
void timeline_forked(struct timeline *t);

/* Overwrites the file. Fails when the timeline is on, or the file can't be written. */
int timeline_start(struct timeline *t, const char *path, int rank, bool mark_cycles, double now,
                   hvd_error *err);
/* Ends the file. An error if a write failed, as on a full disk. Does nothing when it is off. */
int timeline_stop(struct timeline *t, hvd_error *err);

/* NULL is none, and off. */
static inline bool timeline_on(struct timeline *t) {
    return t && atomic_load_explicit(&t->on, memory_order_relaxed);
}

/* For this timeline and later ones, until the job ends. */
void timeline_set_clock(struct timeline *t, double offset, double error, const char *about);

/* fused: tensors in the batch, this one included. */
void timeline_tensor(struct timeline *t, const struct request *r, struct timeline_times times,
                     size_t fused);
/* Work without other ranks: one span. */
void timeline_note(struct timeline *t, const char *what, double begin, double end);
/* Marks a cycle in which the engine had work, if mark_cycles was set. */
void timeline_cycle(struct timeline *t, double now);

#endif

/* The timeline: a file for a trace viewer, with the times when each tensor was submitted, agreed on
 * and moved.
 *
 * The file has the Trace Event Format, which chrome://tracing and ui.perfetto.dev can read. A
 * tensor's span contains the spans of the tensor's stages, in microseconds since the start of the
 * timeline. Any thread. */
#ifndef HVDLITE_ENGINE_TIMELINE_H
#define HVDLITE_ENGINE_TIMELINE_H

#include "base/os.h"
#include "negotiation/request.h"

#include <stdatomic.h>

struct timeline {
    atomic_bool on;     /* read without the mutex, so that a timeline that is off costs nothing */
    struct mutex mutex; /* guards the fields below */
    void *file;         /* a FILE; NULL: the timeline is off */
    int failed;         /* errno of the first write that failed; 0: none */
    char path[4096];
    double origin;       /* time when the timeline started, in seconds */
    double clock_offset; /* seconds by which rank 0's clock is ahead of this rank's clock */
    double clock_error;  /* the largest possible error of clock_offset, in seconds */
    char about[400];     /* job and host, as members of a JSON object */
    uint64_t tensors;    /* number of tensors written, for the ids of spans */
    int rank;
    bool marks_cycles;
};

/* The times when a tensor reached each stage, in seconds of clock_now. */
struct timeline_times {
    double submitted, decided, started, completed;
    uint64_t batch; /* number of the batch */
    bool later;     /* true: not the first piece of the tensor */
};

void timeline_init(struct timeline *t);
void timeline_destroy(struct timeline *t); /* call timeline_stop first */
/* Call it in a forked child; otherwise the child's exit writes the parent's buffered bytes, too. */
void timeline_forked(struct timeline *t);

/* Overwrites the file. Fails if the timeline is on already, or if the file can't be written. */
int timeline_start(struct timeline *t, const char *path, int rank, bool mark_cycles, double now,
                   hvd_error *err);
/* Ends the file. Fails if a write has failed (full disk). Does nothing if the timeline is off. */
int timeline_stop(struct timeline *t, hvd_error *err);

/* Returns whether the timeline is on; false for NULL. */
static inline bool timeline_on(struct timeline *t) {
    return t && atomic_load_explicit(&t->on, memory_order_relaxed);
}

/* Sets clock_offset, clock_error and `about`, for this and for later timelines of the job. */
void timeline_set_clock(struct timeline *t, double offset, double error, const char *about);

/* Writes a tensor's spans. fused: number of tensors in the batch. */
void timeline_tensor(struct timeline *t, const struct request *r, struct timeline_times times,
                     size_t fused);
/* Writes a span of work that this rank did without other ranks. */
void timeline_note(struct timeline *t, const char *what, double begin, double end);
/* Marks a step in which the engine had work, if timeline_start was called with mark_cycles. */
void timeline_cycle(struct timeline *t, double now);

#endif

#include "negotiation/watch.h"

#include <stdlib.h>

/* What this rank knows of another rank. Times are values of watch.awake. */
struct watched {
    bool needed, warned;
    double since; /* when the rank's last message came, or this rank began to wait for the rank */
    double asked; /* when this rank last sent the rank an ASK, after `since`; 0: it has not */
};

/* Maximum seconds between two looks at the ranks. Chosen, not measured. Must be less than STOPPED;
 * otherwise this rank would assume between two looks that it was stopped. */
static const double LONGEST_LOOK = 0.5;
/* Seconds; a longer pause means that this rank was stopped. Chosen, not measured. If shorter,
 * a busy host finds silence later. If longer, a rank that was stopped blames others sooner. */
static const double STOPPED = 1;

int watch_open(struct watch *w, int size, hvd_error *err) {
    size_t n = (size_t)size;
    *w = (struct watch){.size = size};
    w->of = calloc(n, sizeof *w->of);
    w->silent = calloc(n, sizeof *w->silent);
    if (w->of && w->silent) return HVD_OK;
    watch_close(w);
    return error_set(err, HVD_NO_MEMORY, "no memory to watch %d ranks", size);
}

void watch_close(struct watch *w) {
    free(w->of);
    free(w->silent);
    *w = (struct watch){0};
}

static double interval(const struct watch *w) {
    return w->quarter / 4 < LONGEST_LOOK ? w->quarter / 4 : LONGEST_LOOK;
}

bool watch_looks(struct watch *w, double now) {
    if (w->quarter <= 0 || now < w->next) return false;
    double passed = w->looked > 0 ? now - w->looked : 0;
    w->awake += passed < STOPPED ? passed : STOPPED;
    w->looked = now;
    w->next = now + interval(w);
    return true;
}

double watch_sleep(const struct watch *w, double longest) {
    return w->quarter > 0 && interval(w) < longest ? interval(w) : longest;
}

void watch_heard(struct watch *w, int rank) {
    struct watched *p = &w->of[rank];
    p->since = w->awake;
    p->asked = 0;
    p->warned = false;
    w->silent[rank] = false;
}

double watch_silence(const struct watch *w, int rank) { return w->awake - w->of[rank].since; }

/* A rank is blamed only after it was asked and had time to answer. */
enum watch_finding watch_look(struct watch *w, int rank, bool needed) {
    struct watched *p = &w->of[rank];
    if (needed != p->needed) watch_heard(w, rank);
    p->needed = needed;
    double silence = watch_silence(w, rank);
    if (!needed || silence < w->quarter) return WATCH_FINE;
    bool first = p->asked <= 0, again = w->awake - p->asked >= w->quarter;
    if (!first && again) w->silent[rank] = true;
    if (w->silent[rank] && w->failure > 0 && silence >= w->failure) return WATCH_FAILED;
    if (w->silent[rank] && w->warning > 0 && silence >= w->warning && !p->warned) {
        p->warned = true;
        p->asked = w->awake;
        return WATCH_WARN;
    }
    if (!first && !again) return WATCH_FINE;
    p->asked = w->awake;
    return WATCH_ASK;
}

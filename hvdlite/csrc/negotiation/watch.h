/* The watch: which of the awaited ranks are silent.
 *
 * An engine answers an ASK whatever its script does. So a rank that does not answer is stopped or
 * swapping, or its host is lost. A waiting rank asks after a quarter of the smallest limit, then
 * every quarter. Time counts only while this rank runs: a rank that was stopped itself blames
 * nobody. Pure.
 */
#ifndef HVDLITE_NEGOTIATION_WATCH_H
#define HVDLITE_NEGOTIATION_WATCH_H

#include "base/error.h"

struct watched;

/* A zeroed watch is closed. */
struct watch {
    int size;
    double warning, failure; /* seconds of silence until a warning, until a failure; 0: never */
    double quarter;          /* seconds until a rank is asked; 0: nobody is watched */
    double awake;            /* seconds that this rank has been running */
    double looked, next;     /* the last look; the next look */
    struct watched *of;      /* array of size */
    /* array of size: true if the rank was asked and did not answer within a quarter */
    bool *silent;
};

/* The caller sets the times. */
int watch_open(struct watch *w, int size, hvd_error *err);
void watch_close(struct watch *w);

/* True: it is time to look at the ranks. Call it often. */
bool watch_looks(struct watch *w, double now);
/* How long this rank may sleep, if it waits for others. */
double watch_sleep(const struct watch *w, double longest);

/* What a look at a rank finds. */
enum watch_finding {
    WATCH_FINE,
    WATCH_ASK,   /* the rank must be asked now */
    WATCH_WARN,  /* the rank must be asked and reported; once for each silence */
    WATCH_FAILED /* the rank has been silent too long */
};
/* needed: this rank waits for `rank`. */
enum watch_finding watch_look(struct watch *w, int rank, bool needed);
/* A message came from the rank. */
void watch_heard(struct watch *w, int rank);
double watch_silence(const struct watch *w, int rank); /* seconds since the rank's last message */

#endif

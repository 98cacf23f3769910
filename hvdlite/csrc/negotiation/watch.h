/* The watch: finds silent ranks among the ranks for which this rank waits.
 *
 * An engine answers an ASK (wire.h) whatever its script is doing. So if a rank does not answer, its
 * process is stopped or swapping, or its host is lost. A waiting rank asks after a quarter of the
 * smallest limit, then again after every quarter. Time counts only while this rank runs; otherwise
 * a rank that was stopped would blame other ranks. Pure: the time is an argument. */
#ifndef HVDLITE_NEGOTIATION_WATCH_H
#define HVDLITE_NEGOTIATION_WATCH_H

#include "base/error.h"

struct watched;

/* watch_close accepts a zeroed struct. */
struct watch {
    int size;
    double warning, failure; /* seconds of silence until a warning and until a failure; 0: never */
    double quarter;      /* seconds of silence until a rank gets an ASK; 0: no rank is watched */
    double awake;        /* seconds that this rank has been running */
    double looked, next; /* time of the last look and of the next look */
    struct watched *of;  /* array of size */
    /* array of size: true if the rank got an ASK and has not answered for `quarter` seconds */
    bool *silent;
};

/* Opens the watch; then the caller sets the limits. */
int watch_open(struct watch *w, int size, hvd_error *err);
void watch_close(struct watch *w);

/* Returns whether it is time to look at the ranks. Call it often. */
bool watch_looks(struct watch *w, double now);
/* Returns how long this rank may sleep if it waits for others. */
double watch_sleep(const struct watch *w, double longest);

/* The result of a look at a rank. */
enum watch_finding {
    WATCH_FINE,
    WATCH_ASK,   /* ask the rank now */
    WATCH_WARN,  /* ask the rank, and report that it is silent; once for each silence */
    WATCH_FAILED /* the rank has been silent too long */
};
/* needed: whether this rank waits for `rank`. */
enum watch_finding watch_look(struct watch *w, int rank, bool needed);
/* Records that a message from the rank has arrived. */
void watch_heard(struct watch *w, int rank);
/* Returns the seconds since the rank's last message, or since this rank began to wait for it. */
double watch_silence(const struct watch *w, int rank);

#endif

/* Decides when a send or receive that waits is reported, and when it fails.
 *
 * The coordinator does not know about sends and receives, so each rank checks its own. Pure: the
 * time is an argument. */
#ifndef HVDLITE_NEGOTIATION_STALL_H
#define HVDLITE_NEGOTIATION_STALL_H

#include <stdbool.h>

/* A send or receive that has not completed. */
struct stall_case {
    double submitted; /* when it was submitted, by clock_now */
    bool matched;     /* true: the other rank has submitted the counterpart */
    /* true: an older receive of the same name accepts any rank's tensor, so the next offer matches
     * the older receive */
    bool queued;
    int peer; /* the other rank; < 0: any rank */
};

/* Returns whether the send or receive fails, because it has waited unmatched for more than `limit`
 * seconds. It does not fail while its peer is silent, because the watch reports a silent peer.
 * silent: array of `size`; limit 0: never fails. */
bool stall_fails(const struct stall_case *c, double now, double limit, const bool *silent,
                 int size);

/* Returns whether to report the oldest send or receive: once, when it has waited for `limit`
 * seconds. submitted: when it was submitted. *reported: when the send or receive that was reported
 * last was submitted; 0: none was reported. limit 0: never. */
bool stall_warns(double submitted, double now, double limit, double *reported);

#endif

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
    /* true: the next send of this name goes to an older receive, which accepts sends of any rank */
    bool queued;
    int peer; /* the other rank; < 0: any rank */
};

/* Returns whether the send or receive fails, because it has waited unmatched for more than `limit`
 * seconds. It does not fail while its peer is silent, because the watch reports a silent peer.
 * silent: array of `size`; limit 0: never fails. */
bool stall_fails(const struct stall_case *c, double now, double limit, const bool *silent,
                 int size);

/* Returns whether to report the oldest send or receive, which was submitted at time `submitted`:
 * once, when it has waited for `limit` seconds. *reported: `submitted` of the last send or receive
 * that was reported; 0: none was reported. limit 0: never. */
bool stall_warns(double submitted, double now, double limit, double *reported);

#endif

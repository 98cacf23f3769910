/* Stalls of sends and receives: when one that still waits is reported, and when it fails.
 *
 * The coordinator does not know about sends and receives, so each rank looks at its own. Pure. */
#ifndef HVDLITE_NEGOTIATION_STALL_H
#define HVDLITE_NEGOTIATION_STALL_H

#include <stdbool.h>

/* A send or receive that has not completed. */
struct stall_case {
    double submitted; /* when it was submitted, by clock_now */
    bool matched;     /* true: the other rank has submitted its counterpart */
    /* true: an older receive of the same name accepts any rank's tensor, so the next offer matches
     * the older receive */
    bool queued;
    int peer; /* the other rank; < 0: any rank */
};

/* Returns whether the send or receive fails, because it has waited unmatched for more than `limit`
 * seconds. While a rank that it may wait for is silent, it does not fail: the watch finds that
 * rank. silent: array of `size`; limit 0: never. */
bool stall_fails(const struct stall_case *c, double now, double limit, const bool *silent,
                 int size);

/* Returns whether to report the oldest send or receive, which was submitted at this time: once it
 * has waited for `limit` seconds, and only once. *reported: when the last one that was reported was
 * submitted; 0: none. limit 0: never. */
bool stall_warns(double submitted, double now, double limit, double *reported);

#endif

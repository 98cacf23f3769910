/* Calibration: what a message between hosts costs, measured in some 10 ms when a job starts.
 *
 * One rank of each host exchanges a few messages with those of the next hosts: 1 byte for alpha,
 * then longer and longer ones, until one takes some ms, for beta. All ranks agree on the slowest
 * rank's times, so all of them choose alike. */
#ifndef HVDLITE_COLLECTIVES_CALIBRATE_H
#define HVDLITE_COLLECTIVES_CALIBRATE_H

#include "collectives/coll.h"
#include "transport/layout.h"

/* Collective. On one host nothing is measured, and nothing sent. */
int coll_calibrate(const struct comm *all, struct cost *cost, hvd_error *err);

#endif

/* The cost of a message between two ranks, in seconds, by which collectives choose algorithms.
 *
 * Equal on all ranks, because all ranks must choose the same algorithm. A message of several
 * segments costs less per byte, because a core handles one segment while the next segment is on the
 * link. */
#ifndef HVDLITE_TRANSPORT_COST_H
#define HVDLITE_TRANSPORT_COST_H

enum { COST_FEW = 4, COST_MANY = 8 };

struct cost {
    double alpha; /* seconds of an empty message */
    double first; /* seconds per byte of a message's first segment */
    double next;  /* seconds per byte of the segments from number 2 to number COST_FEW */
    double beta;  /* seconds per byte of the segments after number COST_FEW */
    /* 0 to 1: the part of a segment's cost that does not depend on the segment's length */
    double message;
    /* >= 1: factor for the cost of bytes in algorithms with few steps, which send to distant ranks,
     * and neither add nor copy while they send */
    double far;
};

/* A cost in which every byte costs the same. */
#define COST_OF(a, b, f) {.alpha = (a), .first = (b), .next = (b), .beta = (b), .far = (f)}

/* For messages between ranks of one host: a job measures only messages between hosts. */
static const struct cost COST_ON_A_HOST = COST_OF(5e-6, 0.3e-9, 1);

/* For messages between hosts, if the choice of algorithms must not change from run to run. */
static const struct cost COST_FIXED = COST_OF(100e-6, 10e-9, 1);

#endif

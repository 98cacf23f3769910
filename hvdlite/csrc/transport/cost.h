/* What a message between two ranks of a comm costs: a and b of the algorithms' costs.
 *
 * The same on all ranks, which must choose the same algorithm. */
#ifndef HVDLITE_TRANSPORT_COST_H
#define HVDLITE_TRANSPORT_COST_H

struct cost {
    double alpha; /* seconds a message */
    double beta;  /* seconds a byte */
};

/* Of ranks of one host through MPI, where nothing is measured. */
static const struct cost COST_ON_A_HOST = {5e-6, 0.3e-9};

/* Between hosts, for choices that are the same in every run. */
static const struct cost COST_FIXED = {100e-6, 10e-9};

#endif

/* Requests for tests of layers that move no data. */
#ifndef HVDLITE_REQUESTS_H
#define HVDLITE_REQUESTS_H

#include "check.h"

#include "negotiation/request.h"

/* Returns the request for a float32 sum of shape (n,). */
static inline struct request request_of(const char *name, int64_t n) {
    struct request r = {.kind = HVD_ALLREDUCE,
                        .dtype = HVD_FLOAT32,
                        .ndim = 1,
                        .prescale = 1,
                        .postscale = 1,
                        .dims = {n}};
    snprintf(r.name, sizeof r.name, "%s", name);
    return r;
}

static inline struct request numbered_request(int number, int64_t n) {
    char name[32];
    snprintf(name, sizeof name, "tensor.%d", number);
    return request_of(name, n);
}

static inline struct request gather_of(const char *name, int64_t rows, int64_t columns) {
    struct request r = request_of(name, rows);
    r.kind = HVD_ALLGATHER;
    r.ndim = 2;
    r.dims[1] = columns;
    return r;
}

static inline struct request broadcast_of(const char *name, int64_t n, int32_t root) {
    struct request r = request_of(name, n);
    r.kind = HVD_BROADCAST;
    r.root = root;
    return r;
}

#endif

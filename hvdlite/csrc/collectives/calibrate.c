/* Calibration: what a message between hosts costs (costs.h). */
#include "base/clock.h"
#include "collectives/coll.h"
#include "collectives/costs.h"
#include "transport/layout.h"

#include <math.h>

enum { STEPS = 8, TRIALS = 3, LEAST = 16 * 1024, MOST = 128 * 1024 };

/* Such a message tells enough: longer ones would only take longer. */
static const double ENOUGH = 4e-3;

/* In an algorithm a step also takes the additions, and a look for messages of the negotiation. The
 * steps of a tiny allreduce, measured instead, chose worse in simulated clusters: docs/scaling.md. */
static const double LEAST_ALPHA = 50e-6;

/* The largest value of any rank, of each number. */
static int agree(const struct comm *comm, void *numbers, size_t bytes, struct scratch *scratch,
                 hvd_error *err) {
    struct coll_args args = {.kind = HVD_ALLREDUCE,
                             .data = numbers,
                             .bytes = bytes,
                             .reduce = reduce_kernels(HVD_FLOAT64, HVD_MAX),
                             .prescale = 1,
                             .final = {1, 1},
                             .scratch = scratch};
    return comm->size > 1 ? coll_doubling(comm, &args, err) : HVD_OK;
}

/* Of one of n exchanges with the ranks that are so far away, the longest of all ranks. */
static int timed(const struct comm *comm, int distance, char *memory, size_t bytes, int n,
                 double *seconds, struct scratch *scratch, hvd_error *err) {
    int p = comm->size;
    struct coll_exchange x = {.out = memory,
                              .in = memory + MOST,
                              .out_bytes = bytes,
                              .in_bytes = bytes,
                              .to = (comm->rank + distance) % p,
                              .from = (comm->rank + p - distance) % p};
    double begin = clock_now();
    for (int i = 0; i < n; i++) HVD_TRY(coll_exchange(comm, x, err));
    *seconds = (clock_now() - begin) / n;
    return agree(comm, seconds, sizeof *seconds, scratch, err);
}

/* One after the other, as the steps of an algorithm: so the times to wake up count, too. */
static int measure_alpha(const struct comm *comm, char *memory, double *alpha,
                         struct scratch *scratch, hvd_error *err) {
    double seconds;
    HVD_TRY(timed(comm, 1, memory, 1, 1, &seconds, scratch, err)); /* connects */
    HVD_TRY(timed(comm, 1, memory, 1, STEPS, alpha, scratch, err));
    for (int i = 1; i < TRIALS; i++) {
        HVD_TRY(timed(comm, 1, memory, 1, STEPS, &seconds, scratch, err));
        if (seconds < *alpha) *alpha = seconds;
    }
    return HVD_OK;
}

/* All send as far as the first steps of the algorithms in few steps do. */
static int measure_far(const struct comm *comm, char *memory, size_t bytes, struct cost *cost,
                       struct scratch *scratch, hvd_error *err) {
    enum { FAR_TRIALS = 2 };
    int distance = comm->size / 2;
    double seconds, least = HUGE_VAL;
    HVD_TRY(timed(comm, distance, memory, 1, 1, &seconds, scratch, err)); /* connects */
    for (int i = 0; i < FAR_TRIALS; i++) {
        HVD_TRY(timed(comm, distance, memory, bytes, 1, &seconds, scratch, err));
        if (seconds < least) least = seconds;
    }
    cost->far = fmax((least - cost->alpha) / (double)bytes, cost->beta);
    return HVD_OK;
}

static int measure(const struct comm *comm, char *memory, struct cost *cost,
                   struct scratch *scratch, hvd_error *err) {
    double seconds = 0;
    size_t bytes = LEAST / 2;
    HVD_TRY(measure_alpha(comm, memory, &cost->alpha, scratch, err));
    while (seconds < ENOUGH && bytes < MOST) {
        bytes *= 2;
        HVD_TRY(timed(comm, 1, memory, bytes, 1, &seconds, scratch, err));
    }
    double moving = seconds - cost->alpha, least = seconds / 10; /* if alpha was disturbed */
    cost->beta = (moving > least ? moving : least) / (double)bytes;
    HVD_TRY(measure_far(comm, memory, bytes, cost, scratch, err));
    if (cost->alpha < LEAST_ALPHA) cost->alpha = LEAST_ALPHA;
    return HVD_OK;
}

int coll_calibrate(const struct comm *all, struct cost *cost, hvd_error *err) {
    const struct layout *layout = all->layout;
    char memory[2 * MOST] = {0}; /* not allocated: a rank without memory would leave the others */
    struct scratch scratch = {0};
    *cost = COST_ON_A_HOST;
    if (all->hosts == 1) return HVD_OK;
    *cost = (struct cost){0};
    int code = HVD_OK;
    if (layout->local_of[all->rank] == 0)
        code = measure(&layout->lane, memory, cost, &scratch, err);
    if (!code) code = agree(all, cost, sizeof *cost, &scratch, err);
    scratch_free(&scratch);
    return code;
}

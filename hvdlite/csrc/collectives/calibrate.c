/* Calibration: what a message between hosts costs (costs.h). */
#include "base/clock.h"
#include "collectives/coll.h"
#include "collectives/costs.h"
#include "transport/layout.h"

#include <math.h>

enum { STEPS = 8, TRIALS = 3, LEAST = 16 * 1024, MOST = 128 * 1024 };

/* Such a message tells enough: longer ones would only take longer. */
static const double ENOUGH = 4e-3;

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

struct trial {
    const struct comm *comm;
    char *memory;
    struct scratch *scratch;
};

/* Of one of n exchanges with the ranks that are so far away, the longest of all ranks. */
static int timed(const struct trial *t, int distance, size_t bytes, int n, bool adds,
                 double *seconds, hvd_error *err) {
    const struct reduce_kernels *sum = reduce_kernels(HVD_FLOAT32, HVD_SUM);
    int p = t->comm->size, rank = t->comm->rank;
    struct coll_exchange x = {.out = t->memory,
                              .in = t->memory + MOST,
                              .out_bytes = bytes,
                              .in_bytes = bytes,
                              .to = (rank + distance) % p,
                              .from = (rank + p - distance) % p};
    double begin = clock_now();
    for (int i = 0; i < n; i++) {
        HVD_TRY(coll_exchange(t->comm, x, err));
        if (adds) sum->combine(t->memory, x.in, bytes / sum->size);
    }
    *seconds = (clock_now() - begin) / n;
    return agree(t->comm, seconds, sizeof *seconds, t->scratch, err);
}

static int least_of(const struct trial *t, int distance, size_t bytes, int n, bool adds,
                    double *least, hvd_error *err) {
    double seconds;
    HVD_TRY(timed(t, distance, 1, 1, false, &seconds, err)); /* connects */
    *least = HUGE_VAL;
    for (int i = 0; i < TRIALS; i++) {
        HVD_TRY(timed(t, distance, bytes, n, adds, &seconds, err));
        if (seconds < *least) *least = seconds;
    }
    return HVD_OK;
}

/* All send half as far in each step, and half as much, as the circulant does, and add. */
static int measure_far(const struct trial *t, size_t bytes, struct cost *cost, hvd_error *err) {
    double moving = 0, moved = 0, seconds;
    for (int most = t->comm->size / 2, d = most; d > 0; d /= 2) {
        size_t part = bytes / (size_t)most * (size_t)d;
        HVD_TRY(least_of(t, d, part, 1, true, &seconds, err));
        moving += seconds - cost->alpha;
        moved += (double)part;
    }
    cost->far = fmax(moving / moved, cost->beta);
    return HVD_OK;
}

/* Alpha by several messages, one after the other, as the steps of an algorithm: so the times to
 * wake up count, too. */
static int measure(const struct trial *t, struct cost *cost, hvd_error *err) {
    double seconds = 0;
    size_t bytes = LEAST / 2;
    HVD_TRY(least_of(t, 1, 1, STEPS, false, &cost->alpha, err));
    while (seconds < ENOUGH && bytes < MOST) {
        bytes *= 2;
        HVD_TRY(timed(t, 1, bytes, 1, false, &seconds, err));
    }
    double moving = seconds - cost->alpha, least = seconds / 10; /* if alpha was disturbed */
    cost->beta = (moving > least ? moving : least) / (double)bytes;
    return measure_far(t, bytes, cost, err);
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
        code = measure(&(struct trial){&layout->lane, memory, &scratch}, cost, err);
    if (!code) code = agree(all, cost, sizeof *cost, &scratch, err);
    scratch_free(&scratch);
    return code;
}

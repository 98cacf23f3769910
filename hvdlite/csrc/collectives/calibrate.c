/* When a job starts, calibration measures the cost of a message between hosts (costs.h). */
#include "base/os.h"
#include "collectives/algorithm.h"
#include "collectives/costs.h"
#include "shm/shmem.h"
#include "transport/comm.h"

#include <math.h>

/* STEPS: number of messages in the trial that measures alpha. TRIALS: how often a short trial runs.
 * With larger numbers, the measured costs vary less, but the start takes longer. MEMORY: bytes of
 * the message, the sums, and the segments in flight. */
enum { STEPS = 8, TRIALS = 3, MEMORY = (2 + COST_MANY) * PACE_SEGMENT };

/* Seconds; chosen, not measured, so that all trials take about 10 ms. A trial that is expected to
 * take longer than ENOUGH is left out; a trial that has taken LONG is not repeated. */
static const double ENOUGH = 4e-3, LONG = 20e-3;

/* A trial: each rank sends messages to the rank at `distance`, and receives as many messages. */
struct trial {
    const struct comm *comm;
    char *memory; /* contains the message, the sums, and room for the messages in flight */
    struct scratch *scratch;
    int distance;
    size_t bytes, segment, depth;
    bool adds;
};

static struct coll_exchange item_of(const void *arg, size_t i) {
    const struct trial *t = arg;
    int p = t->comm->size, rank = t->comm->rank;
    size_t length = coll_length(coll_segment((struct coll_range){0, t->bytes}, t->segment, i));
    return (struct coll_exchange){.out = t->memory,
                                  .in = t->memory + 2 * PACE_SEGMENT + i % t->depth * t->segment,
                                  .out_bytes = length,
                                  .in_bytes = length,
                                  .to = (rank + t->distance) % p,
                                  .from = (rank + p - t->distance) % p};
}

static int add(const void *arg, size_t i, hvd_error *err) {
    const struct trial *t = arg;
    const struct reduce_kernels *sum = reduce_kernels(HVD_FLOAT32, HVD_SUM);
    struct coll_exchange x = item_of(arg, i);
    size_t n = t->adds ? x.in_bytes / sum->size : 0;
    (void)err;
    sum->combine(t->memory + PACE_SEGMENT, x.in, n);
    sum->widen(t->memory + PACE_SEGMENT, x.in, n, 1);
    return HVD_OK;
}

/* Runs the trial; *seconds is the time of the slowest rank. */
static int timed(const struct trial *t, double *seconds, hvd_error *err) {
    struct coll_pipeline p = {.items = coll_segments(t->bytes, t->segment),
                              .item = item_of,
                              .received = add,
                              .arg = t,
                              .depth = t->depth,
                              .send_ahead = t->depth};
    double begin = clock_now();
    HVD_TRY(coll_pipeline(t->comm, &p, err));
    *seconds = clock_now() - begin;
    return coll_max(t->comm, seconds, sizeof *seconds, t->scratch, err);
}

/* Measures the seconds of a trial minus the seconds of a trial of one byte. Both trials include
 * waits for late ranks; the subtraction removes these waits. Takes the minimum of several trials; a
 * long trial runs once. */
static int timed_beyond_one(struct trial t, double *seconds, hvd_error *err) {
    struct trial one = t;
    double all, least = HUGE_VAL, first, least_first = HUGE_VAL;
    one.bytes = 1;
    HVD_TRY(timed(&one, &first, err)); /* not counted: it opens the connections */
    for (int i = 0; i < TRIALS && (i == 0 || least < LONG); i++) {
        HVD_TRY(timed(&one, &first, err));
        HVD_TRY(timed(&t, &all, err));
        least_first = fmin(least_first, first);
        least = fmin(least, all);
    }
    /* at least a tenth of `least`, because other work may have slowed the trials of one byte */
    *seconds = fmax(least - least_first, least / 10);
    return HVD_OK;
}

/* Sends several messages one after another, like an algorithm's steps, so that the time includes
 * wake-ups. */
static int measure_alpha(struct trial t, struct cost *cost, hvd_error *err) {
    t.bytes = STEPS;
    t.segment = t.depth = 1;
    HVD_TRY(timed_beyond_one(t, &cost->alpha, err));
    cost->alpha /= STEPS - 1;
    return HVD_OK;
}

/* Sends more and more segments until a trial takes long. *longest: the number of bytes of the last
 * trial. */
static int measure_bytes(struct trial t, struct cost *cost, size_t *longest, hvd_error *err) {
    static const size_t SEGMENTS[] = {1, COST_FEW, COST_MANY};
    double *byte[] = {&cost->first, &cost->next, &cost->beta}, last = 0, seconds;
    *longest = 0;
    for (int i = 0; i < 3; i++) {
        t.depth = SEGMENTS[i];
        t.bytes = t.depth * t.segment;
        if (i) *byte[i] = *byte[i - 1];
        if (i && last / (double)*longest * (double)t.bytes > ENOUGH) continue;
        HVD_TRY(timed_beyond_one(t, &seconds, err));
        *byte[i] = fmax(seconds - last, seconds / 10) / (double)(t.bytes - *longest);
        last = seconds;
        *longest = t.bytes;
    }
    if (*longest < COST_MANY * t.segment) return HVD_OK;
    double whole = cost->beta * (double)t.segment;
    t.segment /= 2;
    t.depth *= 2;
    HVD_TRY(timed_beyond_one(t, &seconds, err));
    cost->message = fmin(fmax((seconds - last) / COST_MANY / whole, 0), 1);
    return HVD_OK;
}

/* Sends and adds like circulant.c: from step to step, all ranks halve the bytes that they send and
 * the distance, the difference between the numbers of receiver and sender. */
static int measure_far(struct trial t, size_t bytes, struct cost *cost, hvd_error *err) {
    double far = 0, nearby = 0, seconds;
    t.adds = true;
    for (int most = t.comm->size / 2, d = most; d > 0; d /= 2) {
        t.distance = d;
        t.bytes = bytes / (size_t)most * (size_t)d;
        HVD_TRY(timed_beyond_one(t, &seconds, err));
        far += seconds;
        nearby += coll_bytes_seconds(*cost, t.segment, (double)t.bytes);
    }
    cost->far = fmax(far / nearby, 1);
    return HVD_OK;
}

static int measure(const struct comm *comm, struct cost *cost, void *memory,
                   struct scratch *scratch, hvd_error *err) {
    struct trial t = {.comm = comm,
                      .memory = memory,
                      .scratch = scratch,
                      .distance = 1,
                      .segment = PACE_SEGMENT,
                      .depth = COST_MANY};
    size_t longest;
    HVD_TRY(measure_alpha(t, cost, err));
    HVD_TRY(measure_bytes(t, cost, &longest, err));
    return measure_far(t, longest, cost, err);
}

int coll_calibrate(const struct comm *all, struct cost *cost, hvd_error *err) {
    const struct layout *layout = all->layout;
    bool measures = layout->local_of[all->rank] == 0;
    struct scratch scratch = {0};
    void *memory = NULL;
    hvd_error ignored;
    *cost = COST_ON_A_HOST;
    if (all->hosts == 1) return HVD_OK;
    /* if one rank has no memory, no rank measures, because the others would wait for this rank */
    double lacks = measures && shmem_map_private(&memory, MEMORY, &ignored);
    int code = coll_max(all, &lacks, sizeof lacks, &scratch, err);
    *cost = lacks > 0 ? COST_FIXED : (struct cost){.far = 1};
    if (!code && measures && lacks == 0) code = measure(&layout->lane, cost, memory, &scratch, err);
    if (!code) code = coll_max(all, cost, sizeof *cost, &scratch, err);
    scratch_free(&scratch);
    shmem_close(memory, MEMORY);
    return code;
}

/* The state of the simulated job, which job.c runs and print.c prints. */
#ifndef HVDLITE_SIM_JOB_H
#define HVDLITE_SIM_JOB_H

#include "collectives/costs.h"
#include "engine/engine.h"
#include "sim.h"

#include <simgrid/actor.h>

enum { MOST_STEPS = 256 };

/* The settings (key=value) and their defaults; all are numbers. */
/* clang-format off */
#define SETTINGS(ROW) \
    ROW(hosts, 2) ROW(ranks, 1) ROW(steps, 5) ROW(warm, 2) ROW(meet, 1) ROW(compute, 0) \
    ROW(forward, 1.0 / 3) ROW(fifo, 0) ROW(latency, 0) ROW(message, 0) ROW(byte, 0) \
    ROW(memory_byte, 0) ROW(call, 0) ROW(burst, 0) ROW(rate, 0) ROW(algorithm, -1) ROW(ahead, -1) \
    ROW(fusion, -1) ROW(yield, 300e-6) ROW(dead_rank, -1) ROW(dead_at, 0) ROW(slow_host, -1) \
    ROW(slow, 1) ROW(wake, 0) ROW(servers, 0) ROW(apart, 0)
/* clang-format on */

#define FIELD(name, value) double name;
extern struct settings {
    SETTINGS(FIELD)
} set;

struct program {
    int rank;
    struct mutex mutex;
    struct engine *engine;
    bool done[MOST_TENSORS];
    struct tensor tensors[MOST_TENSORS];
    double began[MOST_STEPS], submitted[MOST_STEPS], front[MOST_STEPS], ended[MOST_STEPS];
    hvd_error error; /* how the rank ended */
};

extern struct job {
    struct sim_network *network;
    struct servers servers; /* used if set.servers > 0 */
    struct program *programs;
    sg_actor_t *actors; /* by rank */
    size_t elements[MOST_TENSORS];
    double share[MOST_TENSORS];
    int n, size;
    char *memory; /* memory of all tensors of all ranks */
    struct timeline timeline;
    struct cost cost;
    /* algorithm chosen for the last allreduce by messages, unless one is forced */
    enum coll_cheap chosen;
    size_t depth;
    char choices[200];
    /* by rank: the counts at the beginning and at the end of the measured steps */
    struct sim_counts *before, *after;
    struct mutex meeting;
    int met, meetings;
} job;

void print_all(void);

#endif

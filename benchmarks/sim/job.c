/* The simulated job: each rank's program trains, and the core sums the gradients.
 *
 *     build/sim/job PLATFORM.xml TENSORS key=value ... [--cfg=...]
 *
 * The file TENSORS has the number of elements and the share of the compute time of each tensor, in
 * the order of the layers. A step waits for a tensor when forward needs it, and submits it when
 * backward has computed it. Prints JSON. benchmarks/sim/__init__.py has the keys. */
#include "job.h"
#include "base/os.h"
#include "collectives/coll.h"

#include <math.h>
#include <simgrid/actor.h>
#include <simgrid/engine.h>
#include <simgrid/host.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { APP_STACK = 1 << 20 };

#define DEFAULT(name, value) .name = value,
struct settings set = {SETTINGS(DEFAULT)};
struct job job;

enum coll_cheap __wrap_coll_cheapest(const struct comm *comm, const struct reduce_kernels *kernels,
                                     size_t bytes);
enum coll_cheap __real_coll_cheapest(const struct comm *comm, const struct reduce_kernels *kernels,
                                     size_t bytes);
enum coll_cheap __wrap_coll_cheapest(const struct comm *comm, const struct reduce_kernels *kernels,
                                     size_t bytes) {
    job.chosen = __real_coll_cheapest(comm, kernels, bytes);
    return set.algorithm < 0 ? job.chosen : (enum coll_cheap)set.algorithm;
}

static int fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}
/* ---- a rank's program ---- */

/* A barrier of all ranks that costs no simulated time. */
static void meet(void) {
    mutex_lock(&job.meeting);
    int meeting = job.meetings;
    if (++job.met == job.size) {
        job.met = 0;
        job.meetings++;
        mutex_notify(&job.meeting);
    }
    while (meeting == job.meetings) mutex_wait(&job.meeting, 1e9);
    mutex_unlock(&job.meeting);
}

static void completed(void *arg, const hvd_error *error) {
    bool *done = arg;
    size_t at = (size_t)((char *)done - (char *)job.programs);
    struct program *p = &job.programs[at / sizeof *p];
    mutex_lock(&p->mutex);
    if (error && !p->error.code) p->error = *error;
    *done = true;
    mutex_notify(&p->mutex);
    mutex_unlock(&p->mutex);
}

static void pulled(int worker, int tensor) { completed(&job.programs[worker].done[tensor], NULL); }

static void await(struct program *p, int k) {
    mutex_lock(&p->mutex);
    bool sleeps = !p->done[k];
    while (!p->done[k]) mutex_wait(&p->mutex, 1e9);
    mutex_unlock(&p->mutex);
    if (sleeps) sim_work(set.wake);
}

/* Computes for `seconds` and returns 0; returns too short `seconds` for the next call instead. */
static double compute(const struct program *p, double seconds) {
    static const double LEAST = 10e-6;
    if (seconds < LEAST) return seconds;
    bool slow = p->rank / (int)set.ranks == (int)set.slow_host;
    sg_actor_sleep_for(seconds * (slow ? set.slow : 1));
    return 0;
}

static void submit_to_engine(struct program *p, int k) {
    struct tensor *t = &p->tensors[k];
    char *data = job.memory;
    for (int i = 0; i < k; i++) data += job.elements[i] * sizeof(float);
    *t = (struct tensor){.in = data, .out = data, .complete = completed, .arg = &p->done[k]};
    t->request = (struct request){.kind = HVD_ALLREDUCE,
                                  .dtype = HVD_FLOAT32,
                                  .op = HVD_SUM,
                                  .ndim = 1,
                                  .prescale = 1,
                                  .postscale = 1,
                                  .priority = set.fifo ? 0 : -k,
                                  .dims = {(int64_t)job.elements[k]}};
    snprintf(t->request.name, sizeof t->request.name, "gradient.%d", k);
    hvd_error err;
    if (!engine_submit(p->engine, t, &err)) return;
    if (!p->error.code) p->error = err;
    p->done[k] = true;
}

static void submit(struct program *p, int k) {
    p->done[k] = false;
    sim_work(set.call);
    if (set.servers)
        servers_push(&job.servers, p->rank, k);
    else
        submit_to_engine(p, k);
}

static void step(struct program *p, int s) {
    double owed = 0;
    for (int k = 0; k < job.n && set.forward > 0; k++) {
        await(p, k);
        owed = compute(p, owed + job.share[k] * set.compute * set.forward);
    }
    for (int k = job.n - 1; k >= 0; k--) {
        owed = compute(p, owed + job.share[k] * set.compute * (1 - set.forward));
        submit(p, k);
    }
    p->submitted[s] = clock_now();
    for (int k = 0; k < job.n && set.meet; k++) {
        await(p, k);
        if (k == 0) p->front[s] = clock_now();
    }
}

static void train(struct program *p) {
    int rank = set.servers ? servers_rank_of_worker(&job.servers, p->rank) : p->rank;
    const struct sim_counts *counts = sim_network_counts(job.network, rank);
    for (int k = 0; k < job.n; k++) p->done[k] = true;
    for (int s = 0; s < (int)set.steps && !p->error.code; s++) {
        if (set.meet) meet();
        if (s == (int)set.warm) job.before[p->rank] = *counts;
        p->began[s] = clock_now();
        step(p, s);
        p->ended[s] = clock_now();
    }
    for (int k = 0; k < job.n; k++) await(p, k);
    if (set.meet && !p->error.code) meet();
    job.after[p->rank] = *counts;
}

static void prepare(struct program *p, struct transport *t) {
    hvd_error err;
    t->patience.policy = (struct wait_policy){.yield = set.yield};
    if (coll_calibrate(&t->all, &t->cost, &err)) fail("calibrate", err.text);
    t->pace.depth = coll_depth(t->cost, t->pace.segment);
    struct engine_config config = {.options = OPTIONS_DEFAULT, .log = {.level = LOG_OFF}};
    if (set.ahead >= 0) config.options.bytes_ahead = (size_t)set.ahead;
    if (set.fusion >= 0) config.options.fusion_bytes = (size_t)set.fusion;
    if (p->rank == 0) {
        config.timeline = &job.timeline;
        job.cost = t->cost;
        job.depth = t->pace.depth;
        coll_choices_text(t->layout.hosts > 1 ? &t->layout.lane : &t->all, job.choices,
                          sizeof job.choices);
    }
    if (engine_start(&p->engine, t, &config, &err)) fail("start", err.text);
}

static void run(int argc, char **argv) {
    (void)argc, (void)argv;
    struct program *p = sg_actor_self_get_data();
    mutex_init(&p->mutex);
    if (set.servers) {
        train(p);
        return;
    }
    prepare(p, sim_network_rank(job.network, p->rank));
    train(p);
    engine_leave(p->engine, "done");
    while (!engine_ended(p->engine, 1)) {
    }
    engine_stop(p->engine);
}

/* ---- a rank's death, which all others notice by its missing signs of life ---- */

static void die(int argc, char **argv) {
    static const double NOTICED = 1e-3;
    (void)argc, (void)argv;
    sg_actor_sleep_until(set.dead_at);
    int dead = (int)set.dead_rank;
    sim_end(job.actors[dead]);
    sg_actor_sleep_for(NOTICED);
    for (int r = 0; r < job.size; r++)
        if (r != dead) transport_note_death(sim_network_rank(job.network, r), dead, FATE_DIED);
}

/* ---- the command ---- */

static void read_tensors(const char *path) {
    FILE *file = fopen(path, "r");
    size_t all = 0;
    if (!file) fail(path, "can't be read");
    while (job.n < MOST_TENSORS &&
           fscanf(file, "%zu %lf", &job.elements[job.n], &job.share[job.n]) == 2)
        all += job.elements[job.n++];
    size_t more;
    if (fscanf(file, "%zu", &more) == 1) fail(path, "has too many tensors");
    fclose(file);
    if (!job.n) fail(path, "has no tensors");
    job.memory = sim_memory(all * sizeof(float));
}

static void read_setting(const char *text) {
    const char *equals = strchr(text, '=');
    hvd_error err;
    int known = 0;
    if (equals && strncmp(text, "timeline", 8) == 0) {
        if (timeline_start(&job.timeline, equals + 1, 0, false, 1, &err)) fail(text, err.text);
        return;
    }
#define READ(name, value)                                                                          \
    if (equals && strncmp(text, #name "=", sizeof #name) == 0)                                     \
        set.name = atof(equals + 1), known = 1;
    SETTINGS(READ)
#undef READ
    if (!known) fail(text, "is no setting");
}

static void start_program(int rank) {
    char name[32];
    snprintf(name, sizeof name, "h%d", rank / (int)set.ranks);
    sg_host_t host = sg_host_by_name(name);
    if (!host) fail(name, "is not in the platform");
    job.programs[rank].rank = rank;
    job.actors[rank] = sg_actor_init("program", host);
    sg_actor_set_data(job.actors[rank], &job.programs[rank]);
    sg_actor_set_stacksize(job.actors[rank], APP_STACK);
    sg_actor_start(job.actors[rank], run, 0, NULL);
}

static void start_network(const struct sim_costs *costs) {
    bool apart = set.apart != 0;
    int servers = (int)set.servers, hosts = (int)set.hosts + (apart ? servers : 0);
    int ranks = servers ? (apart ? 1 : 2) : (int)set.ranks;
    job.network = sim_network_new(hosts, ranks, costs);
    job.servers = (struct servers){job.size, servers, apart, job.network, job.elements, pulled};
    if (job.network && servers) servers_start(&job.servers);
}

static void start_all(void) {
    const struct sim_costs costs = {set.latency,     set.message, set.byte,  set.wake,
                                    set.memory_byte, set.call,    set.burst, set.rate};
    job.size = (int)set.hosts * (int)set.ranks;
    size_t size = (size_t)job.size;
    start_network(&costs);
    job.programs = calloc(size, sizeof *job.programs);
    job.actors = calloc(size, sizeof(sg_actor_t));
    job.before = calloc(2 * size, sizeof *job.before);
    job.after = job.before + size;
    if (!job.network || !job.programs || !job.actors || !job.before) fail("start", "no memory");
    mutex_init(&job.meeting);
    for (int r = 0; r < job.size; r++) start_program(r);
    if (set.dead_rank < 0) return;
    sg_actor_t killer = sg_actor_init("killer", sg_host_by_name("h0"));
    sg_actor_start(killer, die, 0, NULL);
}

int main(int argc, char **argv) {
    hvd_error err;
    simgrid_init(&argc, argv);
    if (argc < 3) fail("usage", "job PLATFORM.xml TENSORS key=value ...");
    timeline_init(&job.timeline);
    simgrid_load_platform(argv[1]);
    read_tensors(argv[2]);
    for (int i = 3; i < argc; i++) read_setting(argv[i]);
    if (set.steps > MOST_STEPS) fail("steps", "are too many");
    start_all();
    simgrid_run();
    if (timeline_stop(&job.timeline, &err)) fail("timeline", err.text);
    print_all();
    return 0;
}

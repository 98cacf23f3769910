#include "job/job.h"

#include "base/os.h"
#include "collectives/algorithm.h"
#include "collectives/costs.h"
#include "shm/helpers.h"
#include "shm/window.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the environment ---- */

static int read_log_level(enum log_level *level, hvd_error *err) {
    const char *text = env_text("LOG_LEVEL");
    *level = text ? log_parse(text) : LOG_WARNING;
    if (*level != LOG_UNKNOWN) return HVD_OK;
    return env_invalid("LOG_LEVEL", "trace, debug, info, warning, error, fatal or off", err);
}

/* Sets how waits spin and yield. Two threads on a 2-core virtual machine (program not kept) passed
 * a flag in 0.2 us by spinning, in 2.3 us by yielding, in 26 us by a futex. So by default a wait
 * spins for about as long as a futex takes, then yields while a futex would still add much.
 * local_size counts all ranks of the host, not only those of a group, because all of them share the
 * cores. */
static void use_options(struct job *j, int local_size) {
    const struct options *o = &j->config.options;
    bool own_cores = wait_may_spin(local_size);
    double spin = own_cores ? (double)o->spin * 1e-6 : 0;
    /* ranks that share cores yield to each other; so if they share cores, a long yield does not
     * mean that another program computes */
    struct crowd *crowd = own_cores ? &j->crowd : NULL;
    j->patience =
        (struct patience){{spin, (double)o->yield * 1e-6, crowd}, .timeout = o->data_timeout};
    j->pace = (struct pace){o->segment - o->segment % PACE_UNIT,
                            o->segments_in_flight ? o->segments_in_flight : PACE_DEFAULT.depth};
}

/* ---- groups ---- */

void group_close(struct group *g) {
    if (!g) return;
    hvd_error why;
    bool clean = g->engine && engine_ended(g->engine, 0) && !engine_failed(g->engine, &why);
    if (g->engine) engine_stop(g->engine);
    if (g->transport) transport_close(g->transport, clean);
    free(g->job_ranks);
    free(g);
}

static struct group *group_new(hvd_error *err) {
    struct group *g = calloc(1, sizeof *g);
    if (!g) error_set(err, HVD_NO_MEMORY, "no memory for a group of ranks");
    return g;
}

static int keep_job_ranks(struct group *g, const int *job_ranks, hvd_error *err) {
    size_t bytes = (size_t)g->transport->at.size * sizeof *job_ranks;
    g->job_ranks = malloc(bytes);
    if (!g->job_ranks) return error_set(err, HVD_NO_MEMORY, "no memory for the ranks of a group");
    memcpy(g->job_ranks, job_ranks, bytes);
    g->transport->job_ranks = g->job_ranks;
    return HVD_OK;
}

/* Returns the group's number in the flight recorder, equal on all ranks of the group. 0: the group
 * of all ranks. */
static int group_number(const int *job_ranks, int size) {
    enum { PRIME = 8191, LEAST = 1 }; /* a group's number fits int16_t (flight.h) */
    unsigned number = 0;
    for (int i = 0; job_ranks && i < size; i++)
        number = (number * 31 + (unsigned)job_ranks[i]) % PRIME;
    return job_ranks ? LEAST + (int)number : 0;
}

/* A wait for another host does not spin, because a message from another host takes longer than a
 * spin, and a yielding thread finds the message equally fast. On hosts that tests/cluster.py
 * emulates on 2 cores, an allreduce of 4 KB took 0.49 ms instead of 0.64 on 8 hosts with one rank
 * each, and 0.40 ms instead of 0.85 on 4 hosts with two ranks each. */
static struct patience patience_of(const struct job *j, const struct transport *t) {
    struct patience patience = j->patience;
    if (transport_blocks(t)) patience.policy.spin = 0;
    return patience;
}

static int start_group(const struct job *j, struct group *g, const int *job_ranks, hvd_error *err) {
    g->transport->patience = patience_of(j, g->transport);
    g->transport->pace = j->pace;
    g->transport->cost = j->cost;
    g->transport->helpers = j->helpers;
    if (job_ranks) HVD_TRY(keep_job_ranks(g, job_ranks, err));
    struct engine_config config = j->config;
    config.group = group_number(job_ranks, g->transport->at.size);
    return engine_start(&g->engine, g->transport, &config, err);
}

/* Opens the group's transport. job_ranks NULL: the group has all ranks of the job. */
static int open_transport(const struct job *j, struct group *g, const hvd_transport *transport,
                          const int *job_ranks, hvd_error *err) {
    const struct options *o = &j->config.options;
    struct transport_config config = {o->window, o->nudge, o->data_timeout};
    return transport->open(&g->transport, transport->where, j->world, job_ranks, &config, err);
}

int job_make_group(const struct job *j, const hvd_transport *transport, const int *job_ranks,
                   struct group **out, hvd_error *err) {
    struct group opened = {0};
    HVD_TRY(open_transport(j, &opened, transport, job_ranks, err));
    struct group *g = group_new(err); /* if it fails, closing the transport tells other ranks */
    if (!g) return transport_close(opened.transport, false), err->code;
    *g = opened;
    int code = start_group(j, g, job_ranks, err);
    if (code)
        group_close(g);
    else
        *out = g;
    return code;
}

int job_add(struct job *j, struct group *g, int *id, hvd_error *err) {
    struct group **groups = realloc(j->groups, ((size_t)j->ngroups + 1) * sizeof *groups);
    if (!groups) return error_set(err, HVD_NO_MEMORY, "no memory for another group of ranks");
    j->groups = groups;
    *id = j->ngroups++;
    groups[*id] = g;
    return HVD_OK;
}

struct group *job_group(const struct job *j, int id) {
    return id >= 0 && id < j->ngroups ? j->groups[id] : NULL;
}

struct group *job_take(struct job *j, int id) {
    struct group *g = job_group(j, id);
    if (g) j->groups[id] = NULL;
    return g;
}

/* ---- the log ---- */

static void log_start(const struct job *j, const struct transport *t) {
    if (t->no_window.code)
        log_line(&j->config.log, LOG_WARNING,
                 "ranks of a host exchange data through %s, which is slower: %s", t->ops->name,
                 t->no_window.text);
    if (t->no_watch.code)
        log_line(&j->config.log, LOG_WARNING,
                 "%s: this rank learns of a death from other ranks, or after "
                 "HVDLITE_DATA_TIMEOUT_SECONDS. Raise the limit of open files (ulimit -n)",
                 t->no_watch.text);
    log_line(&j->config.log, LOG_INFO,
             "local rank %d of %d, %s window, at most %d threads for large collectives, fusion %zu "
             "bytes, cache %zu tensors",
             t->at.local_rank, t->at.local_size, t->layout.host.window ? "with a" : "no",
             helpers_threads(j->helpers), j->config.options.fusion_bytes,
             j->config.options.cache_capacity);
}

static void log_choices(const struct job *j, const struct transport *t, double seconds) {
    char choices[200];
    if (t->all.window && t->all.window->team && !t->all.rank)
        log_line(&j->config.log, LOG_INFO,
                 "allreduces of %zu KiB and more run in teams of %d ranks, chosen in %.0f ms",
                 t->all.window->team_bytes >> 10, t->all.window->team, seconds * 1e3);
    if (t->all.hosts == 1 || t->all.rank) return;
    coll_choices_text(&t->layout.lane, choices, sizeof choices);
    log_line(&j->config.log, LOG_INFO,
             "between hosts a message costs %.0f us and %.2f ns a byte, %.2f ns to distant "
             "hosts, measured in %.0f ms; %zu segments of %zu bytes are in flight; an allreduce "
             "of float32 uses %s",
             j->cost.alpha * 1e6, j->cost.beta * 1e9, j->cost.far * j->cost.beta * 1e9,
             seconds * 1e3, j->pace.depth, j->pace.segment, choices);
}

/* ---- the job ---- */

int job_start_timeline(struct job *j, const char *path, bool mark_cycles, hvd_error *err) {
    static const char MARK[] = "{rank}";
    char own[4096];
    const char *mark = strstr(path, MARK);
    int rank = j->config.log.rank;
    if (!mark && rank) return HVD_OK;
    int length = 0;
    if (mark)
        length = snprintf(own, sizeof own, "%.*s%d%s", (int)(mark - path), path, rank,
                          mark + strlen(MARK));
    if (length >= (int)sizeof own)
        return error_set(err, HVD_INVALID,
                         "the timeline's path '%.60s...' has %d bytes: expected at most %d", path,
                         length, (int)sizeof own - 1);
    return timeline_start(&j->timeline, mark ? own : path, rank, mark_cycles, clock_now(), err);
}

/* Takes over those options of rank 0 that must be equal on all ranks: some of them select the
 * algorithms, others change the text of the error about a silent rank (transport_dead). */
static int use_options_of_rank_0(struct job *j, const struct transport *t, hvd_error *err) {
    struct options *o = &j->config.options;
    double values[] = {o->deterministic, o->data_timeout, o->stall_failure};
    struct coll_args args = {.kind = HVD_BROADCAST, .data = values, .bytes = sizeof values};
    HVD_TRY(coll_tree(&t->all, &args, err));
    o->deterministic = values[0] != 0;
    o->data_timeout = j->patience.timeout = values[1];
    o->stall_failure = values[2];
    return HVD_OK;
}

/* Measures the cost of messages. All ranks use rank 0's pace, so that they cut tensors equally and
 * choose the same algorithms. */
static int tune_messages(struct job *j, struct transport *t, hvd_error *err) {
    struct coll_args pace = {.kind = HVD_BROADCAST, .data = &j->pace, .bytes = sizeof j->pace};
    struct coll_args cost = {.kind = HVD_BROADCAST, .data = &j->cost, .bytes = sizeof j->cost};
    double begin = clock_now();
    t->patience = patience_of(j, t);
    t->pace = PACE_DEFAULT;
    HVD_TRY(coll_calibrate(&t->all, &j->cost, err));
    HVD_TRY(use_options_of_rank_0(j, t, err));
    if (j->config.options.deterministic) j->cost = COST_FIXED;
    if (!j->config.options.segments_in_flight) j->pace.depth = coll_depth(j->cost, j->pace.segment);
    HVD_TRY(coll_tree(&t->all, &pace, err));
    HVD_TRY(coll_tree(&t->all, &cost, err));
    HVD_TRY(coll_choose_team(&t->all, j->config.options.team, j->patience.policy.spin > 0, err));
    t->cost = j->cost;
    log_choices(j, t, clock_now() - begin);
    return HVD_OK;
}

/* Call it after all ranks have opened the window, which shows the cores that each rank may use. */
static void open_helpers(struct job *j, const struct transport *t) {
    enum { DEFAULT_MOST = 8 }; /* more threads were not measured */
    const struct window *window = t->layout.host.window;
    if (!window) return;
    double share = cpus_share(window), quota = cpus_quota() / window->n;
    if (share > quota) share = quota;
    int threads = (int)j->config.options.threads;
    if (!threads) threads = share < DEFAULT_MOST ? (int)(share + 1e-6) : DEFAULT_MOST;
    j->helpers = helpers_new(threads, threads <= share + 1e-6 ? j->patience.policy.spin : 0,
                             j->config.options.threads_bytes);
}

/* Opens the transport even if reading the environment failed on this rank (`code`, *err), because
 * all ranks learn of the failure through the transport. */
static int open_world(struct job *j, struct group *world, const hvd_transport *transport, int code,
                      hvd_error *err) {
    HVD_TRY(open_transport(j, world, transport, NULL, err));
    j->world = world->transport;
    j->config.log.rank = world->transport->at.rank;
    j->config.log.size = world->transport->at.size;
    flight_set_rank(j->flight, world->transport->at.rank, world->transport->at.size,
                    world->transport->at.local_rank);
    use_options(j, world->transport->at.local_size);
    if (!code) code = read_log_level(&j->config.log.level, err);
    /* DYNAMIC starts nothing. In Horovod this value permits later calls of start_timeline(), which
     * hvdlite always permits. */
    const char *path = env_text("TIMELINE");
    if (!code && path && strcmp(path, "DYNAMIC"))
        code = job_start_timeline(j, path, j->config.options.mark_cycles, err);
    HVD_TRY(transport_agree(world->transport, code, err));
    open_helpers(j, world->transport);
    HVD_TRY(tune_messages(j, world->transport, err));
    if (world->transport->layout.host.window) {
        HVD_TRY(coll_meet(&world->transport->layout.host, err));
        helpers_measure(j->helpers);
    }
    log_start(j, world->transport);
    return start_group(j, world, NULL, err);
}

/* Ignores errors, because a job can run without a recorder. */
static void open_flight(struct job *j) {
    hvd_error ignored;
    if (!j->config.options.flight_recorder || flight_open(&j->flight, &ignored)) return;
    j->config.flight = j->flight;
    j->config.stats = &j->flight->memory->stats;
}

int job_open(struct job *j, const hvd_transport *transport, hvd_error *err) {
    *j = (struct job){.config = {.options = OPTIONS_DEFAULT, .give_up = j->config.give_up}};
    int id, code = options_read(&j->config.options, err);
    timeline_init(&j->timeline);
    j->config.timeline = &j->timeline;
    j->config.stats = &j->stats;
    open_flight(j);
    struct group *world = group_new(err);
    if (!world) return err->code;
    /* Add the group before its engine starts. If the addition failed after the start, the engine's
     * thread could wait for this thread's lock (give_up), while this thread waits for its end. */
    if (!code) code = job_add(j, world, &id, err);
    bool added = !code;
    code = open_world(j, world, transport, code, err);
    if (!added) group_close(world);
    return code;
}

/* Closes group 0 last, after the engines of the other groups have sent their last messages. */
void job_close(struct job *j) {
    hvd_error why;
    for (int id = j->ngroups - 1; id >= 0; id--) group_close(j->groups[id]);
    free(j->groups);
    helpers_free(j->helpers);
    if (j->config.timeline && timeline_stop(&j->timeline, &why))
        log_line(&j->config.log, LOG_WARNING, "%s", why.text);
    if (j->config.timeline) timeline_destroy(&j->timeline);
    flight_close(j->flight);
    *j = (struct job){0};
}

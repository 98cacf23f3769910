/* When a job starts, calibration measures the cost of a message between hosts (costs.h), and
 * whether the ranks of one host sum faster in teams (window.c). */
#include "base/os.h"
#include "collectives/algorithm.h"
#include "collectives/costs.h"
#include "shm/window.h"
#include "transport/comm.h"

#include <math.h>

enum { STEPS = 8, TRIALS = 3 };

/* Seconds. If a trial has taken ENOUGH, no larger trial follows; if a trial has taken LONG, it is
 * not repeated. */
static const double ENOUGH = 4e-3, LONG = 20e-3;

/* Replaces each number by its largest value on any rank. */
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
    return agree(t->comm, seconds, sizeof *seconds, t->scratch, err);
}

/* Measures how many seconds a trial takes longer than a trial of one byte. The difference cancels
 * waits for late ranks, which both trials include. Takes the minimum of several trials; a long
 * trial runs once. */
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
    /* a minimum, because other work may have slowed the trial of one byte */
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

/* Like the circulant: in each step all ranks send half as far and half as many bytes as before, and
 * add. */
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

static int measure(const struct comm *comm, struct cost *cost, struct scratch *scratch,
                   hvd_error *err) {
    /* on the stack: if one rank could not allocate memory, the other ranks would wait for it */
    char memory[(2 + COST_MANY) * PACE_SEGMENT] = {0};
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
    struct scratch scratch = {0};
    *cost = COST_ON_A_HOST;
    if (all->hosts == 1) return HVD_OK;
    *cost = (struct cost){.far = 1};
    int code = HVD_OK;
    if (layout->local_of[all->rank] == 0) code = measure(&layout->lane, cost, &scratch, err);
    if (!code) code = agree(all, cost, sizeof *cost, &scratch, err);
    scratch_free(&scratch);
    return code;
}

/* ---- teams in a window ---- */

/* With at most FEW_RANKS ranks nothing is measured. FROM: bytes from which on wanted teams are
 * used. LARGE, SMALL: bytes that are measured; measured teams are used from half of these bytes
 * on. */
enum { FEW_RANKS = 8, MOST_TEAMS = 8, FROM = 4 << 10, SMALL = 64 << 10, LARGE = 1 << 20, SUMS = 5 };

/* Teams must be clearly faster, because a measurement at the start may be disturbed. */
static const double CLEARLY = 0.9;

static bool is_team(const struct window *w, size_t team) {
    return team > 1 && team < (size_t)w->n && (size_t)w->n % team == 0;
}

/* Uses teams of this size for all sizes; one team if that is not possible. */
static void set_team(struct window *w, size_t team, size_t from) {
    w->team = is_team(w, team) ? (int)team : 0;
    w->team_bytes = from;
}

/* What the ranks of a host sum while they measure. */
struct sums {
    const struct comm *host;
    char *data;
    struct scratch scratch;
};

/* Measures an allreduce once; *seconds is the time of the slowest rank. */
static int time_sum(struct sums *s, size_t bytes, double *seconds, hvd_error *err) {
    struct coll_tensor tensor = {.in = s->data, .out = s->data, .bytes = bytes};
    struct coll_args args = {.kind = HVD_ALLREDUCE,
                             .bytes = bytes,
                             .tensors = &tensor,
                             .ntensors = 1,
                             .reduce = reduce_kernels(HVD_FLOAT32, HVD_SUM),
                             .prescale = 1,
                             .final = {1, 1},
                             .scratch = &s->scratch};
    HVD_TRY(coll_meet(s->host, err));
    double begin = clock_now();
    HVD_TRY(coll_choose(s->host, &args)->run(s->host, &args, err));
    *seconds = clock_now() - begin;
    return agree(s->host, seconds, sizeof *seconds, &s->scratch, err);
}

/* Measures the numbers of teams in `of` alternately. *best: the fastest number of teams. */
static int find_fastest(struct sums *s, size_t bytes, const bool *of, int *best, hvd_error *err) {
    double least[MOST_TEAMS + 1], seconds;
    for (int teams = 1; teams <= MOST_TEAMS; teams++) least[teams] = HUGE_VAL;
    for (int i = 0; i < SUMS * MOST_TEAMS; i++) {
        int teams = 1 + i % MOST_TEAMS;
        if (!of[teams]) continue;
        set_team(s->host->window, (size_t)(s->host->size / teams), 0);
        HVD_TRY(time_sum(s, bytes, &seconds, err));
        least[teams] = fmin(least[teams], seconds);
    }
    *best = 1;
    for (int teams = 2; teams <= MOST_TEAMS; teams++)
        if (least[teams] < fmin(least[*best], CLEARLY * least[1])) *best = teams;
    return HVD_OK;
}

static int measure_teams(struct sums *s, hvd_error *err) {
    char data[LARGE] = {0}; /* on the stack: see measure */
    bool of[MOST_TEAMS + 1] = {false, true};
    int best, small, size = s->host->size;
    s->data = data;
    for (int teams = 2; teams <= MOST_TEAMS; teams++)
        of[teams] = size % teams == 0 && is_team(s->host->window, (size_t)(size / teams));
    HVD_TRY(find_fastest(s, LARGE, of, &best, err));
    for (int teams = 2; teams <= MOST_TEAMS; teams++) of[teams] &= teams == best;
    HVD_TRY(find_fastest(s, SMALL, of, &small, err));
    set_team(s->host->window, (size_t)(size / best), (size_t)(small == best ? SMALL : LARGE) / 2);
    return HVD_OK;
}

int coll_choose_team(const struct comm *all, size_t team, bool own_core, hvd_error *err) {
    struct sums s = {.host = all};
    double of_all[] = {(double)team, own_core ? 0 : 1};
    if (!all->window || all->size < 4) return HVD_OK;
    int code = agree(all, of_all, sizeof of_all, &s.scratch, err);
    if (!code) set_team(all->window, (size_t)of_all[0], FROM);
    if (!code && of_all[0] == 0 && of_all[1] == 0 && all->size > FEW_RANKS)
        code = measure_teams(&s, err);
    scratch_free(&s.scratch);
    return code;
}

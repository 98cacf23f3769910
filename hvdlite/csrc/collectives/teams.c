/* When a job on one host starts, the ranks decide whether they sum in teams (window.c).
 *
 * Teams save traffic between caches or NUMA nodes, but need one more wait a round. Which effect is
 * larger depends on the machine, so jobs with many ranks measure the time of allreduces. The
 * measurement knows no topology: it tries 1 to MOST_TEAMS teams of equal size. */
#include "base/os.h"
#include "collectives/algorithm.h"
#include "shm/shmem.h"
#include "shm/window.h"

#include <math.h>

/* All numbers of this enum are chosen, not measured. Measuring with fewer ranks, more teams, more
 * sums or more bytes finds better teams, but makes the start of the job longer. */
enum {
    MOST_RANKS_UNMEASURED = 8, /* a job of at most so many ranks measures nothing */
    MOST_TEAMS = 8,
    SUMS = 5, /* timed sums per message size and team count; the fastest is used */
    /* Minimum bytes of a sum in teams, if HVDLITE_TEAM_RANKS sets the size of a team. Smaller sums
     * lose more time in the additional wait than they save. */
    FROM_IF_WANTED = 4 << 10,
    /* bytes of the measured sums; sums of at least half of these bytes then use the faster teams */
    SMALL = 64 << 10,
    LARGE = 1 << 20,
};

/* Teams are used if their time divided by the time without teams is less than this number. It is
 * chosen, not measured: the gain must be clear, because other work may disturb the measurement. */
static const double MOST_OF_TIME_WITHOUT = 0.9;

static bool is_team(const struct window *w, size_t team) {
    return team > 1 && team < (size_t)w->n && (size_t)w->n % team == 0;
}

/* Allreduces of at least `from` bytes use teams of `team` ranks, if this size is possible. */
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
    return coll_max(s->host, seconds, sizeof *seconds, &s->scratch, err);
}

/* Times sums with each possible number of teams, again and again. *best: the fastest number. */
static int find_fastest(struct sums *s, size_t bytes, const bool *possible, int *best,
                        hvd_error *err) {
    double least[MOST_TEAMS + 1], seconds;
    for (int teams = 1; teams <= MOST_TEAMS; teams++) least[teams] = HUGE_VAL;
    for (int i = 0; i < SUMS * MOST_TEAMS; i++) {
        int teams = 1 + i % MOST_TEAMS;
        if (!possible[teams]) continue;
        set_team(s->host->window, (size_t)(s->host->size / teams), 0);
        HVD_TRY(time_sum(s, bytes, &seconds, err));
        least[teams] = fmin(least[teams], seconds);
    }
    *best = 1;
    for (int teams = 2; teams <= MOST_TEAMS; teams++)
        if (least[teams] < fmin(least[*best], MOST_OF_TIME_WITHOUT * least[1])) *best = teams;
    return HVD_OK;
}

static int measure(struct sums *s, hvd_error *err) {
    bool possible[MOST_TEAMS + 1] = {false, true};
    int best, small, size = s->host->size;
    for (int teams = 2; teams <= MOST_TEAMS; teams++)
        possible[teams] = size % teams == 0 && is_team(s->host->window, (size_t)(size / teams));
    HVD_TRY(find_fastest(s, LARGE, possible, &best, err));
    for (int teams = 2; teams <= MOST_TEAMS; teams++) possible[teams] &= teams == best;
    HVD_TRY(find_fastest(s, SMALL, possible, &small, err));
    set_team(s->host->window, (size_t)(size / best), (size_t)(small == best ? SMALL : LARGE) / 2);
    return HVD_OK;
}

int coll_choose_team(const struct comm *all, size_t team, bool own_core, hvd_error *err) {
    struct sums s = {.host = all};
    void *memory = NULL;
    hvd_error ignored;
    if (!all->window || all->size < 4) return HVD_OK;
    /* no rank measures if one rank has no memory, because the others would wait for this rank */
    bool can = own_core && !team && all->size > MOST_RANKS_UNMEASURED &&
               !shmem_map_private(&memory, LARGE, &ignored);
    double largest[] = {(double)team, can ? 0 : 1}; /* coll_max sets the largest values */
    s.data = memory;
    int code = coll_max(all, largest, sizeof largest, &s.scratch, err);
    if (!code) set_team(all->window, (size_t)largest[0], FROM_IF_WANTED);
    if (!code && largest[0] == 0 && largest[1] == 0) code = measure(&s, err);
    scratch_free(&s.scratch);
    shmem_close(memory, LARGE);
    return code;
}

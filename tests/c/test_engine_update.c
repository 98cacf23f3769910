/* Allreduces that update weights in memory that a host's ranks share. The gradients are in shared
 * or private memory, on one or several hosts. Each host may update only its own stripes (64 KiB) of
 * the weights. Collectives that can't have an update are refused. */
#include "engine_case.h"

enum { STRIDE = 1 << 20, WORKS = 7, STEPS = 2 };

struct host {
    char *memory;              /* a region with a part for every rank; NULL: no region */
    float *weights, *momentum; /* the weights and the momentum of all works, in a row */
};

struct job {
    struct host hosts[MOST_RANKS];
    int per_host; /* ranks per host; the last host may have fewer */
    bool dealt;
    size_t bytes_ahead;
};

static int host_of(const struct job *job, int rank) { return rank / job->per_host; }

static size_t count_of(int i) { return (size_t)(i * i * 1777 + i); }

static size_t begin_of(int i) { return i ? begin_of(i - 1) + count_of(i - 1) : 0; }

static hvd_update update_of(const struct host *h, int i, int hosts) {
    hvd_update u = {.rule = HVD_SGD_MOMENTUM, .weights = h->weights + begin_of(i)};
    u.dealt = hosts > 0;
    u.first = hosts ? i % hosts : 0;
    u.states[0] = h->momentum + begin_of(i);
    u.rates[HVD_LEARNING_RATE] = 0.5f;
    u.rates[HVD_RESCALE] = 1;
    u.rates[HVD_CLIP] = -1;
    u.rates[HVD_MOMENTUM] = 0.5f;
    return u;
}

/* Returns the index of a value's momentum on a host; SIZE_MAX: another host has it. hosts 0: every
 * host has all of the tensor's momentum. */
static size_t place_of(int i, size_t k, int hosts, int host) {
    const size_t stripe = HVD_STRIPE / sizeof(float), n = (size_t)hosts;
    if (!hosts) return k;
    if ((k / stripe + (size_t)i % n) % n != (size_t)host) return SIZE_MAX;
    return k / stripe / n * stripe + k % stripe;
}

/* Checks the weights after `steps` updates with the same sums. All values are small multiples of
 * powers of two, so the expected values are exact. */
static void check_weights(const struct host *h, const struct work *works, int ranks, int hosts,
                          int host) {
    for (int i = 0; i < WORKS; i++) {
        float sums[PERIOD], w[PERIOD] = {0}, v[PERIOD] = {0};
        const float *weights = h->weights + begin_of(i), *momentum = h->momentum + begin_of(i);
        const struct coll_case *c = &works[i].what;
        fill_tile(c, ranks, -1, (unsigned char *)sums);
        for (int k = 0; k < STEPS * PERIOD; k++)
            w[k % PERIOD] += v[k % PERIOD] = 0.5f * v[k % PERIOD] - 0.5f * sums[k % PERIOD];
        bool right = true;
        for (size_t k = 0; k < c->n; k++) {
            size_t place = place_of(i, k, hosts, host);
            right &= weights[k] == w[k % PERIOD];
            right &= place == SIZE_MAX || momentum[place] == v[k % PERIOD];
        }
        CHECK_CASE(right, "%d ranks, weight %d of %zu values", ranks, i, c->n);
    }
}

static void place_work(struct work *w, struct engine_rank *me, const struct host *h, int i,
                       int hosts) {
    work_init(w, me, plain_sum(count_of(i)), numbered("weight", i), true);
    w->tensor.update = update_of(h, i, hosts);
    w->tensor.request.rule = w->tensor.update.rule | (hosts ? REQUEST_DEALT : 0);
    if (!h->memory) return;
    free(w->in);
    size_t part = (size_t)rank_transport(me->ranks, me->rank)->layout.host.rank;
    w->in = w->out =
        (unsigned char *)(h->memory + part * STRIDE + begin_of(i) * sizeof(float) + (size_t)i * 64);
    w->tensor.in = w->tensor.out = w->in;
}

ENGINES_BY(update_main, arg, config.options.bytes_ahead = ((const struct job *)arg)->bytes_ahead) {
    const struct job *job = arg;
    const int ranks = me->ranks->size, host = host_of(job, me->rank);
    const int hosts = job->dealt ? host_of(job, ranks - 1) + 1 : 0;
    const struct host *h = &job->hosts[host];
    struct work works[WORKS];
    const struct comm *local = &rank_transport(me->ranks, me->rank)->layout.host;
    struct region region = {
        .id = 1, .memory = h->memory, .stride = STRIDE, .n = local->size, .self = local->rank};
    if (h->memory) engine_add_region(me->engine, &region);
    for (int i = 0; i < WORKS; i++) place_work(&works[i], me, h, i, hosts);
    for (int step = 0; step < STEPS; step++) {
        works_submit(works, WORKS, NULL);
        engine_rank_wait(me);
        for (int i = 0; i < WORKS; i++) CHECK_INT(works[i].error.code, HVD_OK);
    }
    /* each rank checks: all weights must be new as soon as the collective has ended on one rank */
    check_weights(h, works, ranks, hosts, host);
    engine_remove_region(me->engine, &region);
    check_in_order(me, "after");
    if (!h->memory) works_free(works, WORKS);
}

static void run_job(int p, struct job job, bool in_region) {
    size_t n = begin_of(WORKS) + 1;
    const int hosts = host_of(&job, p - 1) + 1;
    for (int i = 0; i < hosts; i++) {
        job.hosts[i] =
            (struct host){.weights = room(n * sizeof(float)), .momentum = room(n * sizeof(float))};
        if (in_region) job.hosts[i].memory = room((size_t)p * STRIDE);
    }
    ranks_run_hub(p, hub_of(p, hosts == 1 ? 0 : job.per_host, true), update_main, &job);
    for (int i = 0; i < hosts; i++) {
        free(job.hosts[i].memory);
        free(job.hosts[i].weights);
        free(job.hosts[i].momentum);
    }
}

static void run_updates(int p, int per_host, bool in_region, size_t bytes_ahead) {
    run_job(p, (struct job){.per_host = per_host, .bytes_ahead = bytes_ahead}, in_region);
}

static void run_dealt(int p, int per_host, size_t bytes_ahead) {
    struct job job = {.per_host = per_host, .dealt = true, .bytes_ahead = bytes_ahead};
    run_job(p, job, false);
    run_job(p, job, true);
}

TEST(test_weights_are_updated_with_the_sum_in_the_region) {
    for (int p = 1; p <= 5; p = more_ranks(p)) run_updates(p, p, true, AHEAD_UNLIMITED);
}

TEST(test_weights_are_updated_with_the_sum_of_private_gradients) {
    for (int p = 1; p <= 4; p = more_ranks(p)) run_updates(p, p, false, AHEAD_UNLIMITED);
}

TEST(test_each_host_updates_its_weights_with_the_sum_of_all_hosts) {
    for (int in_region = 0; in_region < 2; in_region++) {
        run_updates(2, 1, in_region, AHEAD_UNLIMITED);
        run_updates(4, 2, in_region, AHEAD_UNLIMITED);
        run_updates(6, 3, in_region, AHEAD_UNLIMITED);
        run_updates(5, 3, in_region, AHEAD_UNLIMITED);
    }
}

/* A piece updates its part of the weights and of their momentum. */
TEST(test_pieces_update_their_own_part_of_the_weights) {
    static const size_t AHEAD[] = {1, 30000};
    for (size_t i = 0; i < sizeof AHEAD / sizeof *AHEAD; i++) {
        run_updates(3, 3, true, AHEAD[i]);
        run_updates(3, 3, false, AHEAD[i]);
        run_updates(2, 1, false, AHEAD[i]);
        run_updates(4, 2, false, AHEAD[i]);
        run_updates(4, 2, true, AHEAD[i]);
    }
}

/* The last host may have fewer ranks; then each other host has ranks that only sum on the host. */
TEST(test_each_host_updates_its_own_stripes) {
    run_dealt(2, 1, AHEAD_UNLIMITED);
    run_dealt(3, 1, AHEAD_UNLIMITED);
    run_dealt(4, 2, AHEAD_UNLIMITED);
    run_dealt(6, 2, AHEAD_UNLIMITED);
    run_dealt(3, 2, AHEAD_UNLIMITED);
    run_dealt(5, 3, AHEAD_UNLIMITED);
    run_dealt(3, 3, AHEAD_UNLIMITED); /* there is only one host */
}

TEST(test_each_host_updates_its_own_stripes_in_pieces) {
    run_dealt(2, 1, 1);
    run_dealt(4, 2, 30000);
    run_dealt(3, 2, 70000);
}

static void refuse(struct engine_rank *me, struct work *w, const char *why) {
    CHECK(work_submit(w, ERR) != HVD_OK);
    CHECK_CASE(strstr(ERR->text, why) != NULL, "'%s' lacks '%s'", ERR->text, why);
    work_free(w);
}

ENGINES_TEST(test_impossible_updates_are_refused, ranks_run_on_window, 2, 2) {
    struct work w;
    float value = 0;
    work_init(&w, me, plain_sum(1), "no weights", true);
    w.tensor.request.rule = w.tensor.update.rule = HVD_SGD;
    refuse(me, &w, "weights and of 0 states");
    work_init(&w, me, plain_sum(1), "no momentum", true);
    w.tensor.update = (hvd_update){.rule = HVD_SGD_MOMENTUM, .weights = &value};
    w.tensor.request.rule = HVD_SGD_MOMENTUM;
    refuse(me, &w, "1 states");
    struct coll_case halves = plain_sum(1);
    halves.dtype = HVD_FLOAT16;
    work_init(&w, me, halves, "halves", true);
    w.tensor.request.rule = HVD_SGD;
    refuse(me, &w, "float32");
    work_init(&w, me, plain_sum(1), "unknown", true);
    w.tensor.request.rule = HVD_RULES;
    refuse(me, &w, "unknown update rule");
}

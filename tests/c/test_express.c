/* Tensors that come again and are waited for: however ranks mix ways and errors, each use has the
 * data of that use. */
#include "handle_case.h"
#include "random.h"

enum { ROUNDS = CHECK_SLOW ? 300 : 2000, CALLERS = 2, MOST = 8 << 10 };

struct caller {
    struct engine_rank *me;
    int number;
    atomic_int *express; /* rounds without negotiation */
    float in[MOST], out[MOST];
};

/* What the ranks do in a round; `odd` rank: one that does something else than the others. */
struct plan {
    int odd, n;
    bool unwaited, late, wrong;
};

/* The same on all ranks. */
static struct plan plan_of(const struct caller *c, int round) {
    static const int SIZES[] = {1, 1000, 5001}; /* added at once and by chunks */
    uint64_t random = (uint64_t)(round * CALLERS + c->number) + 1;
    uint64_t what = random_next(&random) % 40;
    return (struct plan){.odd = (int)(random_next(&random) % (uint64_t)c->me->ranks->size),
                         .n = SIZES[round / 100 % 3],
                         .unwaited = what == 0,
                         .late = what == 1,
                         .wrong = what == 2};
}

static float value(int rank, int round, int i) {
    return (float)((rank + 1) * (round % 97 + i % 5));
}

static void check_sum(const struct caller *c, int round, int n) {
    int wrong = 0;
    for (int i = 0; i < n; i++) {
        float sum = 0;
        for (int r = 0; r < c->me->ranks->size; r++) sum += value(r, round, i);
        wrong += c->out[i] != sum;
    }
    CHECK_CASE(!wrong, "round %d of caller %d on rank %d: %d of %d", round, c->number, c->me->rank,
               wrong, n);
}

static void use_once(struct caller *c, struct hvd_handle *h, int round) {
    struct plan plan = plan_of(c, round);
    bool odd = plan.odd == c->me->rank;
    struct request *r = &h->tensor.request;
    r->waited = !(odd && plan.unwaited);
    r->op = odd && plan.wrong ? HVD_MAX : HVD_SUM;
    r->dims[0] = plan.n;
    for (int i = 0; i < plan.n; i++) c->in[i] = value(c->me->rank, round, i);
    if (odd && plan.late) clock_nap(2e-3);
    handle_renew(h, c->in, c->out);
    REQUIRE(engine_submit(c->me->engine, &h->tensor, ERR) == HVD_OK);
    if (r->waited) engine_drive(c->me->engine, is_done, h);
    bool fails = plan.wrong && c->me->ranks->size > 1;
    check_finished(h, PATIENCE, fails ? HVD_MISMATCH : HVD_OK);
    const char *way = engine_algorithm(c->me->engine);
    if (way && !strcmp(way, "express")) atomic_fetch_add(c->express, 1);
    if (!fails) check_sum(c, round, plan.n);
}

static void *call(void *arg) {
    struct caller *c = arg;
    DROPPED struct hvd_handle *h = new_handle();
    char name[] = {(char)('a' + c->number), 0};
    h->tensor.request = request_of(name, MOST);
    for (int round = 0; round < ROUNDS; round++) use_once(c, h, round);
    return NULL;
}

ENGINES_BY(callers_main, arg, spin(ranks, rank)) {
    static struct caller all[MOST_RANKS][CALLERS];
    struct caller *own = all[me->rank];
    for (int i = 0; i < CALLERS; i++)
        own[i] = (struct caller){.me = me, .number = i, .express = arg};
    threads_run(CALLERS, call, own, sizeof *own);
}

static void run_callers(int p, int per_host) {
    atomic_int express = 0;
    ranks_run_hub(p, hub_of(p, per_host, !per_host), callers_main, &express);
    CHECK_CASE(atomic_load(&express) > ROUNDS / 4, "%d ranks: %d", p, atomic_load(&express));
}

TEST(test_uses_keep_apart) {
    for (int p = 2; p <= 4; p++) run_callers(p, 0);
}

TEST(test_uses_keep_apart_on_hosts) {
    for (int p = 2; p <= 7; p++) run_callers(p, 1);
}

/* A rank waits for the tensor later than the other. A tensor whose name is under way is refused, also
 * while the other rank waits for it here. */
ENGINES_BY(twice_main, arg,
           rank_transport(ranks, rank)->patience.policy = (struct wait_policy){1e-3, PATIENCE}) {
    float data[3] = {0};
    DROPPED struct hvd_handle *first = new_handle(), *second = new_handle();
    first->tensor.request = second->tensor.request = request_of("twice", 3);
    second->tensor.request.waited = true;
    for (int round = 0; round < 60; round++) {
        bool twice = !me->rank && round == 50;
        first->tensor.request.waited = !twice && (me->rank || round > 5);
        engine_cork(me->engine, twice);
        handle_renew(first, data, data);
        REQUIRE(engine_submit(me->engine, &first->tensor, ERR) == HVD_OK);
        if (twice) {
            handle_renew(second, data, data);
            CHECK(!strcmp(engine_algorithm(me->engine), "express"));
            FAILS(engine_submit(me->engine, &second->tensor, ERR), HVD_DUPLICATE);
            handle_refuse(second, ERR);
            engine_cork(me->engine, false);
        }
        engine_drive(me->engine, is_done, first);
        check_finished(first, PATIENCE, HVD_OK);
    }
}

TEST(test_a_name_under_way_is_refused) { ranks_run_on_window(2, twice_main, NULL); }

/* The wait policy with the test's own clock: spin, yield, then longer and longer naps; and scratch
 * memory. */
#include "check.h"

#include "base/os.h"
#include "transport/wait.h"

/* Returns the phase of a wait: 0 spin, 1 yield, 2 nap. A wait never returns to an earlier phase. */
static int phase_of(double next) { return next < 0 ? 1 : next > 0 ? 2 : 0; }

static const struct wait_policy SPINS = {30e-6, 300e-6, NULL}, YIELDS = {0, 300e-6, NULL};

static void check_phases(struct wait_policy policy, int last, double longest_nap) {
    struct waiter w = {0};
    double last_nap = 0;
    CHECK_INT(phase_of(waiter_next(&w, 1000, policy, longest_nap)), last);
    for (double waited = 1e-6; waited < 100; waited *= 1.1) {
        double next = waiter_next(&w, 1000 + waited, policy, longest_nap);
        int phase = phase_of(next);
        CHECK(phase >= last);
        CHECK(next <= longest_nap);
        if (phase == 2) CHECK(next >= last_nap);
        if (phase == 2) last_nap = next;
        if (phase == 2) CHECK(next <= waited); /* a nap is shorter than the time waited so far */
        last = phase;
    }
    CHECK_INT(last, 2);
    CHECK_NEAR(last_nap, longest_nap, 0);
}

TEST(test_a_wait_spins_then_yields_then_naps) {
    static const double NAPS[] = {1e-4, 1e-3, 1};
    for (int i = 0; i < 3; i++) {
        check_phases(SPINS, 0, NAPS[i]);
        check_phases(YIELDS, 1, NAPS[i]);
    }
}

TEST(test_seconds_out_of_range_become_0_or_a_day) {
    static const struct {
        double seconds;
        long whole, nanoseconds;
    } CASES[] = {{0, 0, 0},        {1.5, 1, 500000000}, {-3, 0, 0},           {86400, 86400, 0},
                 {1e10, 86400, 0}, {1e300, 86400, 0},   {INFINITY, 86400, 0}, {NAN, 86400, 0}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct timespec t = clock_span(CASES[i].seconds);
        CHECK_INT(t.tv_sec, CASES[i].whole);
        CHECK_INT(t.tv_nsec, CASES[i].nanoseconds);
    }
}

/* If waits on a slow link yield first, each segment costs 0.3 ms, a quarter of a core's time. */
TEST(test_after_long_waits_the_next_wait_naps_immediately) {
    struct waiter w = {0};
    waiter_next(&w, 1, SPINS, 1);
    waiter_done(&w, 1 + 2e-3);
    CHECK_NEAR(waiter_next(&w, 2, SPINS, 1), 2e-3 / 8, 1e-9);
    CHECK_NEAR(waiter_next(&w, 2 + 4e-3, SPINS, 1), 4e-3 / 8, 1e-9);
    waiter_done(&w, 2 + 5e-6); /* this wait was short, so the next wait begins with a spin */
    CHECK_NEAR(waiter_next(&w, 3, SPINS, 1), 0, 0);
}

TEST(test_a_call_without_a_wait_does_not_change_how_the_next_wait_begins) {
    struct waiter w = {0};
    waiter_next(&w, 1, SPINS, 1);
    waiter_done(&w, 1 + 2e-3);
    waiter_done(&w, 0); /* no wait */
    CHECK_NEAR(waiter_next(&w, 2, SPINS, 1), 2e-3 / 8, 1e-9);
}

/* Returns the phase of a wait that begins at time `now`. */
static int first_phase(struct wait_policy policy, double now) {
    return phase_of(waiter_next(&(struct waiter){0}, now, policy, 1));
}

/* A yield that takes long shows that other programs use the core. If waits go on yielding then,
 * each yield costs a time slice. */
TEST(test_waits_sleep_for_a_while_after_a_yield_that_took_long) {
    struct crowd crowd = {0};
    struct wait_policy yields = {0, 300e-6, &crowd}, spins = {30e-6, 300e-6, &crowd};
    struct waiter early = {0}, late = {0};
    double now = clock_now();
    waiter_do(&early, waiter_next(&early, now + 1000, yields, 1)); /* a yield that took no time */
    CHECK_INT(first_phase(yields, now), 1);
    waiter_do(&late, waiter_next(&late, now - 1, yields, 1));
    CHECK_INT(first_phase(yields, now), 2);
    CHECK_INT(first_phase(spins, now), 0);
    CHECK_INT(first_phase(yields, crowd.until), 1);
    CHECK_INT(first_phase(YIELDS, now), 1);
}

TEST(test_scratch_memory_grows_and_later_calls_reuse_it) {
    struct scratch s = {0};
    void *first = NULL, *again = NULL;
    static const size_t SIZES[] = {1, 63, 64, 65, 1000003, 7};
    for (int i = 0; i < 6; i++) {
        OK(scratch_get(&s, SIZES[i], &first, ERR));
        memset(first, 1, SIZES[i]);
        CHECK_INT((uintptr_t)first % 64, 0);
        OK(scratch_get(&s, SIZES[i], &again, ERR));
        CHECK(again == first);
    }
    if (!CHECK_SLOW) /* a sanitizer would end the program */
        FAILS(scratch_get(&s, SIZE_MAX - 1000, &again, ERR), HVD_NO_MEMORY);
    scratch_free(&s);
    OK(scratch_get(&s, 10, &again, ERR));
    scratch_free(&s);
}

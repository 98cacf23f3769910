/* Ahead: how much is decided ahead, by a fixed number of bytes or by the rate measured. */
#include "check.h"

#include "negotiation/ahead.h"

enum { MIB = 1 << 20, LEAST = MIB };

static void decided(struct ahead *p, size_t bytes, double now) {
    OK(ahead_decided(p, bytes, now, ERR));
}

TEST(test_without_a_limit_everything_is_decided_at_once) {
    OWN(ahead_free) struct ahead p = {0};
    for (int i = 0; i < 100; i++) {
        CHECK(ahead_takes(&p, SIZE_MAX, 0));
        decided(&p, MIB, 0);
    }
    CHECK(ahead_piece(&p) == SIZE_MAX);
}

/* Two batches of any size; more of them as long as they fit into a piece together. */
TEST(test_a_fixed_limit_leaves_room_for_two_batches) {
    struct ahead p = {.bytes_ahead = 2000};
    CHECK_INT(ahead_piece(&p), 1000);
    CHECK(ahead_takes(&p, SIZE_MAX, 0));
    decided(&p, 300, 0);
    CHECK(ahead_takes(&p, SIZE_MAX, 0));
    decided(&p, 300, 0);
    CHECK(!ahead_takes(&p, 401, 0) && ahead_takes(&p, 400, 0));
    decided(&p, 400, 0);
    CHECK(!ahead_takes(&p, 1, 0) && ahead_takes(&p, 0, 0));
    ahead_finished(&p, 1);
    CHECK(!ahead_takes(&p, 301, 0) && ahead_takes(&p, 300, 0));
    ahead_finished(&p, 1);
    CHECK(ahead_takes(&p, SIZE_MAX, 0));
    decided(&p, 5000, 1);
    CHECK(!ahead_takes(&p, 0, 0));
    ahead_free(&p);
    p = (struct ahead){.bytes_ahead = 1};
    CHECK_INT(ahead_piece(&p), 1);
    ahead_free(&p);
}

/* A batch of so many bytes, decided when the one before it has run. */
static double run(struct ahead *p, size_t bytes, double rate, double now) {
    decided(p, bytes, now);
    double end = now + (double)bytes / rate;
    ahead_finished(p, end);
    return end;
}

static void check_piece(const struct ahead *p, double expected) {
    double got = (double)ahead_piece(p);
    CHECK_CASE(fabs(got - expected) <= 0.01 * expected, "a piece of %g bytes, expected %g", got,
               expected);
}

TEST(test_the_limit_follows_the_measured_rate) {
    OWN(ahead_free) struct ahead p = {.bytes_ahead = AHEAD_MEASURED};
    check_piece(&p, LEAST);
    double now = run(&p, 10 * MIB, 1e9, 5);
    check_piece(&p, 10e6); /* 10 ms */
    now = run(&p, 64, 1e3, now);
    check_piece(&p, 10e6);              /* small batches show latency, not the rate */
    now = run(&p, 10 * MIB, 1e9, 1000); /* nor does idle time */
    check_piece(&p, 10e6);
    decided(&p, 10 * MIB, now);
    decided(&p, 10 * MIB, now); /* begins when the one before it has finished */
    ahead_finished(&p, now + 10 * MIB / 1e9);
    ahead_finished(&p, now + 20 * MIB / 1e9);
    check_piece(&p, 10e6);
    for (int i = 0; i < 2; i++) now = run(&p, 10 * MIB, 1e6, now); /* a rank was late */
    check_piece(&p, 10e6);
    for (int i = 0; i < AHEAD_RATES; i++) now = run(&p, MIB, 20e6, now);
    check_piece(&p, LEAST);
    for (int i = 0; i < AHEAD_RATES; i++) now = run(&p, MIB, 5e9, now);
    check_piece(&p, 50e6);
    ahead_finished(&p, now); /* of nothing */
}

/* The next batch is decided shortly before the end of the one under way. */
TEST(test_the_next_piece_is_decided_late) {
    OWN(ahead_free) struct ahead p = {.bytes_ahead = AHEAD_MEASURED};
    decided(&p, 4 * MIB, 0);
    CHECK(ahead_takes(&p, 4 * MIB, 0)); /* the rate is not known yet */
    ahead_finished(&p, 0.4);            /* 10 MiB/s: a piece takes 0.1 s */
    CHECK(ahead_takes(&p, 4 * MIB, 0.4));
    decided(&p, 2 * MIB, 1);
    CHECK_NEAR(ahead_opens(&p), 1.17, 1e-9);
    CHECK(!ahead_takes(&p, 1, 1.1) && ahead_takes(&p, SIZE_MAX, 1.18));
    decided(&p, MIB / 2, 1.18); /* it begins at 1.2 */
    CHECK(isinf(ahead_opens(&p)));
    ahead_finished(&p, 1.2);
    CHECK_NEAR(ahead_opens(&p), 1.22, 1e-9);
    CHECK(ahead_takes(&p, MIB / 2, 1.2)); /* a piece, together */
    ahead_finished(&p, 1.3);
    for (int i = 0; i < AHEAD_RATES; i++) run(&p, 10 * MIB, 1e9, 10 + i);
    decided(&p, 10000000, 40);
    CHECK_NEAR(ahead_opens(&p), 40.005, 1e-9); /* half of it is left */
}

TEST(test_a_clock_that_stands_still) {
    OWN(ahead_free) struct ahead p = {.bytes_ahead = AHEAD_MEASURED};
    for (int i = 0; i < 20; i++) {
        decided(&p, MIB, 3);
        ahead_finished(&p, 3);
    }
    CHECK_INT(ahead_piece(&p), LEAST);
}

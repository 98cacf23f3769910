/* Who is asked, reported and given up, and when; and that a rank which was stopped blames
 * nobody. */
#include "check.h"

#include "negotiation/watch.h"

static const double START = 1000;

static struct watch watch_of(double warning, double failure, double quarter) {
    struct watch w;
    OK(watch_open(&w, 3, ERR));
    w.warning = warning;
    w.failure = failure;
    w.quarter = quarter;
    return w;
}

/* Looks at rank 1 every 0.1 s until `until`; notes when each finding came first, and its number. */
struct course {
    double first[4];
    int count[4];
};

static struct course look_until(struct watch *w, double *now, double until, bool needed) {
    struct course c = {{0}, {0}};
    for (; *now < until; *now += 0.1) {
        if (!watch_looks(w, *now)) continue;
        enum watch_finding found = watch_look(w, 1, needed);
        if (!c.count[found]++) c.first[found] = *now - START;
    }
    return c;
}

TEST(test_a_silent_rank_is_asked_reported_and_given_up) {
    OWN(watch_close) struct watch w = watch_of(8, 20, 2);
    double now = START;
    struct course c = look_until(&w, &now, START + 30, true);
    CHECK_NEAR(c.first[WATCH_ASK], 2, 0.6);
    CHECK_NEAR(c.first[WATCH_WARN], 8, 0.6);
    CHECK_INT(c.count[WATCH_WARN], 1);
    CHECK_NEAR(c.first[WATCH_FAILED], 20, 0.6);
    CHECK(c.count[WATCH_ASK] >= 6 && c.count[WATCH_ASK] <= 10);
    CHECK(w.silent[1] && !w.silent[0] && !w.silent[2]);
}

TEST(test_a_rank_that_answers_is_fine) {
    OWN(watch_close) struct watch w = watch_of(8, 20, 2);
    for (double now = START; now < START + 100; now += 0.1) {
        if (!watch_looks(&w, now)) continue;
        enum watch_finding found = watch_look(&w, 1, true);
        CHECK(found == WATCH_FINE || found == WATCH_ASK);
        if (found == WATCH_ASK) watch_heard(&w, 1);
        CHECK(!w.silent[1]);
    }
}

TEST(test_each_silence_is_reported) {
    OWN(watch_close) struct watch w = watch_of(8, 0, 2);
    double now = START;
    for (int i = 1; i <= 3; i++) {
        struct course c = look_until(&w, &now, START + 20 * i, true);
        CHECK_INT(c.count[WATCH_WARN], 1);
        CHECK_INT(c.count[WATCH_FAILED], 0);
        watch_heard(&w, 1);
        CHECK(!w.silent[1]);
    }
}

/* Nobody waits for it: its silence is no news, and does not count later. */
TEST(test_who_is_not_needed_may_be_silent) {
    OWN(watch_close) struct watch w = watch_of(8, 20, 2);
    double now = START;
    struct course c = look_until(&w, &now, START + 100, false);
    CHECK_INT(c.count[WATCH_ASK] + c.count[WATCH_WARN] + c.count[WATCH_FAILED], 0);
    c = look_until(&w, &now, START + 105, true);
    CHECK(c.count[WATCH_ASK] && !c.count[WATCH_WARN] && !c.count[WATCH_FAILED]);
}

/* Stopped for an hour, it has not heard the answers that came meanwhile. */
TEST(test_who_was_stopped_blames_nobody) {
    OWN(watch_close) struct watch w = watch_of(8, 20, 2);
    double now = START;
    look_until(&w, &now, START + 3, true);
    now += 3600;
    CHECK(watch_looks(&w, now));
    CHECK(watch_look(&w, 1, true) <= WATCH_ASK);
    CHECK(watch_silence(&w, 1) < 5);
}

TEST(test_without_limits_nobody_is_watched) {
    OWN(watch_close) struct watch w = watch_of(0, 0, 0);
    CHECK(!watch_looks(&w, START) && !watch_looks(&w, START + 1e6));
    CHECK_NEAR(watch_sleep(&w, 7), 7, 0);
}

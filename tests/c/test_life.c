/* Signs of life: the end of a process is reported once, and no other process is reported. Silence:
 * which ranks are asked, reported and given up, and when. */
#include "check.h"

#include "counter.h"
#include "negotiation/watch.h"
#include "shm/life.h"

#include <sys/wait.h>

enum { PROCESSES = 3 };

struct deaths {
    struct counter all;
    int of[PROCESSES]; /* number of reported deaths of each process */
};

static void died(void *arg, int rank) {
    struct deaths *d = arg;
    d->of[rank]++;
    counter_add(&d->all);
}

static pid_t child(void) {
    pid_t pid = fork();
    if (pid == 0)
        for (;;) pause();
    return pid;
}

static void end(pid_t pid, int how) {
    kill(pid, how);
    waitpid(pid, NULL, 0);
}

/* Watches n children; adds the child of the last rank first. */
static struct life *watch_children(pid_t *pids, int n, void (*tell)(void *, int), void *arg) {
    struct life *l = NULL;
    REQUIRE(life_open(&l, n, tell, arg) == HVD_OK);
    struct life_card card = life_card_of_this_process();
    CHECK(card.space && card.pid == getpid() && card.host[0]);
    for (int i = n - 1; i >= 0; i--) {
        card.pid = pids[i] = child();
        CHECK_INT(life_add(l, &card, i), HVD_OK);
    }
    return l;
}

/* files: how many files this process may open from now on. */
static void see_killed(rlim_t files) {
    struct deaths d = {.of = {0}};
    pid_t pids[PROCESSES];
    counter_init(&d.all);
    struct life *l = watch_children(pids, PROCESSES, died, &d);
    struct rlimit old = limit_to(RLIMIT_NOFILE, files);
    CHECK_INT(life_start(l), HVD_OK);
    end(pids[1], SIGKILL);
    CHECK(counter_reaches(&d.all, 1));
    CHECK(d.of[1] == 1);
    kill(pids[2], SIGSTOP); /* stopped, but alive */
    end(pids[0], SIGTERM);
    CHECK(counter_reaches(&d.all, 2));
    CHECK(d.of[0] == 1 && d.of[2] == 0);
    life_close(l);
    setrlimit(RLIMIT_NOFILE, &old);
    CHECK_INT(d.all.count, 2);
    end(pids[2], SIGKILL);
    mutex_destroy(&d.all.mutex);
}

TEST(test_the_end_of_a_killed_process_is_reported) { see_killed(RLIM_INFINITY); }

/* With a low limit, the kernel refuses to poll this many files in one call. */
TEST(test_a_killed_process_is_reported_under_a_low_limit_of_open_files) {
    see_killed(PROCESSES);
    see_killed(1);
}

static void note_order(void *arg, int rank) {
    struct deaths *d = arg;
    d->of[rank] = d->all.count;
    counter_add(&d->all);
}

/* All ranks of a host must name the same rank. */
TEST(test_of_several_deaths_the_lowest_rank_is_reported_first) {
    struct deaths d = {.of = {0}};
    pid_t pids[PROCESSES];
    counter_init(&d.all);
    struct life *l = watch_children(pids, PROCESSES, note_order, &d);
    for (int i = 0; i < PROCESSES; i++) end(pids[i], SIGKILL);
    CHECK_INT(life_start(l), HVD_OK);
    CHECK(counter_reaches(&d.all, PROCESSES));
    for (int i = 0; i < PROCESSES; i++) CHECK_INT(d.of[i], i);
    life_close(l);
    mutex_destroy(&d.all.mutex);
}

struct times {
    struct counter all;
    double of[PROCESSES];
};

static void note_time(void *arg, int rank) {
    struct times *t = arg;
    t->of[rank] = clock_now();
    counter_add(&t->all);
}

/* A second process dies while the report of the first death is delayed. The second death needs the
 * whole delay, too, because the process's last messages may still arrive. */
TEST(test_each_death_of_a_process_is_reported_after_the_delay) {
    static const double DELAY = 20e-3;
    struct times times = {.of = {0}};
    double killed[2];
    pid_t pids[2];
    counter_init(&times.all);
    struct life *l = watch_children(pids, 2, note_time, &times);
    CHECK_INT(life_start(l), HVD_OK);
    for (int i = 0; i < 2; i++) {
        killed[i] = clock_now();
        end(pids[i], SIGKILL);
        clock_nap(DELAY / 2);
    }
    CHECK(counter_reaches(&times.all, 2));
    for (int i = 0; i < 2; i++) CHECK(times.of[i] - killed[i] >= DELAY);
    life_close(l);
    mutex_destroy(&times.all.mutex);
}

TEST(test_watching_fails_with_an_error_when_no_descriptor_is_left) {
    struct life *l = NULL;
    struct life_card card = life_card_of_this_process();
    REQUIRE(life_open(&l, 1, died, NULL) == HVD_OK);
    struct rlimit old = limit_to(RLIMIT_NOFILE, 0);
    CHECK_INT(life_add(l, &card, 0), HVD_NO_MEMORY);
    setrlimit(RLIMIT_NOFILE, &old);
    life_close(l);
}

TEST(test_processes_that_cannot_be_watched_are_refused) {
    struct life *l = NULL;
    struct life_card card = life_card_of_this_process();
    REQUIRE(life_open(&l, 2, died, NULL) == HVD_OK);
    card.space++; /* another pid namespace, as in another container */
    CHECK_INT(life_add(l, &card, 0), HVD_UNSUPPORTED);
    card = life_card_of_this_process();
    card.pid = child();
    end((pid_t)card.pid, SIGKILL);
    CHECK_INT(life_add(l, &card, 1), HVD_RANK_DEAD);
    life_close(l);
    life_close(NULL);
}

/* ---- silence ---- */

static const double START = 1000;

static struct watch watch_of(double warning, double failure, double quarter) {
    struct watch w;
    OK(watch_open(&w, 3, ERR));
    w.warning = warning;
    w.failure = failure;
    w.quarter = quarter;
    return w;
}

/* Looks at rank 1 every 0.1 s until `until`; notes when each finding first occurred, and how
 * often. */
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

TEST(test_a_silent_rank_is_first_asked_then_reported_then_given_up) {
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

TEST(test_a_rank_that_answers_is_not_reported) {
    OWN(watch_close) struct watch w = watch_of(8, 20, 2);
    for (double now = START; now < START + 100; now += 0.1) {
        if (!watch_looks(&w, now)) continue;
        enum watch_finding found = watch_look(&w, 1, true);
        CHECK(found == WATCH_FINE || found == WATCH_ASK);
        if (found == WATCH_ASK) watch_heard(&w, 1);
        CHECK(!w.silent[1]);
    }
}

TEST(test_each_silence_of_a_rank_is_reported) {
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

/* No rank waits for the silent rank, so its silence is neither reported nor counted. */
TEST(test_a_silent_rank_that_nobody_waits_for_is_not_reported) {
    OWN(watch_close) struct watch w = watch_of(8, 20, 2);
    double now = START;
    struct course c = look_until(&w, &now, START + 100, false);
    CHECK_INT(c.count[WATCH_ASK] + c.count[WATCH_WARN] + c.count[WATCH_FAILED], 0);
    c = look_until(&w, &now, START + 105, true);
    CHECK(c.count[WATCH_ASK] && !c.count[WATCH_WARN] && !c.count[WATCH_FAILED]);
}

/* This rank was stopped for an hour and has not read the answers that arrived meanwhile. */
TEST(test_a_rank_that_was_stopped_blames_nobody) {
    OWN(watch_close) struct watch w = watch_of(8, 20, 2);
    double now = START;
    look_until(&w, &now, START + 3, true);
    now += 3600;
    CHECK(watch_looks(&w, now));
    CHECK(watch_look(&w, 1, true) <= WATCH_ASK);
    CHECK(watch_silence(&w, 1) < 5);
}

TEST(test_without_limits_no_rank_is_watched) {
    OWN(watch_close) struct watch w = watch_of(0, 0, 0);
    CHECK(!watch_looks(&w, START) && !watch_looks(&w, START + 1e6));
    CHECK_NEAR(watch_sleep(&w, 7), 7, 0);
}

/* Signs of life: the end of a process is seen, once, and of that process alone. */
#include "check.h"
#include "counter.h"

#include "shm/life.h"

#include <sys/resource.h>
#include <sys/wait.h>

enum { PROCESSES = 3 };

struct deaths {
    struct counter all;
    int of[PROCESSES]; /* written before `all` counts it */
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

/* files: as many as the process may open from now on. */
static void see_killed(rlim_t files) {
    struct rlimit old, few;
    struct deaths d = {.of = {0}};
    struct life *l = NULL;
    pid_t pids[PROCESSES];
    counter_init(&d.all);
    REQUIRE(life_open(&l, PROCESSES, died, &d) == HVD_OK);
    struct life_card card = life_card_of_this_process();
    CHECK(card.space && card.pid == getpid() && card.host[0]);
    for (int i = 0; i < PROCESSES; i++) {
        card.pid = pids[i] = child();
        CHECK_INT(life_add(l, &card, i), HVD_OK);
    }
    getrlimit(RLIMIT_NOFILE, &old);
    few = (struct rlimit){files < old.rlim_cur ? files : old.rlim_cur, old.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
    CHECK_INT(life_start(l), HVD_OK);
    end(pids[1], SIGKILL);
    CHECK(counter_reaches(&d.all, 1));
    CHECK(d.of[1] == 1);
    kill(pids[2], SIGSTOP); /* alive */
    end(pids[0], SIGTERM);
    CHECK(counter_reaches(&d.all, 2));
    CHECK(d.of[0] == 1 && d.of[2] == 0);
    life_close(l);
    setrlimit(RLIMIT_NOFILE, &old);
    CHECK_INT(d.all.count, 2);
    end(pids[2], SIGKILL);
    mutex_destroy(&d.all.mutex);
}

TEST(test_a_killed_process_is_seen) { see_killed(RLIM_INFINITY); }

/* The kernel refuses to watch so many files at once, or any. */
TEST(test_a_killed_process_is_seen_with_few_files_allowed) {
    see_killed(PROCESSES);
    see_killed(1);
}

/* Nobody was told that the process is not watched. */
TEST(test_without_descriptors_it_says_so) {
    struct rlimit old, none;
    struct life *l = NULL;
    struct life_card card = life_card_of_this_process();
    REQUIRE(life_open(&l, 1, died, NULL) == HVD_OK);
    getrlimit(RLIMIT_NOFILE, &old);
    none = (struct rlimit){0, old.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    CHECK_INT(life_add(l, &card, 0), HVD_NO_MEMORY);
    setrlimit(RLIMIT_NOFILE, &old);
    life_close(l);
}

TEST(test_what_cannot_be_watched_is_refused) {
    struct life *l = NULL;
    struct life_card card = life_card_of_this_process();
    REQUIRE(life_open(&l, 2, died, NULL) == HVD_OK);
    card.space++; /* another container */
    CHECK_INT(life_add(l, &card, 0), HVD_UNSUPPORTED);
    card = life_card_of_this_process();
    card.pid = child();
    end((pid_t)card.pid, SIGKILL);
    CHECK_INT(life_add(l, &card, 1), HVD_RANK_DEAD);
    life_close(l);
    life_close(NULL);
}

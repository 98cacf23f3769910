/* Ranks joined by sockets: all agree, sleep while they wait, name the dead, and open groups. */
#include "check.h"

#include "base/clock.h"
#include "base/sync.h"
#include "sockets.h"

#include <time.h>

enum { TINY = 1, RANKS = 3 };

static const int APART[] = {0, 1, 2}, TOGETHER[] = {0, 0, 0};

struct job {
    struct sockets sockets;
    const int *hosts;
    bool window;
    int failing; /* a rank; -1: none */
    void (*run)(struct job *j, struct transport *t);
    pthread_barrier_t barrier;
};

struct thread {
    struct job *job;
    int rank;
};

static void *run_rank(void *arg) {
    struct thread *me = arg;
    struct job *j = me->job;
    struct transport *t = NULL;
    OK(sockets_transport(&j->sockets, me->rank, j->hosts, j->window, &t, ERR));
    if (t) j->run(j, t);
    return NULL;
}

static void run_job(struct job *j) {
    struct thread threads[RANKS];
    sockets_connect(&j->sockets, RANKS, TINY);
    pthread_barrier_init(&j->barrier, NULL, RANKS);
    for (int i = 0; i < RANKS; i++) threads[i] = (struct thread){j, i};
    threads_run(RANKS, run_rank, threads, sizeof *threads);
    pthread_barrier_destroy(&j->barrier);
}

static void check_agreement(struct job *j, struct transport *t) {
    hvd_error err = {0};
    bool fails = t->at.rank == j->failing;
    int code = fails ? error_set(&err, HVD_INVALID, "a wrong setting") : HVD_OK;
    int expected = j->failing < 0 ? HVD_OK : fails ? HVD_INVALID : HVD_RANK_LEFT;
    CHECK_CODE(transport_agree(t, code, &err), expected, err);
    if (expected == HVD_RANK_LEFT) CHECK_HAS(err.text, "rank 1 could not start");
    if (expected == HVD_RANK_LEFT) CHECK(err.nblamed == 1 && err.blamed[0] == 1 && err.pid > 0);
    CHECK(t->rings && t->blocks == !t->all.window);
    CHECK_INT(t->layout.host.window != NULL, j->window);
    transport_close(t, true);
}

TEST(test_all_agree_or_all_fail) {
    for (int failing = -1; failing <= 1; failing += 2)
        for (int apart = 0; apart < 2; apart++)
            for (int window = 0; window < 2; window++) {
                struct job j = {.hosts = apart ? APART : TOGETHER,
                                .window = window,
                                .failing = failing == -1 ? -1 : 1,
                                .run = check_agreement};
                run_job(&j);
            }
}

static double cpu_time(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A rank that waits for another's data sleeps: 0.3 s cost it less than 0.02 of a core. */
static void wait_for_data(struct job *j, struct transport *t) {
    static const double LATE = 0.3;
    struct transfer x = {{0}, 0, 0};
    int peer = (t->at.rank + 1) % RANKS, from = (t->at.rank + RANKS - 1) % RANKS;
    char out = 'x', in = 0;
    double cpu = -cpu_time();
    if (t->at.rank) OK(comm_irecv(&t->all, &in, 1, from, &x, ERR));
    if (t->at.rank) OK(comm_wait(&t->all, &x, ERR));
    if (!t->at.rank) clock_nap(LATE);
    cpu += cpu_time();
    CHECK_CASE(CHECK_SLOW || cpu < 0.02 * LATE, "%g s of CPU", cpu);
    if (peer) OK(comm_isend(&t->all, &out, 1, peer, &x, ERR));
    OK(comm_wait(&t->all, &x, ERR));
    CHECK(in == (t->at.rank ? 'x' : 0));
    transport_agree(t, HVD_OK, ERR);
    transport_close(t, true);
}

TEST(test_waiting_costs_nothing) {
    struct job j = {.hosts = APART, .run = wait_for_data};
    run_job(&j);
}

/* Rank 1 ends; whoever waits for it, or opens a group with it, learns who is dead. */
static void lose_rank_1(struct job *j, struct transport *t) {
    static const int PAIR[] = {1, 2};
    struct transfer x = {{0}, 0, 0};
    struct transport *group = NULL;
    hvd_error err = {0};
    char byte;
    pthread_barrier_wait(&j->barrier);
    if (t->at.rank == 0) {
        CHECK_OK(comm_irecv(&t->all, &byte, 1, 1, &x, &err), err);
        CHECK_CODE(comm_wait(&t->all, &x, &err), HVD_RANK_DEAD, err);
    } else if (t->at.rank == 2) {
        CHECK_CODE(transport_tcp_open_among(&group, t, PAIR, 2, 4, true, &err), HVD_RANK_DEAD, err);
        CHECK(!group);
    }
    if (t->at.rank != 1) CHECK(err.nblamed == 1 && err.blamed[0] == 1);
    int rank = t->at.rank;
    if (rank == 1) transport_close(t, false);
    pthread_barrier_wait(&j->barrier); /* before the others end, too */
    if (rank != 1) transport_close(t, false);
}

TEST(test_a_dead_rank_is_named) {
    struct job j = {.hosts = APART, .run = lose_rank_1};
    run_job(&j);
}

/* Only the data of two ranks is cut off: none is dead, and none waits for ever. */
static void cut_data(struct job *j, struct transport *t) {
    struct transfer x = {{0}, 0, 0};
    char byte;
    if (t->at.rank == 0) shutdown(j->sockets.data[0][1], SHUT_RDWR);
    if (t->at.rank < 2) {
        OK(comm_irecv(&t->all, &byte, 1, 1 - t->at.rank, &x, ERR));
        FAILS(comm_wait(&t->all, &x, ERR), HVD_TRANSPORT);
        CHECK_HAS(ERR->text, t->at.rank ? "with rank 0 has broken" : "with rank 1 has broken");
    }
    OK(transport_agree(t, HVD_OK, ERR));
    transport_close(t, true);
}

TEST(test_data_alone_is_cut_off) {
    struct job j = {.hosts = APART, .run = cut_data};
    run_job(&j);
}

/* Groups of some ranks, in an order of their own, whose traffic shares the streams. */
static void use_groups(struct job *j, struct transport *t) {
    static const int PAIR[] = {2, 0}, ALL[] = {1, 2, 0};
    struct transport *pair = NULL, *all = NULL;
    bool in_pair = t->at.rank != 1;
    if (in_pair) OK(transport_tcp_open_among(&pair, t, PAIR, 2, 1, j->window, ERR));
    OK(transport_tcp_open_among(&all, t, ALL, RANKS, 2, j->window, ERR));
    CHECK_INT(all->at.rank, (t->at.rank + RANKS - 1) % RANKS);
    for (int i = 0; i < 50; i++) {
        int *seen = transport_gather(all, &t->at.rank, sizeof(int), ERR);
        CHECK(seen && memcmp(seen, ALL, sizeof ALL) == 0);
        free(seen);
        seen = in_pair ? transport_gather(pair, &t->at.rank, sizeof(int), ERR) : NULL;
        if (in_pair) CHECK(seen && memcmp(seen, PAIR, sizeof PAIR) == 0);
        free(seen);
    }
    if (in_pair && pair->at.rank == 0) {
        transport_close(pair, false); /* it fails there; the other learns it */
    } else if (in_pair) {
        FAILS(transport_agree(pair, HVD_OK, ERR), HVD_RANK_LEFT);
        CHECK_HAS(ERR->text, "rank 2 could not open");
        transport_close(pair, false);
    }
    OK(transport_agree(all, HVD_OK, ERR));
    transport_close(all, true);
    OK(transport_agree(t, HVD_OK, ERR));
    transport_close(t, true);
}

TEST(test_groups) {
    for (int apart = 0; apart < 2; apart++)
        for (int window = 0; window < 2; window++) {
            struct job j = {.hosts = apart ? APART : TOGETHER, .window = window, .run = use_groups};
            run_job(&j);
        }
}

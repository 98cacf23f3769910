/* Ranks connected by sockets: all agree, sleep in waits, name dead ranks, and open groups. */
#define _GNU_SOURCE /* syscall */
#include "check.h"

#include "base/os.h"
#include "ranks.h"
#include "shm/mailbox.h"

#include <sys/mman.h>
#include <sys/syscall.h>

enum { TINY = 1, RANKS = 3 };

static const int APART[] = {0, 1, 2}, TOGETHER[] = {0, 0, 0}, ALL[] = {0, 1, 2};

static void run_on(const int *lowest, bool window, rank_main *run, void *arg) {
    ranks_run_by(TINY, RANKS, hub_on(RANKS, lowest, window), run, arg);
}

/* Runs on separate hosts and on one host, with and without windows. */
static void run_everywhere(rank_main *run, void *arg) {
    for (int how = 0; how < 4; how++) run_on(how / 2 ? APART : TOGETHER, how % 2, run, arg);
}

static void close_own(struct ranks *ranks, int rank, bool clean) {
    transport_close(ranks->by_tcp[rank], clean);
    ranks->by_tcp[rank] = NULL;
}

/* `failing`: the rank with a wrong setting, or NULL. */
static void check_agreement(struct ranks *ranks, int rank, void *failing) {
    struct transport *t = rank_transport(ranks, rank);
    hvd_error err = {0};
    bool fails = failing && rank == *(int *)failing;
    int code = fails ? error_set(&err, HVD_INVALID, "a wrong setting") : HVD_OK;
    int expected = !failing ? HVD_OK : fails ? HVD_INVALID : HVD_RANK_LEFT;
    CHECK_CODE(transport_agree(t, code, &err), expected, err);
    if (expected == HVD_RANK_LEFT) CHECK_HAS(err.text, "rank 1 could not start");
    if (expected == HVD_RANK_LEFT) CHECK(err.nblamed == 1 && err.blamed[0] == 1 && err.pid > 0);
    CHECK(transport_rings(t) && transport_blocks(t) == !t->all.window);
    CHECK_INT(t->layout.host.window != NULL, local_hub_rank(ranks->hub, rank)->layout.windows);
}

TEST(test_an_error_on_one_rank_fails_the_start_on_all_ranks) {
    run_everywhere(check_agreement, NULL);
    run_everywhere(check_agreement, &(int){1});
}

/* A rank that waits 0.3 s for data sleeps. least: by rank, the CPU seconds of the best try. */
static void wait_for_data(struct ranks *ranks, int rank, void *least) {
    struct transport *t = rank_transport(ranks, rank);
    struct transfer x = {{0}, 0, 0};
    int peer = (rank + 1) % RANKS, from = (rank + RANKS - 1) % RANKS;
    char out = 'x', in = 0;
    double begin = cpu_seconds(CLOCK_THREAD_CPUTIME_ID), *own = (double *)least + rank;
    if (rank) OK(comm_irecv(&t->all, &in, 1, from, &x, ERR));
    if (rank) OK(comm_wait(&t->all, &x, &(struct waiter){0}, ERR));
    if (!rank) clock_nap(0.3);
    *own = fmin(*own, cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - begin);
    if (peer) OK(comm_isend(&t->all, &out, 1, peer, &x, ERR));
    OK(comm_wait(&t->all, &x, &(struct waiter){0}, ERR));
    CHECK(in == (rank ? 'x' : 0));
    OK(transport_agree(t, HVD_OK, ERR));
}

TEST(test_a_rank_that_waits_for_data_uses_no_cpu) {
    double cpu[RANKS] = {1, 1, 1}; /* the least of several runs, because the machine may be busy */
    for (int i = 0; i < 5; i++) run_on(APART, false, wait_for_data, cpu);
    for (int i = 0; i < RANKS; i++) CHECK_CASE(CHECK_SLOW || cpu[i] < 6e-3, "%g s of CPU", cpu[i]);
}

/* Rank 1 ends. The error names rank 1 if a rank waits for rank 1 or opens a group with rank 1. */
static void lose_rank_1(struct ranks *ranks, int rank, void *arg) {
    struct transport *t = rank_transport(ranks, rank);
    static const int PAIR[] = {1, 2};
    struct transfer x = {{0}, 0, 0};
    struct transport *group = NULL;
    hvd_error err = {0};
    char byte;
    ranks_meet(ranks);
    if (rank == 0) {
        OK(comm_irecv(&t->all, &byte, 1, 1, &x, ERR));
        CHECK_CODE(comm_wait(&t->all, &x, &(struct waiter){0}, &err), HVD_RANK_DEAD, err);
    } else if (rank == 2) {
        CHECK_CODE(sockets_group(&group, t, PAIR, 2, 4, true, &err), HVD_RANK_DEAD, err);
        CHECK(!group);
    }
    if (rank != 1) CHECK(err.nblamed == 1 && err.blamed[0] == 1);
    if (rank == 1) close_own(ranks, rank, false);
    ranks_meet(ranks); /* rank 1 ends before the other ranks */
    if (rank != 1) close_own(ranks, rank, false);
}

TEST(test_a_dead_rank_is_named) { run_on(APART, false, lose_rank_1, NULL); }

/* Only the data stream between two ranks breaks: no rank is dead, and no rank may wait for ever. */
static void cut_data(struct ranks *ranks, int rank, void *arg) {
    struct transport *t = rank_transport(ranks, rank);
    struct transfer x = {{0}, 0, 0};
    char byte;
    if (rank == 0) shutdown(ranks->sockets->data[0][1], SHUT_RDWR);
    if (rank < 2) {
        OK(comm_irecv(&t->all, &byte, 1, 1 - rank, &x, ERR));
        FAILS(comm_wait(&t->all, &x, &(struct waiter){0}, ERR), HVD_TRANSPORT);
        CHECK_HAS(ERR->text, rank ? "with rank 0 has broken" : "with rank 1 has broken");
    }
    OK(transport_agree(t, HVD_OK, ERR));
}

TEST(test_broken_data_streams_blame_no_rank) { run_on(APART, false, cut_data, NULL); }

/* Groups with their own order of ranks; their traffic shares the job's streams. */
static void use_groups(struct ranks *ranks, int rank, void *arg) {
    struct transport *t = rank_transport(ranks, rank);
    static const int PAIR[] = {2, 0}, TURNED[] = {1, 2, 0};
    struct transport *pair = NULL, *all = NULL;
    bool in_pair = rank != 1;
    if (in_pair)
        OK(sockets_group(&pair, t, PAIR, 2, 1, local_hub_rank(ranks->hub, rank)->layout.windows,
                         ERR));
    OK(sockets_group(&all, t, TURNED, RANKS, 2, local_hub_rank(ranks->hub, rank)->layout.windows,
                     ERR));
    CHECK_INT(all->at.rank, (rank + RANKS - 1) % RANKS);
    for (int i = 0; i < 50; i++) {
        int *seen = transport_gather(all, &rank, sizeof(int), ERR);
        CHECK(seen && memcmp(seen, TURNED, sizeof TURNED) == 0);
        free(seen);
        seen = in_pair ? transport_gather(pair, &rank, sizeof(int), ERR) : NULL;
        if (in_pair) CHECK(seen && memcmp(seen, PAIR, sizeof PAIR) == 0);
        free(seen);
    }
    if (in_pair && pair->at.rank == 0) {
        transport_close(pair, false); /* tells the group's other rank that this rank failed */
    } else if (in_pair) {
        FAILS(transport_agree(pair, HVD_OK, ERR), HVD_RANK_LEFT);
        CHECK_HAS(ERR->text, "rank 2 could not open");
        transport_close(pair, false);
    }
    OK(transport_agree(all, HVD_OK, ERR));
    transport_close(all, true);
    OK(transport_agree(t, HVD_OK, ERR));
}

TEST(test_groups_share_the_streams_of_the_job) { run_everywhere(use_groups, NULL); }

/* Rank 1 has left the job, so opening a group with it fails. */
static void lack_a_rank(struct ranks *ranks, int rank, void *arg) {
    struct transport *t = rank_transport(ranks, rank), *group = NULL;
    hvd_error err = {0};
    if (rank == 1)
        close_own(ranks, rank, true);
    else
        CHECK_CODE(sockets_group(&group, t, ALL, RANKS, 7, *(bool *)arg, &err), HVD_RANK_LEFT, err);
    if (rank == 0) CHECK_HAS(err.text, "rank 1 has left the job");
    ranks_meet(ranks);
}

TEST(test_opening_a_group_with_a_rank_that_has_left_fails) {
    run_on(APART, false, lack_a_rank, &(bool){false});
    run_on(TOGETHER, true, lack_a_rank, &(bool){true});
}

static struct transport *open_among_all(struct transport *t, bool window) {
    struct transport *group = NULL;
    OK(sockets_group(&group, t, ALL, RANKS, 8, window, ERR));
    return group;
}

/* Looks at the streams as a busy engine does, or as an engine that sleeps after each look. No other
 * group of this rank looks at them. Returns the number of messages before the error. */
static int look_until_failure(struct transport *group, bool busy, hvd_error *err) {
    int words = 0, code = HVD_OK;
    for (double until = clock_now() + 60; !code && clock_now() < until;) {
        struct message m;
        unsigned ticket = transport_listen(group);
        code = transport_receive(group, &m, err);
        if (!code && m.data) words++;
        if (!code) free(m.data);
        if (!code && !m.data && !busy) transport_sleep(group, ticket, 0.1);
        if (!code) code = transport_check_life(group, err);
    }
    return words;
}

struct how {
    bool window, busy;
    enum fate fate;
};

/* All ranks have opened a group, but rank 1 closes it without starting an engine. The other ranks
 * get rank 1's messages before the error. */
static void close_a_group(struct ranks *ranks, int rank, void *arg) {
    const struct how *how = arg;
    struct transport *t = rank_transport(ranks, rank), *group = open_among_all(t, how->window);
    hvd_error err = {0};
    ranks_meet(ranks);
    for (int r = 0; rank == 1 && r < RANKS; r += 2) OK(transport_send(group, r, "words", 6, ERR));
    if (rank != 1) CHECK_INT(look_until_failure(group, how->busy, &err), 1);
    if (rank != 1) CHECK_CODE(err.code, HVD_RANK_LEFT, err);
    if (rank != 1) CHECK(err.nblamed == 1 && err.blamed[0] == 1);
    transport_close(group, false);
    OK(transport_agree(t, HVD_OK, ERR));
}

/* Rank 1's streams end like those of a killed process. */
static void die_in_a_group(struct ranks *ranks, int rank, void *arg) {
    const struct how *how = arg;
    struct transport *group = open_among_all(rank_transport(ranks, rank), how->window);
    hvd_error err = {0};
    ranks_meet(ranks);
    for (int r = 0; rank == 1 && r < RANKS; r += 2) {
        shutdown(ranks->sockets->data[1][r], SHUT_RDWR);
        shutdown(ranks->sockets->messages[1][r], SHUT_RDWR);
    }
    if (rank != 1) CHECK_INT(look_until_failure(group, how->busy, &err), 0);
    if (rank != 1) CHECK_CODE(err.code, HVD_RANK_DEAD, err);
    if (rank != 1) CHECK(err.nblamed == 1 && err.blamed[0] == 1);
    ranks_meet(ranks); /* rank 1 ends before the other ranks */
    transport_close(group, false);
    close_own(ranks, rank, false);
}

/* If set: after each munmap of this thread, this transport looks at its streams, as the engine of
 * another group might. */
static _Thread_local struct transport *looks;

int munmap(void *memory, size_t bytes) {
    int code = (int)syscall(SYS_munmap, memory, bytes);
    if (looks) transport_sleep(looks, transport_listen(looks), 0);
    return code;
}

/* Rank 1 reports its failure while rank 0 closes the same group. */
static void close_while_one_looks(struct ranks *ranks, int rank, void *arg) {
    struct transport *t = rank_transport(ranks, rank), *group = open_among_all(t, true);
    ranks_meet(ranks);
    if (rank) transport_close(group, false);
    ranks_meet(ranks);
    looks = t;
    if (!rank) transport_close(group, *(bool *)arg);
    looks = NULL;
    OK(transport_agree(t, HVD_OK, ERR));
}

TEST(test_a_failure_report_for_a_group_that_is_closing_changes_nothing) {
    run_on(TOGETHER, true, close_while_one_looks, &(bool){false});
    run_on(TOGETHER, true, close_while_one_looks, &(bool){true});
}

/* The kernel reports to rank 0's job that rank 1's process has ended. */
static void tell_of_a_death(struct ranks *ranks, int rank, void *arg) {
    const struct how *how = arg;
    struct transport *t = rank_transport(ranks, rank), *group = open_among_all(t, how->window);
    if (rank == 0) {
        OK(transport_check_life(group, ERR));
        transport_died(t, 1, how->fate);
        FAILS(transport_check_life(group, ERR), HVD_RANK_DEAD);
        CHECK(ERR->blamed[0] == 1 && group->death == 1 + FATES + (int)how->fate);
    }
    ranks_meet(ranks);
    transport_close(group, false);
    close_own(ranks, rank, false);
}

TEST(test_a_death_noticed_by_the_job_reaches_each_group) {
    run_on(APART, false, tell_of_a_death, &(struct how){.fate = FATE_HOST_LOST});
    run_on(TOGETHER, true, tell_of_a_death, &(struct how){.window = true});
    run_on(TOGETHER, true, tell_of_a_death, &(struct how){.window = true, .fate = FATE_SILENT});
}

static void run_each_way(rank_main *run) {
    for (int how = 0; how < 4; how++)
        run_on(how / 2 ? TOGETHER : APART, how / 2, run,
               &(struct how){how / 2, how % 2, FATE_DIED});
}

TEST(test_ranks_learn_that_another_rank_has_closed_their_group) { run_each_way(close_a_group); }
TEST(test_ranks_of_a_group_learn_that_one_of_them_died) { run_each_way(die_in_a_group); }

/* Rank 1 was killed after all ranks had left, so it does not read the last messages. */
static void fill_a_mailbox(struct ranks *ranks, int rank, void *arg) {
    static const char LONG[2 * MAILBOX_BYTES];
    if (rank == 0) {
        OK(transport_send(rank_transport(ranks, 0), 1, LONG, sizeof LONG, ERR));
        close_own(ranks, rank, true);
    }
    ranks_meet(ranks);
}

TEST(test_closing_does_not_wait_for_dead_ranks) { run_on(TOGETHER, true, fill_a_mailbox, NULL); }

/* The job knows that rank 2 and its host are lost, so no group can be opened any more. */
static void lose_a_host(struct ranks *ranks, int rank, void *arg) {
    struct transport *t = rank_transport(ranks, rank), *group = NULL;
    static const int PAIR[] = {0, 1};
    if (rank) return;
    transport_died(t, 2, FATE_HOST_LOST);
    FAILS(sockets_group(&group, t, PAIR, 2, 6, false, ERR), HVD_RANK_DEAD);
    CHECK_INT(ERR->blamed[0], 2);
}

/* The kernel of a lost host ends no stream, so the end of the job must not wait for that host. */
static void end_without_a_host(struct ranks *ranks, int rank, void *arg) {
    struct transport *t = rank_transport(ranks, rank);
    if (rank == 2) {
        ranks_meet(ranks);
        return;
    }
    transport_died(t, 2, FATE_HOST_LOST);
    double *took = (double *)arg + rank, begin = clock_now();
    close_own(ranks, rank, false);
    *took = clock_now() - begin;
    ranks_meet(ranks);
}

TEST(test_closing_does_not_wait_for_a_lost_host) {
    double took[RANKS] = {1, 1}; /* a busy core may delay ranks, so one fast rank is enough */
    for (int i = 0; i < 20 && fmin(took[0], took[1]) >= 0.1; i++)
        run_on(APART, false, end_without_a_host, took);
    CHECK(fmin(took[0], took[1]) < 0.1);
}

TEST(test_no_group_opens_in_a_job_that_has_lost_a_host) { run_on(APART, false, lose_a_host, NULL); }

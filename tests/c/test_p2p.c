/* Point-to-point: order, sizes, receives from any rank, and ranks that leave early. */
#include "letters.h"

#include "engine/stepping.h"
#include "random.h"

enum { MOST = BOUNCE_SLOTS * BOUNCE_SLOT + 30000 }; /* bytes, more than a bounce buffer */

static const size_t SIZES[] = {0, 1, 8 << 10, (8 << 10) + 1, 16 << 10, 50000, MOST};
enum { NSIZES = sizeof SIZES / sizeof *SIZES, EACH = 2 * NSIZES };

static size_t size_of(int number) { return SIZES[number % NSIZES]; }

/* Each rank sends to and receives from each other rank; odd ranks first receive. An allreduce runs
 * in between. */
ENGINES(all_main, arg) {
    int p = me->ranks->size;
    OWNED struct work(*l)[2][EACH] = room((size_t)p * sizeof *l);
    uint64_t random = (uint64_t)me->rank + 1;
    for (int turn = 0; turn < 2; turn++)
        for (int number = 0; number < EACH; number++)
            for (int d = 1; d < p; d++) {
                int peer = (me->rank + d) % p;
                hvd_kind kind = (me->rank + turn) % 2 ? HVD_RECV : HVD_SEND;
                OK(letter_start(&l[peer][kind == HVD_RECV][number], me, kind, peer,
                                number % 2 ? "odd" : "even", number, size_of(number)));
                if (random_below(&random, 8) == 0) clock_yield();
            }
    check_in_order(me, "together");
    REQUIRE(engine_rank_wait(me));
    for (int peer = 0; peer < p; peer++)
        for (int number = 0; number < EACH && peer != me->rank; number++) {
            CHECK_CODE(l[peer][0][number].error.code, HVD_OK, l[peer][0][number].error);
            check_received(&l[peer][1][number], peer, number);
            work_free(&l[peer][0][number]);
            work_free(&l[peer][1][number]);
        }
}

TEST(test_tensors_between_any_two_ranks_arrive_in_order) {
    for (int p = 2; p <= 5; p = more_ranks(p)) ranks_run(p, all_main, NULL);
    /* on one host, with bounce buffers */
    for (int p = 2; p <= 4; p = more_ranks(p)) ranks_run_on_window(p, all_main, NULL);
}

ENGINES_TEST(test_a_receive_from_any_rank_takes_the_first_sender, ranks_run, 2, 5) {
    int p = me->ranks->size;
    struct work l[MOST_RANKS];
    bool seen[MOST_RANKS] = {0};
    if (me->rank) {
        OK(letter_start(&l[0], me, HVD_SEND, 0, "any", 0, 30000));
        engine_rank_wait(me);
        CHECK_CODE(l[0].error.code, HVD_OK, l[0].error);
        work_free(&l[0]);
        return;
    }
    for (int i = 1; i < p; i++) OK(letter_start(&l[i], me, HVD_RECV, P2P_ANY, "any", 0, 30000));
    engine_rank_wait(me);
    for (int i = 1; i < p; i++) {
        int from = l[i].tensor.request.root;
        REQUIRE(from > 0 && from < p && !seen[from]);
        seen[from] = true;
        check_received(&l[i], from, 0);
        work_free(&l[i]);
    }
}

/* Rank 0 sends, and one of the ranks takes part only after the limit for stalls. test_p2p_expire.c
 * has other cases. */
ENGINES_BY(unmatched_main, arg, config.options.stall_failure = 1) {
    const int late = *(const int *)arg, peer = 1 - me->rank;
    hvd_kind kind = me->rank ? HVD_RECV : HVD_SEND;
    struct work first, next;
    if (me->rank == late) ranks_meet(me->ranks);
    OK(letter_start(&first, me, kind, peer, "x", 0, P2P_LOAN));
    engine_rank_wait(me);
    if (me->rank != late) ranks_meet(me->ranks);
    CHECK_INT(first.error.blamed[0], late);
    check_refused(&first, HVD_STALLED, me->rank ? "rank 1" : "rank 0");
    OK(letter_start(&next, me, kind, peer, "x", 1, P2P_LOAN));
    engine_rank_wait(me);
    if (me->rank) check_received(&next, 0, 1);
    CHECK_CODE(next.error.code, HVD_OK, next.error);
    work_free(&next);
}

TEST(test_an_unmatched_send_or_receive_fails_on_both_ranks) {
    for (int late = 0; late < 2; late++) {
        ranks_run(2, unmatched_main, &late);
        ranks_run_on_window(2, unmatched_main, &late);
    }
}

/* A long receive must wake the engine's thread only if there is memory to read. The thread may wake
 * by chance at the moment of a submission, so only a wake at each of N submissions is an error. */
ENGINES_TEST(test_a_long_receive_without_an_offer_does_not_wake_the_engine, ranks_run_on_window, 2,
             2) {
    enum { N = 50 };
    OWNED struct work *l = room(N * sizeof *l);
    int wakes = 0;
    for (int i = 0; i < N; i++) {
        if (!me->rank && !i) ranks_meet(me->ranks);
        unsigned before = progress_wakes(&me->engine->progress);
        OK(letter_start(&l[i], me, me->rank ? HVD_RECV : HVD_SEND, 1 - me->rank, "x", i, P2P_LOAN));
        wakes += progress_wakes(&me->engine->progress) != before;
    }
    if (me->rank) ranks_meet(me->ranks);
    CHECK_CASE(!me->rank || wakes < N, "%d wakes", wakes);
    engine_rank_wait(me);
    for (int i = 0; i < N; i++) {
        if (me->rank) check_received(&l[i], 0, i);
        work_free(&l[i]);
    }
}

/* What the receiver expects, which rank submits late, and the expected error text. */
struct mismatch {
    hvd_dtype dtype;
    size_t bytes[2];
    int late;
    const char *says;
};

/* A send of uint8 and a receive of another dtype or size; one is late. Later tensors must run. */
ENGINES(mismatch_main, arg) {
    const struct mismatch *m = arg;
    struct work first, next;
    if (me->rank == m->late) ranks_meet(me->ranks);
    int peer = 1 - me->rank;
    hvd_kind kind = me->rank ? HVD_RECV : HVD_SEND;
    OK(letter_start_of(me->rank ? m->dtype : HVD_UINT8, &first, me, kind, peer, "x", 0,
                       m->bytes[me->rank]));
    OK(letter_start(&next, me, kind, peer, "x", 1, 20000));
    if (me->rank != m->late) ranks_meet(me->ranks);
    engine_rank_wait(me);
    check_refused(&first, HVD_MISMATCH, m->says);
    if (me->rank) check_received(&next, 0, 1);
    CHECK_CODE(next.error.code, HVD_OK, next.error);
    work_free(&next);
}

static void check_mismatch(struct mismatch m) {
    for (m.late = 0; m.late < 2; m.late++) {
        ranks_run(2, mismatch_main, &m);
        ranks_run_on_window(2, mismatch_main, &m); /* long tensors go through a bounce buffer */
    }
}

TEST(test_a_receive_of_another_size_fails_on_both_ranks) {
    check_mismatch((struct mismatch){
        .dtype = HVD_UINT8,
        .bytes = {30000, 20000},
        .says = "rank 0 sends 30000 bytes of uint8, and rank 1 expects 20000 bytes of uint8"});
}

TEST(test_a_receive_of_another_dtype_fails_on_both_ranks) {
    check_mismatch((struct mismatch){
        .dtype = HVD_INT32,
        .bytes = {4, 4},
        .says = "rank 0 sends 4 bytes of uint8, and rank 1 expects 4 bytes of int32"});
    check_mismatch((struct mismatch){
        .dtype = HVD_FLOAT16,
        .bytes = {30000, 30000},
        .says = "rank 0 sends 30000 bytes of uint8, and rank 1 expects 30000 bytes of float16"});
}

/* Rank 0 leaves before or after the other ranks post their receives. A tensor that rank 0 has sent
 * must still arrive. */
ENGINES(leave_main, arg) {
    bool before = *(const bool *)arg;
    struct work sent[MOST_RANKS], good, from, to, any;
    if (me->rank == 0) {
        for (int r = 1; r < me->ranks->size; r++)
            OK(letter_start(&sent[r], me, HVD_SEND, r, "good", 0, 40000));
        if (before) engine_leave(me->engine, "out of data");
        ranks_meet(me->ranks);
        engine_leave(me->engine, "out of data");
        engine_rank_wait(me);
        for (int r = 1; r < me->ranks->size; r++) work_free(&sent[r]);
        return;
    }
    if (before) ranks_meet(me->ranks);
    OK(letter_start(&from, me, HVD_RECV, 0, "x", 0, 10));
    OK(letter_start(&to, me, HVD_SEND, 0, "x", 0, 10));
    if (me->ranks->size == 2) OK(letter_start(&any, me, HVD_RECV, P2P_ANY, "x", 0, 10));
    OK(letter_start(&good, me, HVD_RECV, 0, "good", 0, 40000));
    if (!before) ranks_meet(me->ranks);
    engine_rank_wait(me);
    check_refused(&from, HVD_RANK_LEFT, "rank 0, which should send it, has left: out of data");
    check_refused(&to, HVD_RANK_LEFT, "rank 0, which should receive it, has left: out of data");
    if (me->ranks->size == 2) check_refused(&any, HVD_RANK_LEFT, "has left");
    check_received(&good, 0, 0);
    work_free(&good);
}

TEST(test_a_receive_fails_if_its_sender_leaves) {
    for (int p = 2; p <= 4; p = more_ranks(p)) {
        ranks_run(p, leave_main, &(bool){true});
        ranks_run(p, leave_main, &(bool){false});
        ranks_run_on_window(p, leave_main, &(bool){p % 2});
    }
}

/* A receive fails if its own engine stops without leaving. */
ENGINES_TEST(test_a_stopped_engine_fails_its_receives, ranks_run, 2, 2) {
    struct work l;
    if (me->rank == 1) {
        OK(letter_start(&l, me, HVD_RECV, 0, "x", 0, 10));
        engine_rank_wait(me);
        check_refused(&l, HVD_TRANSPORT, "was stopped before the job ended");
    }
    engine_rank_stop(me);
}

/* A damaged message, as from another version, fails the job and its receives. */
struct damaged {
    struct p2p_head head;
    char name[1], data[3];
    const char *says;
};

ENGINES(damaged_main, arg) {
    struct work l;
    if (me->rank != 1) return;
    OK(letter_start(&l, me, HVD_RECV, 0, "x", 0, 10));
    engine_rank_wait(me);
    check_refused(&l, HVD_TRANSPORT, ((const struct damaged *)arg)->says);
}

static void send_damaged(struct ranks *ranks, int rank, void *arg) {
    if (!rank)
        OK(transport_send(rank_transport(ranks, 0), 1, arg, offsetof(struct damaged, says), ERR));
    damaged_main(ranks, rank, arg);
}

TEST(test_a_damaged_message_fails_the_job) {
    struct damaged of[] = {
        {{P2P_MARK, P2P_OFFER, 1, HVD_UINT8, 1, 10}, "x", "abc", "that offers 'x' is damaged"},
        {{P2P_MARK, P2P_PIECE, 1, 0, 1, 10}, "x", "abc", "from rank 0 is damaged"},
        {{P2P_MARK, P2P_READ, 1, 0, 1, 10}, "x", "abc", "from rank 0 is damaged"},
        {{P2P_MARK, P2P_DONE, 1, 0, 1, 10}, "x", "abc", "from rank 0 is damaged"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) ranks_run(2, send_damaged, &of[i]);
}

ENGINES_TEST(test_a_send_to_a_wrong_rank_is_refused, ranks_run, 2, 2) {
    struct work l;
    CHECK_INT(letter_start(&l, me, HVD_SEND, me->rank, "x", 0, 1), HVD_INVALID);
    CHECK_HAS(ERR->text, "expected another rank from 0 to 1");
    work_free(&l);
    CHECK_INT(letter_start(&l, me, HVD_SEND, P2P_ANY, "x", 0, 1), HVD_INVALID);
    work_free(&l);
    CHECK_INT(letter_start(&l, me, HVD_RECV, 2, "x", 0, 1), HVD_INVALID);
    work_free(&l);
}

ENGINES_TEST(test_a_rank_without_others_receives_from_no_rank, ranks_run, 1, 1) {
    struct work l;
    CHECK_INT(letter_start(&l, me, HVD_RECV, P2P_ANY, "x", 0, 1), HVD_INVALID);
    CHECK_HAS(ERR->text, "no other rank");
    work_free(&l);
}

/* Rank 1 submits after the warning has appeared in rank 0's flight recorder. */
ENGINES_BY(late_main, arg, config.flight = ((struct flight **)arg)[rank];
           config.options.stall_warning = 0.05) {
    struct work l;
    struct flight_memory *memory = ((struct flight **)arg)[0]->memory;
    for (double end = clock_now() + PATIENCE; me->rank && !atomic_load(&memory->troubles);) {
        REQUIRE(clock_now() < end);
        clock_nap(1e-3);
    }
    OK(letter_start(&l, me, me->rank ? HVD_SEND : HVD_RECV, 1 - me->rank, "late", 0, 10));
    engine_rank_wait(me);
    if (me->rank == 0) { /* the warning appears after 0.05 s, or after a second on a busy machine */
        CHECK_HAS(memory->trouble, "'late' has waited for ");
        CHECK_HAS(memory->trouble, " s on rank 0: a recv from rank 1");
    }
    work_free(&l);
}

TEST(test_a_receive_that_waits_too_long_is_reported) {
    struct flight *of[2];
    for (int r = 0; r < 2; r++) REQUIRE(flight_open(&of[r], ERR) == HVD_OK);
    ranks_run(2, late_main, of);
    for (int r = 0; r < 2; r++) flight_close(of[r]);
}

/* The fusion planner: exact thresholds, tensors that can't be fused, look-ahead, numbering. Also
 * how much is decided ahead, with a fixed number of bytes or with the measured rate. */
#include "requests.h"

#include "negotiation/ahead.h"
#include "negotiation/fusion.h"
#include "random.h"

enum { MOST = 40 };

/* Plans the requests; digit i of `expected` is the batch of request i. */
static void plan_is(const struct request *requests, size_t threshold, const char *expected) {
    struct fusion_item list[MOST] = {0};
    size_t batch[MOST], n = strlen(expected), most = 0;
    for (size_t i = 0; i < n; i++)
        list[i] = (struct fusion_item){&requests[i], request_bytes(&requests[i]), false};
    size_t batches = fusion_plan(list, n, threshold, batch);
    char got[MOST + 1] = "";
    for (size_t i = 0; i < n; i++) {
        got[i] = (char)('0' + batch[i]);
        most = batch[i] + 1 > most ? batch[i] + 1 : most;
    }
    CHECK_TEXT(got, expected);
    CHECK_INT(batches, most);
}

TEST(test_a_batch_has_at_most_the_threshold) {
    struct request r[] = {request_of("a", 10), request_of("b", 10),
                          request_of("c", 5)}; /* 40, 40, 20 bytes */
    plan_is(r, 0, "012");
    plan_is(r, 39, "012");
    plan_is(r, 59, "012");
    plan_is(r, 60, "010");
    plan_is(r, 79, "010");
    plan_is(r, 80, "001");
    plan_is(r, 99, "001");
    plan_is(r, 100, "000");
    plan_is(r, SIZE_MAX, "000");
    plan_is(r, 100, "");
}

TEST(test_a_tensor_above_the_threshold_is_a_batch_of_its_own) {
    struct request r[] = {request_of("a", 1000), request_of("b", 1), request_of("c", 1000),
                          request_of("d", 1)};
    plan_is(r, 100, "0121");
    plan_is(r, 1, "0123");
}

TEST(test_empty_tensors_are_fused) {
    struct request r[] = {request_of("a", 0), request_of("b", 0), request_of("c", 1)};
    plan_is(r, 0, "012");
    plan_is(r, 4, "000");
}

TEST(test_a_batch_has_one_kind_dtype_op_and_scale) {
    struct request a = request_of("a", 4), r[MOST];
    for (int i = 0; i < 9; i++) r[i] = a;
    r[1].dtype = HVD_INT32;
    r[2].op = HVD_AVERAGE;
    r[3].prescale = 2;
    r[4].postscale = 2;
    r[5] = broadcast_of("b", 4, 0);
    r[6] = broadcast_of("b", 4, 1);
    r[7] = broadcast_of("b", 4, 0);
    plan_is(r, 1000, "012345650");
    r[1].priority = 9; /* priorities and shapes are ignored */
    r[2] = a;
    r[2].priority = -9;
    r[2].ndim = 0;
    plan_is(r, 1000, "010");
    for (int i = 0; i < 7; i++) r[i] = a;
    r[1].codec = r[3].codec = (struct codec){HVD_CODEC_2BIT, 0.5};
    r[2].codec = (struct codec){HVD_CODEC_2BIT, 0.25};
    r[4].rule = r[6].rule = HVD_SGD;
    r[5].rule = HVD_ADAM;
    plan_is(r, 1000, "0121343");
    for (int i = 0; i < 7; i++) r[i] = a;
    r[1].delegated = r[3].delegated = r[5].delegated = true;
    r[5].dtype = HVD_INT32;
    plan_is(r, 1000, "010102");
}

TEST(test_allgather_and_adasum_tensors_are_not_fused) {
    struct request r[] = {gather_of("a", 1, 1), request_of("b", 1), gather_of("c", 1, 1),
                          request_of("d", 1)};
    plan_is(r, 1000, "0121");
    for (int kind = HVD_REDUCESCATTER; kind < HVD_KINDS; kind++) {
        r[0].kind = r[2].kind = kind;
        plan_is(r, 1000, "0121");
    }
    r[0] = r[2] = r[1];
    r[0].op = r[2].op = HVD_ADASUM; /* Adasum's rule applies to single tensors */
    plan_is(r, 1000, "0121");
}

/* Random tensors: batches are full, of one kind, and numbered in the order of their first
 * tensors. */
TEST(test_random_tensors_fuse_into_full_batches_of_one_kind) {
    uint64_t random = 4;
    for (int round = 0; round < 2000; round++) {
        struct request r[MOST];
        struct fusion_item list[MOST] = {0};
        size_t batch[MOST], bytes[MOST] = {0}, count[MOST] = {0}, n = random_below(&random, MOST);
        size_t threshold = random_below(&random, 400), seen = 0;
        for (size_t i = 0; i < n; i++) {
            r[i] = numbered_request((int)i, (int64_t)random_below(&random, 50));
            r[i].kind = (int32_t)random_below(&random, HVD_KINDS);
            r[i].dtype = random_next(&random) % 2 ? HVD_FLOAT32 : HVD_INT8;
            list[i] = (struct fusion_item){&r[i], request_bytes(&r[i]), false};
        }
        size_t batches = fusion_plan(list, n, threshold, batch);
        for (size_t i = 0; i < n; i++) {
            CHECK(batch[i] <= seen && batch[i] < batches);
            seen += batch[i] == seen;
            bytes[batch[i]] += request_bytes(&r[i]);
            count[batch[i]]++;
            for (size_t j = 0; j < i; j++)
                if (batch[j] == batch[i])
                    CHECK(r[i].kind == r[j].kind && r[i].dtype == r[j].dtype &&
                          r[i].kind <= HVD_BROADCAST);
        }
        CHECK_INT(seen, batches);
        for (size_t b = 0; b < batches; b++) CHECK(count[b] == 1 || bytes[b] <= threshold);
    }
}

/* ---- how many bytes may be in batches that have not finished ---- */

enum { MIB = 1 << 20, LEAST = MIB };

static void decided(struct ahead *p, size_t bytes, double now) {
    OK(ahead_decided(p, bytes, now, ERR));
}

TEST(test_without_a_limit_all_tensors_are_decided_immediately) {
    OWN(ahead_free) struct ahead p = {0};
    for (int i = 0; i < 100; i++) {
        CHECK(ahead_takes(&p, SIZE_MAX, 0));
        decided(&p, MIB, 0);
    }
    CHECK(ahead_piece(&p) == SIZE_MAX);
}

/* Two batches of any size may be decided, and more if together they fit into a piece. */
TEST(test_a_fixed_number_of_bytes_ahead_allows_two_batches) {
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

/* Runs a batch of `bytes` that is decided when the previous batch has finished. Returns its end. */
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

TEST(test_the_size_of_a_piece_follows_the_measured_rate) {
    OWN(ahead_free) struct ahead p = {.bytes_ahead = AHEAD_MEASURED};
    check_piece(&p, LEAST);
    double now = run(&p, 10 * MIB, 1e9, 5);
    check_piece(&p, 10e6); /* 10 ms */
    now = run(&p, 64, 1e3, now);
    /* small batches do not count, because they measure the latency */
    check_piece(&p, 10e6);
    now = run(&p, 10 * MIB, 1e9, 1000); /* the idle time before does not change the rate */
    check_piece(&p, 10e6);
    decided(&p, 10 * MIB, now);
    decided(&p, 10 * MIB, now); /* begins when the previous batch has finished */
    ahead_finished(&p, now + 10 * MIB / 1e9);
    ahead_finished(&p, now + 20 * MIB / 1e9);
    check_piece(&p, 10e6);
    for (int i = 0; i < 2; i++) now = run(&p, 10 * MIB, 1e6, now); /* a rank was late */
    check_piece(&p, 10e6);
    for (int i = 0; i < AHEAD_RATES; i++) now = run(&p, MIB, 20e6, now);
    check_piece(&p, LEAST);
    for (int i = 0; i < AHEAD_RATES; i++) now = run(&p, MIB, 5e9, now);
    check_piece(&p, 50e6);
    ahead_finished(&p, now); /* changes nothing, because no batch is under way */
}

TEST(test_the_next_batch_is_decided_shortly_before_the_present_one_ends) {
    OWN(ahead_free) struct ahead p = {.bytes_ahead = AHEAD_MEASURED};
    decided(&p, 4 * MIB, 0);
    CHECK(ahead_takes(&p, 4 * MIB, 0)); /* the rate is unknown */
    ahead_finished(&p, 0.4);            /* 4 MiB in 0.4 s: a piece, 1 MiB, takes 0.1 s */
    CHECK(ahead_takes(&p, 4 * MIB, 0.4));
    decided(&p, 2 * MIB, 1);
    CHECK_NEAR(ahead_opens(&p), 1.17, 1e-9);
    CHECK(!ahead_takes(&p, 1, 1.1) && ahead_takes(&p, SIZE_MAX, 1.18));
    decided(&p, MIB / 2, 1.18); /* begins at 1.2, when the previous batch has finished */
    CHECK(isinf(ahead_opens(&p)));
    ahead_finished(&p, 1.2);
    CHECK_NEAR(ahead_opens(&p), 1.22, 1e-9);
    CHECK(ahead_takes(&p, MIB / 2, 1.2)); /* two batches of MIB / 2 are one piece, 1 MiB */
    ahead_finished(&p, 1.3);
    for (int i = 0; i < AHEAD_RATES; i++) run(&p, 10 * MIB, 1e9, 10 + i);
    decided(&p, 10000000, 40);
    CHECK_NEAR(ahead_opens(&p), 40.005, 1e-9); /* when 5 ms of the batch, half a piece, are left */
}

TEST(test_a_clock_that_stands_still_gives_no_rate) {
    OWN(ahead_free) struct ahead p = {.bytes_ahead = AHEAD_MEASURED};
    for (int i = 0; i < 20; i++) {
        decided(&p, MIB, 3);
        ahead_finished(&p, 3);
    }
    CHECK_INT(ahead_piece(&p), LEAST);
}

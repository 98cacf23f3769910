/* The fusion planner: thresholds to the byte, what may not be mixed, look-ahead, numbering. */
#include "requests.h"

#include "negotiation/ready.h"
#include "random.h"

enum { MOST = 40 };

/* Plans requests and compares with batch numbers as digits. */
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

TEST(test_bigger_than_the_threshold_goes_alone) {
    struct request r[] = {request_of("a", 1000), request_of("b", 1), request_of("c", 1000),
                          request_of("d", 1)};
    plan_is(r, 100, "0121");
    plan_is(r, 1, "0123");
}

TEST(test_empty_tensors) {
    struct request r[] = {request_of("a", 0), request_of("b", 0), request_of("c", 1)};
    plan_is(r, 0, "012");
    plan_is(r, 4, "000");
}

TEST(test_not_mixed) {
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
    r[1].priority = 9; /* priorities and shapes do not matter */
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
}

TEST(test_what_stays_alone) {
    struct request r[] = {gather_of("a", 1, 1), request_of("b", 1), gather_of("c", 1, 1),
                          request_of("d", 1)};
    plan_is(r, 1000, "0121");
    for (int kind = HVD_REDUCESCATTER; kind < HVD_KINDS; kind++) {
        r[0].kind = r[2].kind = kind;
        plan_is(r, 1000, "0121");
    }
    r[0] = r[2] = r[1];
    r[0].op = r[2].op = HVD_ADASUM; /* its rule is for one tensor */
    plan_is(r, 1000, "0121");
}

/* Whatever comes in: full, homogeneous batches, numbered by their first tensors. */
TEST(test_batches_are_full_and_of_one_kind) {
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

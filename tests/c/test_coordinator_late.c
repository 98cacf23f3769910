/* The coordinator decides late, because only an undecided tensor can be overtaken, fused and
 * cut. */
#include "coordinator_case.h"

#include "negotiation/ahead.h"

#include "random.h"

enum { KIB = 1024, RANKS = 2 };

/* A piece has half of the bytes that are decided ahead. */
static struct coordinator_config config_of(size_t ahead) {
    return CONFIG(RANKS, .fusion_bytes = SIZE_MAX, .bytes_ahead = ahead, .cache_capacity = 100);
}

TEST(test_the_coordinator_decides_two_batches_ahead) {
    CHECK_STORY(config_of(2000), "*+a:250 *+b:250 *+c:250 *+d:250 -> Ta R Tb R; ->;"
                                 "t=1 f -> Tc R; t=2 f t=3 f t=4 f -> Td R");
}

TEST(test_a_tensor_of_higher_priority_overtakes_undecided_tensors) {
    CHECK_STORY(config_of(2000), "*+last:250@-3 -> Tlast R;"
                                 "*+third:250@-2 *+second:250@-1 -> Tsecond R;"
                                 "*+front:250 ->; t=1 f -> Tfront R; t=2 f -> Tthird R");
}

/* c, d and e have more bytes than one batch may have, so e comes in another batch. */
TEST(test_waiting_tensors_are_fused) {
    CHECK_STORY(config_of(2000), "*+a:250 *+b:250 -> Ta R Tb R; *+c:100 ->; *+d:100 ->;"
                                 "*+e:100 t=1 f -> Tc Td R; t=2 f -> Te R");
}

/* If a decision had only one or two batches, most of these tensors would wait for later
 * decisions. */
SCENE(test_many_small_tensors_that_cannot_be_fused_are_decided_at_once,
      CONFIG(RANKS, .bytes_ahead = 2000)) {
    for (int i = 0; i < 12; i++) all_say(s, RANKS, numbered_request(i, 25));
    CHECK_INT(decide(s, 0), 20); /* two items for each of ten tensors with 1000 bytes in all */
    STORY(s, "f -> Ttensor.10 R");
}

SCENE(test_a_large_tensor_is_cut, config_of(256 * KIB)) {
    STORY(s, "*+a:120000 -> Ta:0-131072 R Ta:131072-262144 R"); /* 480,000 bytes */
    uint64_t id = s->got[0].item.id;
    CHECK_INT(s->got[2].item.id, 0); /* 0: only the first piece has the id */
    STORY(s, "*+front:10@1 t=1 f -> Tfront R; t=2 f -> Ta:262144-393216 R;"
             "t=3 f -> Ta:393216-480000 R; t=4 f t=5 f ->");
    for (int i = 0; i < RANKS; i++) hits(s, i, id, 6);
    CHECK_INT(decide(s, 6), 4);
    CHECK(s->got[0].item.id == id && s->got[2].item.id == id);
}

/* Cutting is useful only if a tensor of higher priority is known. */
TEST(test_a_tensor_that_nothing_overtakes_is_not_cut) {
    CHECK_STORY(config_of(AHEAD_MEASURED),
                "*+a:1048576 -> Ta R; f *+front:10@1 -> Tfront R;"
                "f *+b:307200 *+c:307200@1 -> Tc R Tb R;"
                "f f *+d:1048576 -> Td:0-1048576 R Td:1048576-2097152 R");
}

/* The rest of a tensor shares a batch with other tensors; a short rest is part of the piece before
 * it. */
TEST(test_the_rest_of_a_large_tensor_shares_a_batch) {
    /* a is 1.25 pieces long, b is 1.625 pieces long */
    CHECK_STORY(config_of(256 * KIB), "*+a:40960 *+b:53248 *+c:10 -> Ta R Tb:0-131072 R;"
                                      "t=1 f -> Tb:131072-212992 Tc R");
}

/* If a batch has room, it must not take the end of a tensor before the tensor's beginning. */
TEST(test_pieces_of_a_tensor_run_in_order) {
    CHECK_STORY(config_of(256 * KIB), "*+small:10 *+a:53248 -> Tsmall R Ta:0-131072 R;"
                                      "t=1 f -> Ta:131072-212992 R");
}

TEST(test_adasum_allgather_and_2bit_tensors_are_not_cut_into_pieces) {
    struct request whole[] = {request_of("a", 100 * KIB), gather_of("b", 100 * KIB, 1),
                              request_of("c", 100 * KIB)};
    whole[0].op = HVD_ADASUM;
    whole[2].codec = (struct codec){HVD_CODEC_2BIT, 0.5};
    for (int i = 0; i < 3; i++) {
        struct scene s;
        scene_open(&s, config_of(2));
        all_say(&s, RANKS, whole[i]);
        decide(&s, 0);
        CHECK(s.n == 2 && !s.got[0].item.cut);
        scene_close(&s);
    }
}

/* A joined rank can supply zeros only for a whole tensor in one batch. */
SCENE(test_a_tensor_that_a_joined_rank_lacks_is_not_cut, config_of(2)) {
    STORY(s, "1j 0+a:102400 -> Ta R");
    CHECK(s->got[0].item.whole && !s->got[0].item.cut);
}

TEST(test_a_disagreement_fails_at_once_although_tensors_are_decided_late) {
    CHECK_STORY(config_of(2000), "*+a:250 *+b:250 *+c:250 -> Ta R Tb R;"
                                 "0+odd:3 1+odd:4 -> Fodd; t=1 f -> Tc R");
}

TEST(test_the_coordinator_ends_only_after_all_ready_tensors) {
    CHECK_STORY(config_of(2000), "*+a:250 *+b:250 *+c:250 *- -> Ta R Tb R; ->; t=1 f -> Tc R B");
}

/* ---- random submissions, joins and decisions ---- */

enum { TENSORS = 30 };

struct story {
    struct scene s;
    struct request of[TENSORS];
    size_t taken[TENSORS]; /* by tensor: bytes in batches so far */
    bool said[TENSORS], done[TENSORS];
    size_t ahead;                /* limit of bytes that are decided and not finished */
    size_t batch[512], first, n; /* bytes of the decided batches */
};

/* Checks one piece of a batch, and returns the piece's bytes. `begins`: this piece is the first of
 * the batch. */
static size_t check_piece(struct story *t, const struct wire_item *item, bool begins) {
    int i = 0;
    REQUIRE(sscanf(item->request.name, "tensor.%d", &i) == 1);
    size_t bytes = request_bytes(&t->of[i]), begin = item->cut ? item->begin : 0;
    CHECK(t->said[i] && !t->done[i] && begin == t->taken[i]);
    for (int j = 0; j < TENSORS && begins; j++)
        if (t->said[j] && !t->done[j]) CHECK(t->of[j].priority <= t->of[i].priority);
    t->taken[i] = item->cut ? item->end : bytes;
    t->done[i] = t->taken[i] == bytes;
    return t->taken[i] - begin;
}

static void check_decided(struct story *t) {
    size_t bytes = 0, pieces = 0;
    decide(&t->s, 0);
    CHECK(t->s.n < MOST_DECIDED);
    for (int i = 0; i < t->s.n; i++) {
        const struct wire_item *item = &t->s.got[i].item;
        if (item->type == WIRE_TENSOR) {
            bytes += check_piece(t, item, pieces++ == 0);
            continue;
        }
        CHECK_INT(item->type, WIRE_RUN);
        size_t piece = t->ahead / 2 + 1 > 64 * KIB ? t->ahead / 2 + 1 : 64 * KIB;
        CHECK(bytes <= piece + piece / 2 + 1);
        t->batch[t->n++] = bytes;
        bytes = pieces = 0;
    }
    size_t under_way = 0;
    for (size_t i = t->first; i < t->n; i++) under_way += t->batch[i];
    CHECK(t->n - t->first <= 2 || under_way <= t->ahead);
}

static void tell(uint64_t seed) {
    struct story t = {.ahead = 2 + random_below(&seed, 300 * KIB)};
    struct coordinator_config config = config_of(t.ahead);
    config.options.cache_capacity = 0; /* no cache, so decisions name every tensor */
    scene_open(&t.s, config);
    int said = 0;
    while (said < TENSORS || t.first < t.n) {
        if (said < TENSORS && random_below(&seed, 2)) {
            t.of[said] = numbered_request(said, (int64_t)random_below(&seed, 100 * KIB));
            t.of[said].priority = (int)random_below(&seed, 9);
            all_say(&t.s, RANKS, t.of[said]);
            t.said[said++] = true;
        } else if (t.first < t.n) {
            coordinator_finished(t.s.c, 0);
            t.first++;
        }
        check_decided(&t);
    }
    for (int i = 0; i < TENSORS; i++) CHECK(t.done[i]);
    scene_close(&t.s);
}

TEST(test_every_tensor_is_decided_whatever_ranks_submit) {
    for (uint64_t seed = 1; seed <= (CHECK_SLOW ? 20 : 200); seed++) tell(seed);
}

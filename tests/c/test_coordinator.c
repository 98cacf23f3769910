/* The coordinator: which tensors run, when, in which order, by name or by id; disagreements; the
 * cache. */
#include "coordinator_case.h"

static struct coordinator_config config_of(int size) {
    return CONFIG(size, .fusion_bytes = 1000, .cache_capacity = 100);
}

TEST(test_a_tensor_runs_when_all_ranks_have_submitted_it) {
    for (int size = 1; size <= 9; size++) {
        struct scene s;
        scene_open(&s, config_of(size));
        for (int rank = size - 1; rank >= 0; rank--) {
            STORY(&s, "->");
            says(&s, rank, request_of("a", 3), 0);
        }
        STORY(&s, "-> Ta R; ->");
        CHECK(s.out.size == 0);
        scene_close(&s);
    }
}

/* If ranks give different priorities, the priority of the first rank to submit counts. */
TEST(test_ready_tensors_run_by_priority_then_by_arrival) {
    CHECK_STORY(CONFIG(2, .cache_capacity = 100),
                "0+a@-2 0+b@5 0+c@-2 0+d@7 0+e@5 1+a@99 1+b@98 1+c@97 1+d@96 1+e@95"
                "-> Td R Tb R Te R Ta R Tc R");
}

TEST(test_tensors_of_one_batch_fit_the_fusion_threshold) {
    CHECK_STORY(config_of(2), "*+a:10 *+g:10x1 *+b:1000 *+c:10 -> Ta Tc R Tg R Tb R");
}

/* If a rank sends the whole request again, the decision has the name and a new id. */
TEST(test_requests_for_a_repeated_tensor_have_only_its_id) {
    CHECK_STORY(config_of(3), "*+a -> Ta R ? new; *#a -> T#a R; *#a -> T#a R; *#a -> T#a R;"
                              "0#a 1+a 2#a -> Ta R ? new; *#a -> T#a R");
}

TEST(test_without_a_cache_no_tensor_gets_an_id) {
    CHECK_STORY(CONFIG(2, .fusion_bytes = 1000), "*+a -> Ta R ? no id; *+a -> Ta R ? no id");
}

/* The cache has room for one tensor, so it drops a when b runs. */
TEST(test_a_rank_is_asked_for_a_request_that_the_cache_has_dropped) {
    CHECK_STORY(CONFIG(2, .cache_capacity = 1), "*+a -> Ta R; 0#a ->; *+b -> Tb R; 1#a -> S1;"
                                                "1+a -> Ta R ? new; 0#! -> S0");
}

/* If ranks disagree on a new shape, the shape on which they agreed last stays in the cache. */
TEST(test_a_cached_tensor_may_change_its_shape) {
    CHECK_STORY(config_of(2), "*+a -> Ta R; *+a:4 -> Ta R ? new; 0#A -> S0;"
                              "0+a:5 1#a -> Fa ? (5,) & (4,); *#a -> T#a R");
}

/* Only rank 1 changes its number of rows. */
TEST(test_a_decision_has_the_rows_of_every_rank_of_an_allgather) {
    CHECK_STORY(config_of(3), "0+g:0x5 1+g:2x5 2+g:4x5 -> Tg R ? rows 0 2 4;"
                              "0#g 2#g 1+g:7x5 -> Tg R ? new & rows 0 7 4; *#g -> T#g R");
}

/* tests/contract/test_refusals.py checks the other fields. */
SCENE(test_a_tensor_fails_if_ranks_give_it_different_kinds, config_of(2)) {
    says(s, 0, request_of("w", 3), 0);
    says(s, 1, broadcast_of("w", 3, 0), 0);
    STORY(s, "*+good -> Fw Tgood R ? 'w' & kind & rank 0: allreduce & rank 1: broadcast");
    CHECK_INT(s->got[0].item.error.code, HVD_MISMATCH);
    STORY(s, "*+w -> Tw R");
}

/* The rows of an allgather may differ, so the error must show the shape of each rank. */
TEST(test_the_error_of_an_allgather_has_the_shape_of_each_rank) {
    CHECK_STORY(config_of(3), "0+w:3x4 1+w:5x4 2+w:3x7 -> Fw ? (3, 4) & (5, 4) & (3, 7)");
}

/* With the longest name and shapes, the text is truncated and nothing else goes wrong. */
SCENE(test_a_long_error_about_a_disagreement_is_cut, config_of(9)) {
    for (int i = 0; i < 9; i++) {
        struct request r = request_of("", 1);
        memset(r.name, 'n', HVD_MAX_NAME - 1);
        r.ndim = HVD_MAX_DIMS;
        for (int k = 0; k < HVD_MAX_DIMS; k++) r.dims[k] = k ? 1 : i + 1;
        says(s, i, r, 0);
    }
    CHECK_INT(decide(s, 0), 1);
    CHECK_INT(s->got[0].item.type, WIRE_FAIL);
}

/* All ranks get the same text, which lists the reasons in the order of ranks. The shape of a rank
 * without data is ignored. */
SCENE(test_a_rank_says_why_it_has_no_data, config_of(3)) {
    struct request r = gather_of("a", 3, 2), wrong = request_of("a", 0);
    wrong.kind = r.kind;
    wrong.ndim = 0;
    wrong.failed = true;
    OK(coordinator_request(s->c, 2, &wrong, "splits are bad", 0, ERR));
    says(s, 1, r, 0);
    OK(coordinator_request(s->c, 0, &wrong, "splits are worse", 0, ERR));
    CHECK_INT(decide(s, 0), 1);
    CHECK_INT(s->got[0].item.type, WIRE_FAIL);
    CHECK_INT(s->got[0].item.error.code, HVD_INVALID);
    CHECK_TEXT(s->got[0].item.error.text, "rank 0: splits are worse; rank 2: splits are bad");
    CHECK_INT(s->got[0].item.error.nblamed, 2);
}

/* The text names only the rank whose operator failed, because the user can look up this operator's
 * error. */
SCENE(test_ranks_without_memory_are_not_named_beside_a_failed_operator, config_of(3)) {
    struct request r[3] = {request_of("a", 3), request_of("a", 3), request_of("a", 3)};
    r[1].failed = HVD_FAILED;
    r[2].failed = HVD_NO_MEMORY;
    for (int i = 0; i < 3; i++) says(s, i, r[i], 0);
    CHECK_INT(decide(s, 0), 1);
    const hvd_error *error = &s->got[0].item.error;
    CHECK_CODE(error->code, HVD_FAILED, *error);
    CHECK_HAS(error->text, "no data from rank 1: an operator failed");
    CHECK(error->nblamed == 1 && error->blamed[0] == 1);
    r[1].failed = HVD_NO_MEMORY;
    for (int i = 0; i < 3; i++) says(s, i, r[i], 0);
    CHECK_INT(decide(s, 0), 1);
    CHECK_CODE(error->code, HVD_NO_MEMORY, *error);
    CHECK_HAS(error->text, "no data from ranks 1, 2: no memory");
}

/* The tensors that not all ranks have must fail, too; otherwise they would wait for ever. */
TEST(test_grouped_calls_with_different_numbers_of_tensors_fail) {
    CHECK_STORY(
        config_of(3),
        "*+a[0]/2 *+a[1]/2 -> Ta[0] Ta[1] R;"
        "0+a[0]/3 0+a[1]/3 0+a[2]/3 1+a[0]/2 1+a[1]/2 0+b 0+c[2]/3 0+a[9] "
        "2+a[0]/3 2+a[1]/3 2+a[2]/3 -> Fa[0] Fa[2] Fa[1] ? number of tensors: ranks 0, 2: 3;"
        "1+b 2+b 1+c[2]/3 2+c[2]/3 -> Tb Tc[2] R; 1+a[9] 2+a[9] -> Ta[9] R");
}

/* Both calls contain a[1], so its error must wait until rank 1 has submitted a[1], too. */
TEST(test_grouped_calls_with_different_numbers_of_tensors_fail_even_if_submitted_in_parts) {
    CHECK_STORY(config_of(2),
                "0+a[0]/3 0+a[1]/3 0+a[2]/3 1+a[0]/2 -> Fa[0] Fa[2]; 1+a[1]/2 -> Fa[1]");
}

/* The cache keeps `uneven` (one rank chooses its splits) until some rank's request changes. */
SCENE(test_all_ranks_learn_that_one_rank_chooses_its_splits, config_of(2)) {
    struct request even = gather_of("a", 4, 2), own = even;
    even.kind = own.kind = HVD_ALLTOALL;
    own.uneven = true;
    says(s, 0, even, 0);
    says(s, 1, own, 0);
    CHECK_INT(decide(s, 0), 2);
    CHECK(s->got[0].item.uneven);
    uint64_t id = s->got[0].item.id;
    hits(s, 0, id, 0);
    hits(s, 1, id, 0);
    CHECK_INT(decide(s, 0), 2);
    CHECK(s->got[0].item.uneven && s->got[0].item.id == id);
    all_say(s, 2, even);
    CHECK_INT(decide(s, 0), 2);
    CHECK(!s->got[0].item.uneven);
}

SCENE(test_a_tensor_that_one_rank_submits_twice_is_an_error, config_of(2)) {
    struct request r = request_of("a", 3);
    says(s, 0, r, 0);
    FAILS(coordinator_request(s->c, 0, &r, "", 0, ERR), HVD_INTERNAL);
    CHECK_HAS(ERR->text, "'a'");
}

/* The coordinator after ranks have joined: which collectives run without these ranks, and which
 * fail. */
#include "coordinator_case.h"

static struct coordinator_config config_of(int size) {
    return CONFIG(size, .fusion_bytes = 1000, .cache_capacity = 100, .stall_warning = 60);
}

TEST(test_tensors_submitted_after_a_join_do_not_wait_for_the_joined_rank) {
    CHECK_STORY(config_of(3), "0j 2j 1+a:7 -> Ta R ? whole & rows 0 2");
}

SCENE(test_a_waiting_tensor_goes_on_when_the_missing_rank_joins, config_of(3)) {
    STORY(s, "0+a:7 2+a:7 ->; 1j -> Ta R ? whole & rows 1");
    CHECK_INT(s->got[0].item.request.dims[0], 7);
    CHECK_INT(s->got[0].item.request.dtype, HVD_FLOAT32);
}

SCENE(test_a_joined_rank_gets_the_whole_request_of_a_cached_tensor, config_of(2)) {
    STORY(s, "*+a:7 -> Ta R");
    uint64_t id = s->ids['a'];
    STORY(s, "0j 1#a -> Ta R ? whole & rows 0");
    CHECK_INT(s->ids['a'], id);
}

/* After all ranks have joined, tensor a waits for all ranks again. */
SCENE(test_after_the_last_rank_joins_tensors_wait_for_all_ranks_again, config_of(3)) {
    STORY(s, "0j 2j ->; 1j -> Tjoin R ? no id & rows 1; 1+a:7 ->; 0+a:7 2+a:7 -> Ta R");
    CHECK(!s->got[0].item.whole);
}

TEST(test_sums_over_different_ranks_are_not_fused) {
    CHECK_STORY(config_of(3), "*+full:7 1+two:7 2+two:7 0j -> Tfull R Ttwo R");
}

static void check_refused(struct request r, const char *what) {
    struct scene s;
    scene_open(&s, config_of(2));
    STORY(&s, "1j");
    says(&s, 0, r, 0);
    STORY(&s, "-> Fx ? 'x': rank 1 already joined & rows 0");
    CHECK_HAS(s.got[0].item.error.text, what);
    scene_close(&s);
}

TEST(test_after_a_join_a_collective_fails_if_zeros_change_its_result) {
    struct request max = request_of("x", 3);
    max.op = HVD_MAX;
    check_refused(max, "allreduce with op Max");
    check_refused(broadcast_of("x", 3, 0), "broadcast");
    check_refused(gather_of("x", 3, 2), "allgather");
    struct request delegated = request_of("x", 3);
    delegated.delegated = true;
    check_refused(delegated, "allreduce with op Sum of a GPU's tensor. Set HVDLITE_GPU=host");
}

TEST(test_an_error_about_a_disagreement_names_only_ranks_that_submitted) {
    CHECK_STORY(config_of(4), "0j 1+a 2+a:4 3+a -> Fa ? shape: ranks 1, 3: (3,) & rank 2: (4,)");
}

SCENE(test_a_rank_that_waits_in_join_is_not_reported_as_stalled, config_of(2)) {
    struct reports r;
    STORY(s, "0j");
    CHECK_INT(look(s, 1000, &r), 0);
}

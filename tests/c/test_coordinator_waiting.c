/* The coordinator when ranks have left or stall; texts that list ranks. */
#include "coordinator_case.h"

static struct coordinator_config config_of(int size) {
    return CONFIG(size, .fusion_bytes = 1000, .cache_capacity = 100, .stall_warning = 10,
                  .stall_failure = 60);
}

SCENE(test_a_tensor_that_waits_for_a_rank_in_its_last_tensor_fails, config_of(3)) {
    struct request last = request_of("last", 0);
    last.last = true;
    says(s, 1, last, 0);
    STORY(s, "-> ; 2+a 2+b -> Flast Fa Fb ? 'a' & rank 1 has reached the last & rows 1");
    STORY(s, "0+a -> Fa ? 'a' & rank 1 has reached the last & rows 0");
}

TEST(test_tensors_fail_if_they_need_a_rank_that_has_left) {
    CHECK_STORY(config_of(3), "0+waits ->; 1- -> Fwaits ? 'waits' & rank 1 left & out of data;"
                              "2+new -> Fnew ? 'new' & rank 1 left & out of data; ->");
}

TEST(test_a_tensor_submitted_by_a_rank_before_it_left_runs) {
    CHECK_STORY(config_of(3), "1+a 0+a 1- ->; 2+a -> Ta R");
}

/* The error shows the first reason, because later reasons are mostly consequences. */
SCENE(test_the_error_has_the_reason_of_the_first_rank_that_left, config_of(3)) {
    STORY(s, "1-");
    coordinator_leave(s->c, 2, "because rank 1 left");
    coordinator_leave(s->c, 2, "again");
    STORY(s, "0+a -> Fa ? 'a' & rank 1 left & out of data");
    CHECK_INT(s->got[0].item.error.code, HVD_RANK_LEFT);
}

/* Rank 2 leaves before rank 1. */
SCENE(test_the_error_names_the_rank_that_left_first_not_the_lowest, config_of(3)) {
    STORY(s, "2-");
    coordinator_leave(s->c, 1, "again");
    STORY(s, "0+a -> Fa ? 'a' & rank 2 left & out of data");
}

/* A rank that had not submitted the tensor must not get the error: its next submission of this name
 * may belong to a later collective. */
TEST(test_the_error_about_a_rank_that_left_reaches_only_ranks_that_submitted_the_tensor) {
    CHECK_STORY(config_of(4), "3+a 1+a 2- -> Fa ? rows 1 3");
}

/* Rank 1 leaves while the coordinator waits for it to send a request again. */
SCENE(test_tensors_still_run_if_their_rank_leaves_before_it_answers_a_resend, config_of(2)) {
    struct request r = request_of("a", 3);
    STORY(s, "1#! 1- 0+a -> S1");
    OK(coordinator_resent(s->c, 1, &r, 0, ERR));
    STORY(s, "-> Ta R; 0+a -> Fa");
}

/* Rank 1 had submitted the tensor before it left. */
TEST(test_a_rank_that_left_after_its_submission_is_not_blamed) {
    CHECK_STORY(config_of(4), "0+a 1+a 1- ->; 3- -> Fa ? 'a' & rank 3 left & out of data");
}

SCENE(test_a_long_reason_for_leaving_is_cut, config_of(2)) {
    char reason[5000];
    memset(reason, 'r', sizeof reason - 1);
    reason[sizeof reason - 1] = 0;
    coordinator_leave(s->c, 1, reason);
    STORY(s, "0+a -> Fa ? rank 1 & rrrrrrrr");
}

TEST(test_the_coordinator_ends_when_all_have_left) {
    for (int size = 1; size <= 5; size++)
        CHECK_STORY(config_of(size), "*+last *- -> Tlast R B; ->");
}

SCENE(test_a_stall_is_reported_once, config_of(3)) {
    struct reports r;
    STORY(s, "t=100 0+first t=105 2+first t=108 1+second");
    CHECK_INT(look(s, 109, &r), 0);
    CHECK_INT(look(s, 111, &r), 1);
    CHECK_TEXT(r.text[0],
               "tensor 'first' has waited for 11 s: submitted by ranks 0, 2, not by rank 1 "
               "(rank 1 waits for 'second')");
    CHECK_INT(look(s, 112, &r), 0);
    CHECK_INT(look(s, 119, &r), 1);
    CHECK_HAS(r.text[0], "'second'");
    CHECK_HAS(r.text[0], "waits for 'first'");
    CHECK_INT(look(s, 159, &r), 0);
    STORY(s, "t=159 1+first -> Tfirst R");
}

SCENE(test_the_time_of_a_short_stall_is_not_0, CONFIG(2, .stall_warning = 0.3)) {
    struct reports r;
    STORY(s, "0+a");
    CHECK_INT(look(s, 0.4, &r), 1);
    CHECK_HAS(r.text[0], "waited for 0.40 s: ");
}

/* One line about the oldest stalled tensor counts the other tensors, so that 20,000 tensors do not
 * make 20,000 lines. */
SCENE(test_tensors_that_miss_the_same_ranks_share_one_warning, config_of(3)) {
    enum { N = 20000 };
    struct reports r;
    for (int i = 0; i < N; i++) {
        says(s, 0, numbered_request(i, 3), 100 + 1e-3 * i);
        if (i % 2) says(s, i % 4 == 1 ? 1 : 2, numbered_request(i, 3), 100 + 1e-3 * i);
    }
    says(s, 1, request_of("of rank 1", 3), 121);
    CHECK_INT(look(s, 122, &r), 3);
    CHECK_TEXT(r.text[0],
               "tensor 'tensor.0' and 9999 more have waited for 22 s: submitted by rank 0, "
               "not by ranks 1, 2 (rank 1 waits for 'tensor.1') (rank 2 waits for "
               "'tensor.3')");
    CHECK_HAS(r.text[1],
              "'tensor.3' and 4999 more have waited for 22 s: submitted by ranks 0, 2, not by");
    CHECK_HAS(r.text[2],
              "'tensor.1' and 4999 more have waited for 22 s: submitted by ranks 0, 1, not by");
    CHECK_INT(look(s, 130, &r), 0);
    CHECK_INT(look(s, 132, &r), 1);
    CHECK_HAS(r.text[0], "'of rank 1' has waited for 11 s");
}

/* Each tensor fails with its own text, even if the tensor that another rank waits for has failed
 * already. */
SCENE(test_each_of_many_stalled_tensors_has_its_own_error, config_of(2)) {
    for (int i = 0; i < 20; i++) says(s, i % 2, numbered_request(i, 3), 100);
    CHECK_INT(decide(s, 160.5), 20);
    for (int i = 0; i < 20; i++) {
        const char *text = s->got[i].item.error.text;
        CHECK_INT(s->got[i].item.type, WIRE_FAIL);
        CHECK_HAS(text, i % 2 ? "not by rank 0 (rank 0 waits for 'tensor.0')"
                              : "not by rank 1 (rank 1 waits for 'tensor.1')");
    }
    CHECK_INT(decide(s, 1000), 0);
}

SCENE(test_a_tensor_that_stalls_beyond_the_limit_fails, config_of(2)) {
    STORY(s, "t=100 0+stuck t=160 ->; t=160.5 -> Fstuck ? 'stuck' & not by rank 1");
    CHECK_INT(s->got[0].item.error.code, HVD_STALLED);
    STORY(s, "t=500 ->; t=0 *+stuck t=500 -> Tstuck R"); /* late, but on all ranks */
}

/* If the rank stays silent, the whole job fails; the tensor alone must not fail before. */
TEST(test_no_stall_is_reported_while_a_tensor_waits_for_a_silent_rank) {
    CHECK_STORY(config_of(3), "0+a 2+a 0+b 1+b s=1 t=1000 -> Fb; t=2000 ->");
}

SCENE(test_without_limits_no_stall_is_reported, CONFIG(2, .fusion_bytes = 1000)) {
    struct reports r;
    STORY(s, "0+a t=1e9 ->");
    CHECK_INT(look(s, 1e9, &r), 0);
}

static void ranks_are(const char *pattern, const char *expected) {
    bool set[16] = {false};
    char text[64];
    int n = (int)strlen(pattern);
    for (int i = 0; i < n; i++) set[i] = pattern[i] == '1';
    ranks_text(set, true, n, NULL, text, sizeof text);
    CHECK_TEXT(text, expected);
    for (int i = 0; i < n; i++) set[i] = !set[i];
    ranks_text(set, false, n, NULL, text, sizeof text);
    CHECK_TEXT(text, expected);
}

TEST(test_texts_list_ranks_as_ranges) {
    ranks_are("1", "rank 0");
    ranks_are("010", "rank 1");
    ranks_are("0110", "ranks 1, 2");
    ranks_are("111001", "ranks 0-2, 5");
    ranks_are("1010111011", "ranks 0, 2, 4-6, 8, 9");
    bool set[9] = {true, false, true, false, true, false, true, false, true};
    for (size_t size = 1; size < 30; size++) {
        OWNED char *text = room(size);
        ranks_text(set, true, 9, NULL, text, size);
        CHECK(strlen(text) < size);
    }
}

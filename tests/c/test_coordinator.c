/* The coordinator: what runs when, in which order, by name or id; disagreements; the cache. */
#include "coordinator_case.h"

static struct coordinator_config config_of(int size) {
    return (struct coordinator_config){.size = size,
                                       .options = {.fusion_bytes = 1000, .cache_capacity = 100}};
}

TEST(test_ready_when_all_have_submitted) {
    for (int size = 1; size <= 9; size++) {
        struct scene s;
        scene_open(&s, config_of(size));
        for (int rank = size - 1; rank >= 0; rank--) {
            CHECK_DECIDES(&s, 0, "");
            says(&s, rank, request_of("a", 3), 0);
        }
        CHECK_DECIDES(&s, 0, "Ta R");
        CHECK_DECIDES(&s, 0, "");
        CHECK(s.out.size == 0);
        scene_close(&s);
    }
}

TEST(test_order_of_priority_then_arrival) {
    struct scene s;
    struct coordinator_config config = config_of(2);
    config.options.fusion_bytes = 0;
    scene_open(&s, config);
    static const char *const NAMES[] = {"a", "b", "c", "d", "e"};
    static const int PRIORITIES[] = {-2, 5, -2, 7, 5};
    for (int rank = 0; rank < 2; rank++) {
        for (int i = 0; i < 5; i++) {
            struct request r = request_of(NAMES[i], 3);
            r.priority = rank ? 99 - i : PRIORITIES[i]; /* the first rank's counts */
            says(&s, rank, r, 0);
        }
    }
    CHECK_DECIDES(&s, 0, "Td R Tb R Te R Ta R Tc R");
    scene_close(&s);
}

TEST(test_fuses) {
    struct scene s;
    scene_open(&s, config_of(2));
    all_say(&s, 2, request_of("a", 10));
    all_say(&s, 2, gather_of("g", 10, 1));
    all_say(&s, 2, request_of("b", 1000));
    all_say(&s, 2, request_of("c", 10));
    CHECK_DECIDES(&s, 0, "Ta Tc R Tg R Tb R");
    scene_close(&s);
}

TEST(test_ids) {
    struct scene s;
    scene_open(&s, config_of(3));
    all_say(&s, 3, request_of("a", 3));
    CHECK_DECIDES(&s, 0, "Ta R");
    uint64_t id = s.got[0].item.id;
    CHECK(id > 0);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) hits(&s, i, id, 0);
        decide(&s, 0);
        CHECK_INT(s.n, 2);
        CHECK(s.got[0].item.request.name[0] == 0 && s.got[0].item.id == id);
    }
    hits(&s, 0, id, 0); /* one rank sends it whole: everybody hears the name and a new id */
    says(&s, 1, request_of("a", 3), 0);
    hits(&s, 2, id, 0);
    CHECK_DECIDES(&s, 0, "Ta R");
    CHECK(s.got[0].item.id > id);
    scene_close(&s);
}

TEST(test_no_cache) {
    struct scene s;
    struct coordinator_config config = config_of(2);
    config.options.cache_capacity = 0;
    scene_open(&s, config);
    for (int round = 0; round < 3; round++) {
        all_say(&s, 2, request_of("a", 3));
        CHECK_DECIDES(&s, 0, "Ta R");
        CHECK_INT(s.got[0].item.id, 0);
    }
    scene_close(&s);
}

TEST(test_resend_after_eviction) {
    struct scene s;
    struct coordinator_config config = config_of(2);
    config.options.cache_capacity = 1;
    scene_open(&s, config);
    all_say(&s, 2, request_of("a", 3));
    decide(&s, 0);
    uint64_t id = s.got[0].item.id;
    hits(&s, 0, id, 0);
    CHECK_DECIDES(&s, 0, "");
    all_say(&s, 2, request_of("b", 3));
    CHECK_DECIDES(&s, 0, "Tb R"); /* evicts a */
    hits(&s, 1, id, 0);
    CHECK_DECIDES(&s, 0, "S1");
    CHECK(s.got[0].item.id == id);
    says(&s, 1, request_of("a", 3), 0);
    CHECK_DECIDES(&s, 0, "Ta R");
    CHECK(s.got[0].item.id > id);
    hits(&s, 0, 12345, 0);
    CHECK_DECIDES(&s, 0, "S0");
    scene_close(&s);
}

TEST(test_changed_after_being_cached) {
    struct scene s;
    scene_open(&s, config_of(2));
    all_say(&s, 2, request_of("a", 3));
    decide(&s, 0);
    uint64_t id = s.got[0].item.id;
    all_say(&s, 2, request_of("a", 4));
    CHECK_DECIDES(&s, 0, "Ta R");
    uint64_t newer = s.got[0].item.id;
    CHECK(newer > id);
    hits(&s, 0, id, 0);
    CHECK_DECIDES(&s, 0, "S0");
    says(&s, 0, request_of("a", 5), 0);
    hits(&s, 1, newer, 0);
    CHECK_DECIDES(&s, 0, "Fa");
    CHECK_HAS(s.got[0].item.error.text, "(5,)");
    CHECK_HAS(s.got[0].item.error.text, "(4,)");
    hits(&s, 0, newer, 0); /* what was agreed on last still holds */
    hits(&s, 1, newer, 0);
    decide(&s, 0);
    CHECK_INT(s.n, 2);
    scene_close(&s);
}

TEST(test_rows_of_an_allgather) {
    struct scene s;
    scene_open(&s, config_of(3));
    for (int i = 0; i < 3; i++) says(&s, i, gather_of("g", i * 2, 5), 0);
    CHECK_DECIDES(&s, 0, "Tg R");
    CHECK_INT(s.got[0].item.nrows, 3);
    for (int i = 0; i < 3; i++) CHECK_INT(s.got[0].rows[i], i * 2);
    uint64_t id = s.got[0].item.id;
    hits(&s, 0, id, 0); /* rank 1 brings other rows, the others the same */
    hits(&s, 2, id, 0);
    says(&s, 1, gather_of("g", 7, 5), 0);
    CHECK_DECIDES(&s, 0, "Tg R");
    CHECK_INT(s.got[0].rows[0], 0);
    CHECK_INT(s.got[0].rows[1], 7);
    CHECK_INT(s.got[0].rows[2], 4);
    id = s.got[0].item.id;
    for (int i = 0; i < 3; i++) hits(&s, i, id, 0);
    decide(&s, 0);
    CHECK(s.n == 2 && s.got[0].item.id == id);
    scene_close(&s);
}

struct conflict {
    struct request usual, odd;
    const char *field, *usual_value, *odd_value;
};

static void check_conflict(const struct conflict *row, int odd_rank) {
    struct scene s;
    scene_open(&s, config_of(4));
    for (int i = 0; i < 4; i++) says(&s, i, i == odd_rank ? row->odd : row->usual, 0);
    all_say(&s, 4, request_of("good", 3));
    CHECK_DECIDES(&s, 0, "Fw Tgood R");
    const hvd_error *why = &s.got[0].item.error;
    char odd[32], others[32];
    snprintf(odd, sizeof odd, "rank %d: %s", odd_rank, row->odd_value);
    snprintf(others, sizeof others, odd_rank == 0 ? "ranks 1-3: %s" : "ranks 0-2: %s",
             row->usual_value);
    CHECK_INT(why->code, HVD_MISMATCH);
    CHECK_HAS(why->text, "'w'");
    CHECK_HAS(why->text, row->field);
    CHECK_HAS(why->text, odd);
    CHECK_HAS(why->text, others);
    all_say(&s, 4, row->usual);
    CHECK_DECIDES(&s, 0, "Tw R");
    scene_close(&s);
}

TEST(test_conflicts) {
    struct request sum = request_of("w", 3), from = broadcast_of("w", 3, 0);
    struct conflict rows[] = {
        {sum, from, "kind", "allreduce", "broadcast"},
        {sum, sum, "dtype", "float32", "int64"},
        {sum, sum, "shape", "(3,)", "(4,)"},
        {sum, sum, "op", "Sum", "Average"},
        {sum, sum, "prescale_factor", "1 and 1", "0.5"},
        {sum, sum, "postscale_factor", "1 and 1", "1 and 2"},
        {from, from, "root_rank", "0", "3"},
        {gather_of("w", 3, 4), gather_of("w", 3, 5), "shape", "(3, 4)", "(3, 5)"}};
    rows[1].odd.dtype = HVD_INT64;
    rows[2].odd.dims[0] = 4;
    rows[3].odd.op = HVD_AVERAGE;
    rows[4].odd.prescale = 0.5;
    rows[5].odd.postscale = 2;
    rows[6].odd.root = 3;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        check_conflict(&rows[i], 0);
        check_conflict(&rows[i], 3);
    }
}

/* Rows may differ among ranks; the text must give each rank the shape that it has. */
TEST(test_conflict_of_allgather_tells_each_shape) {
    struct scene s;
    scene_open(&s, config_of(3));
    says(&s, 0, gather_of("w", 3, 4), 0);
    says(&s, 1, gather_of("w", 5, 4), 0);
    says(&s, 2, gather_of("w", 3, 7), 0);
    CHECK_DECIDES(&s, 0, "Fw");
    CHECK_HAS(s.got[0].item.error.text, "(3, 4)");
    CHECK_HAS(s.got[0].item.error.text, "(5, 4)");
    CHECK_HAS(s.got[0].item.error.text, "(3, 7)");
    scene_close(&s);
}

/* The longest names and shapes: the text is cut, no more. */
TEST(test_long_conflict) {
    struct scene s;
    scene_open(&s, config_of(9));
    for (int i = 0; i < 9; i++) {
        struct request r = request_of("", 1);
        memset(r.name, 'n', HVD_MAX_NAME - 1);
        r.ndim = HVD_MAX_DIMS;
        for (int k = 0; k < HVD_MAX_DIMS; k++) r.dims[k] = k ? 1 : i + 1;
        says(&s, i, r, 0);
    }
    CHECK_INT(decide(&s, 0), 1);
    CHECK_INT(s.got[0].item.type, WIRE_FAIL);
    scene_close(&s);
}

TEST(test_submitted_twice) {
    struct scene s;
    struct request r = request_of("a", 3);
    hvd_error err = {0};
    scene_open(&s, config_of(2));
    says(&s, 0, r, 0);
    CHECK_CODE(coordinator_request(s.c, 0, &r, 0, &err), HVD_INTERNAL, err);
    CHECK_HAS(err.text, "'a'");
    scene_close(&s);
}

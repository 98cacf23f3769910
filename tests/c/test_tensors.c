/* The tensor table: duplicates, order, ids, closing, and many threads that add at the same time. */
#include "requests.h"

#include "engine/tensors.h"

struct result {
    int completions;
    hvd_error error;
};

/* A tensor that its submitter keeps until the tensor completes. */
struct kept {
    struct tensor tensor;
    struct result *result;
};

static void completed(void *arg, const hvd_error *error) {
    struct kept *kept = arg;
    struct result *r = kept->result;
    free(kept); /* the table must not use the tensor any more */
    r->completions++;
    if (error) r->error = *error;
}

static struct kept *keep(int number, struct result *result) {
    struct kept *kept = room(sizeof *kept);
    kept->tensor.request = numbered_request(number, number);
    kept->tensor.complete = completed;
    kept->tensor.arg = kept;
    kept->result = result;
    return kept;
}

/* Adds a tensor; returns whether a cork holds it back. */
static bool add_kept(struct tensors *t, struct kept *kept, int code, hvd_error *err) {
    bool held = false;
    kept->tensor.node = map_node_of(kept->tensor.request.name, &kept->tensor);
    CHECK_CODE(tensors_add(t, &kept->tensor, &held, err), code, *err);
    if (code) CHECK(err->text[0] != 0);
    if (code) free(kept);
    return held;
}

static void add(struct tensors *t, int number, struct result *result, int code) {
    add_kept(t, keep(number, result), code, ERR);
}

/* Adds a tensor without data. */
static void add_failed(struct tensors *t, int number, struct result *result) {
    struct kept *kept = keep(number, result);
    kept->tensor.request.failed = true;
    add_kept(t, kept, HVD_OK, ERR);
}

/* Checks that the tensors taken now have the numbers `from` to `to`, in order. */
static void check_taken(struct tensors *t, int from, int to) {
    struct tensor *tensor = tensors_take(t);
    for (int i = from; i <= to; i++, tensor = tensor->newer) {
        REQUIRE(tensor != NULL);
        CHECK_INT(tensor->request.dims[0], i);
    }
    CHECK(tensor == NULL);
}

#define TABLE_TEST(name)                                                                           \
    static void name##_on(struct tensors *t);                                                      \
    TEST(name) {                                                                                   \
        struct tensors *t = tensors_new();                                                         \
        name##_on(t);                                                                              \
        tensors_free(t);                                                                           \
    }                                                                                              \
    static void name##_on(struct tensors *t)

TABLE_TEST(test_corked_tensors_are_taken_together) {
    struct result results[4] = {{0}};
    bool held[3];
    add(t, 0, &results[0], HVD_OK);
    tensors_cork(t, true);
    tensors_cork(t, true); /* as if another thread began a second grouped call */
    for (int i = 1; i < 4; i++) {
        held[i - 1] = add_kept(t, keep(i, &results[i]), HVD_OK, ERR);
        CHECK(i == 3 || tensors_take(t) == NULL);
        tensors_cork(t, false); /* one call too many, as from a group of an earlier job */
    }
    CHECK(held[0] && held[1] && !held[2]);
    check_taken(t, 0, 3);
    CHECK(tensors_take(t) == NULL);
    tensors_close(t, &(hvd_error){.code = HVD_TRANSPORT, .text = "down"});
}

TABLE_TEST(test_tensors_are_taken_in_order_of_submission) {
    struct result results[10] = {{0}};
    CHECK(tensors_take(t) == NULL);
    for (int i = 0; i < 4; i++) add(t, i, &results[i], HVD_OK);
    check_taken(t, 0, 3);
    /* finishes the newest, the oldest and one in between */
    tensors_finish(t, tensors_find(t, "tensor.3"), NULL);
    tensors_finish(t, tensors_find(t, "tensor.0"), NULL);
    for (int i = 4; i < 7; i++) add(t, i, &results[i], HVD_OK);
    CHECK(tensors_find(t, "tensor.2")->newer == NULL); /* the other tensors are not taken yet */
    check_taken(t, 4, 6);
    CHECK(tensors_find(t, "tensor.2")->newer == tensors_find(t, "tensor.4"));
    tensors_finish(t, tensors_find(t, "tensor.4"), NULL);
    CHECK(tensors_find(t, "tensor.2")->newer == tensors_find(t, "tensor.5"));
    CHECK(tensors_take(t) == NULL);
    add(t, 0, &results[7], HVD_OK);
    check_taken(t, 0, 0);
    add(t, 8, &results[8], HVD_OK); /* never taken */
    CHECK_INT(tensors_count(t), 6);
    tensors_close(t, &(hvd_error){.code = HVD_TRANSPORT, .text = "down"});
    CHECK_INT(tensors_count(t), 0);
    for (int i = 0; i <= 8; i++) {
        bool finished = i == 0 || i == 3 || i == 4;
        CHECK_INT(results[i].completions, 1);
        CHECK_INT(results[i].error.code, finished ? HVD_OK : HVD_TRANSPORT);
    }
}

/* Two failed tensors and one tensor with data queue under one name. A second tensor with data is
 * refused unless its `queued` is set. */
TABLE_TEST(test_a_tensor_queues_behind_a_tensor_of_its_name_only_if_allowed) {
    struct result results[5] = {{0}};
    hvd_error err = {0};
    for (int i = 0; i < 2; i++) add_failed(t, 7, &results[i]);
    add(t, 7, &results[2], HVD_OK);
    add(t, 7, &results[4], HVD_DUPLICATE);
    struct kept *queued = keep(7, &results[3]);
    queued->tensor.queued = true;
    add_kept(t, queued, HVD_OK, &err);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(tensors_count(t), 1);
        struct tensor *next = tensors_take(t);
        REQUIRE(next != NULL);
        CHECK(next->newer == NULL && tensors_take(t) == NULL);
        CHECK(next == tensors_find(t, "tensor.7"));
        CHECK_INT(next->request.failed, i < 2);
        tensors_finish(t, next, NULL);
        CHECK_INT(results[i].completions, 1);
    }
    CHECK_INT(tensors_count(t), 0);
    CHECK_INT(results[4].completions, 0);
}

/* The caller of a tensor without memory waits for this tensor, so no other tensor may take its
 * name. */
TABLE_TEST(test_a_name_is_refused_while_its_tensor_fails_for_lack_of_memory) {
    struct result results[2] = {{0}};
    struct kept *kept = keep(7, &results[0]);
    kept->tensor.request.failed = HVD_NO_MEMORY;
    add_kept(t, kept, HVD_OK, ERR);
    add(t, 7, &results[1], HVD_DUPLICATE);
    tensors_close(t, &(hvd_error){.code = HVD_TRANSPORT, .text = "down"});
}

TABLE_TEST(test_queued_tensors_fail_when_the_tensor_table_closes) {
    struct result results[3] = {{0}};
    for (int i = 0; i < 2; i++) add_failed(t, 7, &results[i]);
    add(t, 7, &results[2], HVD_OK);
    tensors_close(t, &(hvd_error){.code = HVD_TRANSPORT, .text = "down"});
    for (int i = 0; i < 3; i++) CHECK_INT(results[i].error.code, HVD_TRANSPORT);
}

/* ---- tensor_check on rank 1 of three ---- */

static void check_is(const struct tensor *tensor, int code, const char *text) {
    FAILS(tensor_check(tensor, 1, 3, ERR), code);
    if (!code) return;
    CHECK_HAS(ERR->text, "'dealt'");
    CHECK_HAS(ERR->text, text);
}

TEST(test_an_output_or_splits_that_do_not_fit_are_refused) {
    int64_t splits[3] = {0, 4, 1};
    struct tensor t = {.request = gather_of("dealt", 5, 7), .out_rows = 2};
    t.request.kind = HVD_REDUCESCATTER;
    check_is(&t, HVD_OK, "");
    t.out_rows = 1;
    check_is(&t, HVD_INVALID, "room for 1 rows: expected 2");
    t.request.kind = HVD_ALLTOALL;
    t.splits = splits;
    t.nsplits = 3;
    check_is(&t, HVD_OK, "");
    t.request.dims[0] = 6; /* one row is left over */
    check_is(&t, HVD_OK, "");
    t.request.dims[0] = 4;
    check_is(&t, HVD_INVALID, "splits[2] is 1: expected 0 to 0, the rows that the splits before");
    t.request.dims[0] = 5;
    t.nsplits = 9;
    check_is(&t, HVD_INVALID, "expected 3 splits, one for each rank, got 9");
    t.nsplits = 3;
    splits[2] = -1;
    check_is(&t, HVD_INVALID, "splits[2] is -1: expected 0 to 1");
    splits[2] = INT64_MAX;
    check_is(&t, HVD_INVALID, "splits[2] is 9223372036854775807: expected 0 to 1");
    t.splits = NULL;
    check_is(&t, HVD_INVALID, "5 rows can't be divided evenly among 3 ranks");
    t.splits = splits;
    /* one dimension is 0, so there are no elements */
    t.request.dims[2] = t.request.dims[3] = INT64_MAX;
    t.request.ndim = 4;
    t.request.dims[0] = 0;
    memset(splits, 0, sizeof splits);
    check_is(&t, HVD_OK, "");
    t.request.dtype = HVD_UINT8;
    t.request.ndim = 3;
    t.request.dims[1] = 3;
    /* a row has 2^64 - 1 bytes, which is -1 as an int64_t */
    t.request.dims[2] = (int64_t)(UINT64_MAX / 3);
    t.out_rows = 0;
    OK(tensor_fit_output(&t, splits, 1, 3, ERR));
}

/* The submitter keeps the memory of a refused tensor; the table frees the memory that it has added
 * to a finished tensor. */
TABLE_TEST(test_an_encoded_message_is_freed_by_its_owner) {
    struct result first = {0}, second = {0};
    struct kept *kept = keep(1, &first), *refused = keep(1, &second);
    void *message = room(8);
    kept->tensor.message = room(8);
    refused->tensor.message = message;
    add_kept(t, kept, HVD_OK, ERR);
    add_kept(t, refused, HVD_DUPLICATE, ERR);
    free(message);
    tensors_finish(t, tensors_take(t), NULL);
    CHECK_INT(first.completions, 1);
    CHECK_INT(second.completions, 0);
}

TABLE_TEST(test_a_name_that_is_in_progress_is_refused) {
    struct result result = {0}, other = {0};
    add(t, 1, &result, HVD_OK);
    add_kept(t, keep(1, &other), HVD_DUPLICATE, ERR);
    CHECK_HAS(ERR->text, "tensor.1");
    CHECK_INT(tensors_count(t), 1);
    tensors_finish(t, tensors_take(t), &(hvd_error){.code = HVD_MISMATCH, .text = "differ"});
    CHECK_INT(result.error.code, HVD_MISMATCH);
    CHECK_TEXT(result.error.text, "differ");
    CHECK_INT(other.completions, 0);
    add(t, 1, &other, HVD_OK);
    tensors_finish(t, tensors_take(t), NULL);
}

TABLE_TEST(test_a_taken_tensor_is_found_by_name_and_id) {
    struct result result = {0};
    for (int i = 0; i < 100; i++) add(t, i, &result, HVD_OK);
    for (struct tensor *x = tensors_take(t); x; x = x->newer)
        OK(tensors_set_id(t, x, (uint64_t)x->request.dims[0] + 1000, ERR));
    OK(tensors_set_id(t, tensors_find(t, "tensor.7"), 0, ERR));
    CHECK(tensors_find_id(t, 1007) == NULL);
    OK(tensors_set_id(t, tensors_find(t, "tensor.7"), 1007, ERR));
    CHECK(tensors_find(t, "tensor.100") == NULL && tensors_find_id(t, 5) == NULL);
    for (int i = 99; i >= 0; i--) {
        struct tensor *x = tensors_find_id(t, (uint64_t)i + 1000);
        if (!CHECK(x != NULL)) continue;
        CHECK(tensors_find(t, x->request.name) == x);
        x->rows = room(8); /* freed with the tensor */
        tensors_finish(t, x, NULL);
        CHECK(tensors_find_id(t, (uint64_t)i + 1000) == NULL);
    }
    CHECK_INT(result.completions, 100);
    tensors_free(NULL);
}

TABLE_TEST(test_a_table_that_refuses_new_tensors_keeps_its_earlier_tensors) {
    struct result result = {0}, late = {0};
    add(t, 1, &result, HVD_OK);
    tensors_refuse(t, &(hvd_error){.code = HVD_NOT_INITIALIZED, .text = "left"});
    add_kept(t, keep(2, &late), HVD_NOT_INITIALIZED, ERR);
    CHECK_TEXT(ERR->text, "left");
    CHECK(tensors_count(t) == 1 && result.completions == 0);
    tensors_close(t, &(hvd_error){.code = HVD_TRANSPORT, .text = "down"});
    CHECK_INT(result.error.code, HVD_TRANSPORT);
    add(t, 2, &late, HVD_NOT_INITIALIZED);
    CHECK_INT(late.completions, 0);
}

/* ---- many threads add while one thread finishes ---- */

enum { ADDERS = 4, EACH = 500 };

struct adder {
    struct tensors *table;
    int first;
    struct result *results;
};

static void *run_adder(void *arg) {
    struct adder *a = arg;
    for (int i = 0; i < EACH; i++) add(a->table, a->first + i, &a->results[a->first + i], HVD_OK);
    return NULL;
}

TABLE_TEST(test_threads_that_add_at_once_lose_no_tensor) {
    OWNED struct result *results = room(ADDERS * EACH * sizeof *results);
    struct adder adders[ADDERS];
    pthread_t threads[ADDERS];
    int last[ADDERS] = {-1, -1, -1, -1}, n = 0;
    for (int i = 0; i < ADDERS; i++) adders[i] = (struct adder){t, i * EACH, results};
    threads_start(threads, ADDERS, run_adder, adders, sizeof *adders);
    while (n < ADDERS * EACH) {
        for (struct tensor *x = tensors_take(t), *newer; x; x = newer, n++) {
            int number = (int)x->request.dims[0];
            CHECK(number > last[number / EACH]); /* the tensors of each thread are in order */
            last[number / EACH] = number;
            newer = x->newer;
            tensors_finish(t, x, NULL);
        }
    }
    threads_join(threads, ADDERS);
    for (int i = 0; i < ADDERS * EACH; i++) CHECK_INT(results[i].completions, 1);
    CHECK_INT(tensors_count(t), 0);
}

/* The wire format: every item there and back; damaged messages are errors, never wild reads. */
#include "requests.h"

#include "negotiation/wire.h"
#include "random.h"

enum { ITEMS = 16 };

static const int64_t ROWS[] = {3, 0, 17, (int64_t)1 << 40};

/* One of every type, at the limits of its fields. */
static void make_items(struct wire_item *items) {
    memset(items, 0, ITEMS * sizeof *items);
    items[0].type = WIRE_REQUEST;
    items[0].request = gather_of("allgather.x", 3, INT64_MAX);
    items[0].request.priority = INT32_MIN;
    items[0].id = UINT64_MAX - 1;
    items[1].type = WIRE_REQUEST;
    items[1].request = broadcast_of("", 0, INT32_MAX);
    items[1].request.failed = true;
    snprintf(items[1].error.text, sizeof items[1].error.text, "splits are wrong");
    memset(items[1].request.name, 'n', HVD_MAX_NAME - 1);
    items[1].request.ndim = HVD_MAX_DIMS;
    for (int i = 0; i < HVD_MAX_DIMS; i++) items[1].request.dims[i] = i * 1000003;
    items[2].type = WIRE_REQUEST;
    items[2].rank = 5;
    items[2].instead = UINT64_MAX - 1;
    items[2].request = request_of("scaled", 5);
    items[2].request.op = HVD_AVERAGE;
    items[2].request.uneven = true;
    items[2].request.grouped = 70000;
    items[2].request.dtype = HVD_BOOL;
    items[2].request.ndim = 0;
    items[2].request.prescale = -0.1;
    items[2].request.postscale = 1e300;
    items[2].request.rule = HVD_ADAM;
    items[2].request.codec = (struct codec){HVD_CODEC_1BIT, -0.25};
    items[3].type = WIRE_HIT;
    items[3].id = UINT64_MAX;
    items[3].rank = 70000;
    items[4].type = WIRE_LEAVE;
    items[4].rank = 3;
    snprintf(items[4].error.text, sizeof items[4].error.text, "out of data");
    items[5].type = WIRE_ABORT;
    error_set(&items[5].error, HVD_TRANSPORT, "link down");
    for (int rank = 90; rank < 100; rank++) error_blame(&items[5].error, rank);
    items[5].error.pid = 1LL << 40;
    strcpy(items[5].error.host, "n7");
    items[6].type = WIRE_TENSOR;
    items[6].id = 77;
    items[6].uneven = true;
    items[6].nrows = 4;
    items[6].rows = ROWS;
    items[7].type = WIRE_TENSOR;
    snprintf(items[7].request.name, HVD_MAX_NAME, "allreduce.t0");
    items[8].type = WIRE_RUN;
    items[9].type = WIRE_FAIL;
    snprintf(items[9].request.name, HVD_MAX_NAME, "weight");
    items[9].error.code = HVD_MISMATCH;
    items[9].nrows = 4;
    items[9].rows = ROWS;
    memset(items[9].error.text, 'e', sizeof items[9].error.text - 1);
    items[10].type = WIRE_RESEND;
    items[10].rank = 123456;
    items[10].id = 5;
    items[11].type = WIRE_BYE;
    items[12] = items[7];
    items[12].cut = items[12].direct = true;
    items[12].begin = 1;
    items[12].end = UINT64_MAX;
    items[13].type = WIRE_ASK;
    items[14].type = WIRE_ALIVE;
    items[15].type = WIRE_SILENT;
    items[15].rank = 123456;
    snprintf(items[15].error.text, sizeof items[15].error.text, "rank 3 is silent");
}

static void check_request(const struct request *got, const struct request *sent) {
    struct request a = *got, b = *sent;
    CHECK_INT(a.failed, b.failed);
    a.failed = b.failed = false; /* else no two are the same */
    CHECK(request_same(&a, &b));
    CHECK_INT(got->priority, sent->priority);
    CHECK_INT(got->op, sent->op);
    CHECK_INT(got->root, sent->root);
    CHECK_NEAR(got->prescale, sent->prescale, 0);
    CHECK_NEAR(got->postscale, sent->postscale, 0);
}

static void check_rows(const struct wire_item *got, const struct wire_item *sent) {
    CHECK_TEXT(got->request.name, sent->request.name);
    CHECK_INT(got->nrows, sent->nrows);
    CHECK(sent->nrows == 0 || memcmp(got->rows, sent->rows, sent->nrows * sizeof *ROWS) == 0);
}

static void check_error(const struct wire_item *got, const struct wire_item *sent) {
    CHECK_INT(got->error.code, sent->error.code);
    CHECK_TEXT(got->error.text, sent->error.text);
    CHECK_INT(got->error.nblamed, sent->error.nblamed);
    CHECK(!memcmp(got->error.blamed, sent->error.blamed,
                  sizeof sent->error.blamed[0] * (size_t)error_nlisted(&sent->error)));
    CHECK_INT(got->error.pid, sent->error.pid);
    CHECK_TEXT(got->error.host, sent->error.host);
}

static void check_item(const struct wire_item *got, const struct wire_item *sent) {
    CHECK_INT(got->type, sent->type);
    CHECK(got->id == sent->id);
    CHECK_INT(got->rank, sent->rank);
    CHECK(got->instead == sent->instead);
    switch (sent->type) {
    case WIRE_REQUEST:
        check_request(&got->request, &sent->request);
        if (sent->request.failed) CHECK_TEXT(got->error.text, sent->error.text);
        break;
    case WIRE_SILENT: CHECK_INT(got->rank, sent->rank); /* fall through */
    case WIRE_LEAVE: CHECK_TEXT(got->error.text, sent->error.text); break;
    case WIRE_FAIL:
        check_rows(got, sent);
        check_error(got, sent);
        break;
    case WIRE_ABORT: check_error(got, sent); break;
    case WIRE_TENSOR:
        check_rows(got, sent);
        CHECK(got->direct == sent->direct && got->cut == sent->cut);
        CHECK(got->uneven == sent->uneven);
        CHECK(!sent->cut || (got->begin == sent->begin && got->end == sent->end));
        break;
    default: break;
    }
}

static void write_all(struct wire_writer *w, const struct wire_item *items) {
    hvd_error err = {0};
    for (int i = 0; i < ITEMS; i++) CHECK_OK(wire_put(w, &items[i], &err), err);
}

TEST(test_there_and_back) {
    struct wire_item items[ITEMS], got;
    struct wire_writer w = {0};
    hvd_error err = {0};
    make_items(items);
    for (int round = 0; round < 3; round++) {
        struct wire_reader r;
        bool more = false;
        wire_reset(&w);
        CHECK_INT(w.size, 0);
        write_all(&w, items);
        CHECK_OK(wire_open(&r, w.data, w.size, &err), err);
        for (int i = 0; i < ITEMS; i++) {
            got = (struct wire_item){.type = WIRE_RUN};
            CHECK_OK(wire_next(&r, &got, &more, &err), err);
            if (CHECK(more)) check_item(&got, &items[i]);
        }
        CHECK_OK(wire_next(&r, &got, &more, &err), err);
        CHECK(!more);
        wire_reader_free(&r);
    }
    wire_free(&w);
}

/* Reads to the end or to the first error; whatever was decoded may be looked at. The message lies
 * in memory of exactly its size, so that a byte too far is seen. Returns the code. */
static int read_all(const uint8_t *bytes, size_t size) {
    uint8_t *data = malloc(size ? size : 1);
    REQUIRE(data != NULL);
    if (size) memcpy(data, bytes, size);
    struct wire_reader r;
    struct wire_item item = {.type = WIRE_RUN};
    hvd_error err = {0};
    bool more = true;
    int code = wire_open(&r, data, size, &err);
    for (size_t n = 0; !code && more && n <= size; n++) {
        code = wire_next(&r, &item, &more, &err);
        if (code || !more) break;
        CHECK(strlen(item.request.name) < HVD_MAX_NAME);
        CHECK(strlen(item.error.text) < sizeof item.error.text);
        int64_t sum = 0;
        bool carries_rows = item.type == WIRE_TENSOR || item.type == WIRE_FAIL;
        for (uint32_t i = 0; carries_rows && i < item.nrows; i++) sum ^= item.rows[i];
        hvd_error ignored;
        if (item.type == WIRE_REQUEST && !request_check(&item.request, 4, &ignored))
            CHECK(request_count(&item.request) <= INT64_MAX || sum != 0);
    }
    if (code) CHECK(err.text[0] != 0);
    wire_reader_free(&r);
    free(data);
    return code;
}

TEST(test_truncated) {
    struct wire_item items[ITEMS];
    make_items(items);
    CHECK(read_all(NULL, 0) != HVD_OK);
    for (int i = 0; i < ITEMS; i++) {
        struct wire_writer w = {0};
        hvd_error err = {0};
        CHECK_OK(wire_put(&w, &items[i], &err), err);
        for (size_t size = 2; size < w.size; size++) CHECK(read_all(w.data, size) != HVD_OK);
        CHECK_INT(read_all(w.data, w.size), HVD_OK);
        wire_free(&w);
    }
}

TEST(test_flipped) {
    struct wire_item items[ITEMS];
    struct wire_writer w = {0};
    uint64_t random = 9;
    make_items(items);
    write_all(&w, items);
    uint8_t *copy = malloc(w.size);
    REQUIRE(copy != NULL);
    for (int round = 0; round < 20000; round++) {
        memcpy(copy, w.data, w.size);
        size_t flips = 1 + random_below(&random, 4);
        for (size_t i = 0; i < flips; i++)
            copy[1 + random_below(&random, w.size - 1)] = (uint8_t)random_next(&random);
        read_all(copy, w.size - random_below(&random, 3) * random_below(&random, w.size / 3));
    }
    free(copy);
    wire_free(&w);
}

TEST(test_noise) {
    uint8_t noise[200];
    uint64_t random = 11;
    struct wire_writer w = {0};
    hvd_error err = {0};
    CHECK_OK(wire_put(&w, &(struct wire_item){.type = WIRE_RUN}, &err), err);
    for (int round = 0; round < 20000; round++) {
        for (size_t i = 0; i < sizeof noise; i++)
            noise[i] = (uint8_t)(random_next(&random) % (round % 2 ? 12 : 256));
        noise[0] = w.data[0]; /* our version */
        read_all(noise, 1 + random_below(&random, sizeof noise - 1));
    }
    wire_free(&w);
}

TEST(test_other_version) {
    struct wire_writer w = {0};
    struct wire_reader r;
    hvd_error err = {0};
    CHECK_OK(wire_put(&w, &(struct wire_item){.type = WIRE_BYE}, &err), err);
    for (int add = 1; add < 256; add++) {
        uint8_t message[2] = {(uint8_t)(w.data[0] + add), WIRE_BYE};
        CHECK(wire_open(&r, message, sizeof message, &err) != HVD_OK);
        CHECK_HAS(err.text, "version");
    }
    wire_free(&w);
}

/* The wire format: every item is encoded and decoded; damaged messages cause errors and no invalid
 * reads. */
#include "requests.h"

#include "negotiation/wire.h"
#include "random.h"

enum { ITEMS = 16 };

static const int64_t ROWS[] = {3, 0, 17, (int64_t)1 << 40};

/* Makes an item of every type, with values at the limits of its fields. */
static void make_items(struct wire_item *items) {
    const struct wire_item MADE[ITEMS] = {
        {.type = WIRE_REQUEST, .id = UINT64_MAX - 1},
        {.type = WIRE_REQUEST, .error.text = "splits are wrong"},
        {.type = WIRE_REQUEST, .rank = 5, .instead = UINT64_MAX - 1},
        {.type = WIRE_HIT, .id = UINT64_MAX, .rank = 70000},
        {.type = WIRE_LEAVE, .rank = 3, .error.text = "out of data"},
        {.type = WIRE_ABORT},
        {.type = WIRE_TENSOR, .id = 77, .uneven = true, .nrows = 4, .rows = ROWS},
        {.type = WIRE_TENSOR, .request.name = "allreduce.t0"},
        {.type = WIRE_RUN},
        {.type = WIRE_FAIL, .request.name = "weight", .nrows = 4, .rows = ROWS},
        {.type = WIRE_RESEND, .rank = 123456, .id = 5},
        {.type = WIRE_BYE},
        {.type = WIRE_TENSOR,
         .request.name = "allreduce.t0",
         .cut = true,
         .direct = true,
         .begin = 1,
         .end = UINT64_MAX},
        {.type = WIRE_ASK},
        {.type = WIRE_ALIVE},
        {.type = WIRE_SILENT, .rank = 123456, .error.text = "rank 3 is silent"}};
    memcpy(items, MADE, sizeof MADE);
    items[0].request = gather_of("allgather.x", 3, INT64_MAX);
    items[0].request.priority = INT32_MIN;
    items[1].request = broadcast_of("", 0, INT32_MAX);
    items[1].request.failed = true;
    memset(items[1].request.name, 'n', HVD_MAX_NAME - 1);
    items[1].request.ndim = HVD_MAX_DIMS;
    for (int i = 0; i < HVD_MAX_DIMS; i++) items[1].request.dims[i] = i * 1000003;
    items[2].request = (struct request){.name = "scaled",
                                        .call = "reduce, root 1",
                                        .kind = HVD_ALLREDUCE,
                                        .op = HVD_AVERAGE,
                                        .uneven = true,
                                        .grouped = 70000,
                                        .states = 0x7fffffff,
                                        .dtype = HVD_BOOL,
                                        .prescale = -0.1,
                                        .postscale = 1e300,
                                        .rule = HVD_ADAM,
                                        .codec = {HVD_CODEC_1BIT, -0.25}};
    error_set(&items[5].error, HVD_TRANSPORT, "link down");
    for (int rank = 90; rank < 100; rank++) error_blame(&items[5].error, rank);
    items[5].error.pid = 1LL << 40;
    strcpy(items[5].error.host, "n7");
    items[9].error.code = HVD_MISMATCH;
    memset(items[9].error.text, 'e', sizeof items[9].error.text - 1);
}

static void check_request(const struct request *got, const struct request *sent) {
    struct request a = *got, b = *sent;
    CHECK_INT(a.failed, b.failed);
    a.failed = b.failed = false; /* otherwise no two requests are equal */
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
    for (int i = 0; i < ITEMS; i++) OK(wire_put(w, &items[i], ERR));
}

TEST(test_every_item_is_decoded_as_it_was_encoded) {
    struct wire_item items[ITEMS], got;
    OWN(wire_free) struct wire_writer w = {0};
    make_items(items);
    for (int round = 0; round < 3; round++) {
        OWN(wire_reader_free) struct wire_reader r;
        bool more = false;
        wire_reset(&w);
        CHECK_INT(w.size, 0);
        write_all(&w, items);
        OK(wire_open(&r, w.data, w.size, ERR));
        for (int i = 0; i < ITEMS; i++) {
            got = (struct wire_item){.type = WIRE_RUN};
            OK(wire_next(&r, &got, &more, ERR));
            if (CHECK(more)) check_item(&got, &items[i]);
        }
        OK(wire_next(&r, &got, &more, ERR));
        CHECK(!more);
    }
}

/* Reads to the end or to the first error, and looks at all decoded fields. The message is in memory
 * of exactly its size, so that a sanitizer detects a read beyond it. Returns the code. */
static int read_all(const uint8_t *bytes, size_t size) {
    OWNED uint8_t *data = room(size ? size : 1);
    if (size) memcpy(data, bytes, size);
    OWN(wire_reader_free) struct wire_reader r;
    struct wire_item item = {.type = WIRE_RUN};
    bool more = true;
    int code = wire_open(&r, data, size, ERR);
    for (size_t n = 0; !code && more && n <= size; n++) {
        code = wire_next(&r, &item, &more, ERR);
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
    if (code) CHECK(ERR->text[0] != 0);
    return code;
}

TEST(test_a_cut_message_is_refused) {
    struct wire_item items[ITEMS];
    make_items(items);
    CHECK(read_all(NULL, 0) != HVD_OK);
    for (int i = 0; i < ITEMS; i++) {
        OWN(wire_free) struct wire_writer w = {0};
        OK(wire_put(&w, &items[i], ERR));
        for (size_t size = 2; size < w.size; size++) CHECK(read_all(w.data, size) != HVD_OK);
        CHECK_INT(read_all(w.data, w.size), HVD_OK);
    }
}

TEST(test_a_damaged_message_is_refused_or_read_safely) {
    struct wire_item items[ITEMS];
    OWN(wire_free) struct wire_writer w = {0};
    uint64_t random = 9;
    make_items(items);
    write_all(&w, items);
    OWNED uint8_t *copy = room(w.size);
    for (int round = 0; round < 20000; round++) {
        memcpy(copy, w.data, w.size);
        size_t flips = 1 + random_below(&random, 4);
        for (size_t i = 0; i < flips; i++)
            copy[1 + random_below(&random, w.size - 1)] = (uint8_t)random_next(&random);
        read_all(copy, w.size - random_below(&random, 3) * random_below(&random, w.size / 3));
    }
}

TEST(test_a_negotiation_message_of_another_version_is_refused) {
    OWN(wire_free) struct wire_writer w = {0};
    struct wire_reader r;
    OK(wire_put(&w, &(struct wire_item){.type = WIRE_BYE}, ERR));
    for (int add = 1; add < 256; add++) {
        uint8_t message[2] = {(uint8_t)(w.data[0] + add), WIRE_BYE};
        CHECK(wire_open(&r, message, sizeof message, ERR) != HVD_OK);
        CHECK_HAS(ERR->text, "version");
    }
}

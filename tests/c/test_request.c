/* Requests: refusals, sizes, conflicts, and texts. */
#include "requests.h"

/* A copy of the request with a different value in one field. */
#define WITH(r, field, value)                                                                      \
    ({                                                                                             \
        struct request odd_ = (r);                                                                 \
        odd_.field = (value);                                                                      \
        odd_;                                                                                      \
    })

static const struct request SUM = {.name = "weight",
                                   .kind = HVD_ALLREDUCE,
                                   .dtype = HVD_FLOAT32,
                                   .ndim = 1,
                                   .dims = {3},
                                   .prescale = 1,
                                   .postscale = 1};

static struct request of_dtype(int dtype) { return WITH(SUM, dtype, dtype); }

/* Checks the code that request_check returns for the request in a job of 4 ranks. */
static void is(int code, struct request r) {
    FAILS(request_check(&r, 4, ERR), code);
    if (code) CHECK_HAS(ERR->text, r.name);
}

TEST(test_good_requests_pass) {
    struct request many = WITH(request_of("many", 1), ndim, HVD_MAX_DIMS), zero = many;
    for (int i = 0; i < HVD_MAX_DIMS; i++) many.dims[i] = zero.dims[i] = i ? INT64_MAX : 0;
    for (int i = 0; i < HVD_MAX_DIMS; i++) many.dims[i] = 1;
    is(HVD_OK, SUM);
    is(HVD_OK, request_of("empty", 0));
    is(HVD_OK, gather_of("no rows", 0, 3));
    is(HVD_OK, broadcast_of("first", 7, 0));
    is(HVD_OK, broadcast_of("last", 7, 3));
    is(HVD_OK, many);
    is(HVD_OK, zero);                /* one dimension is 0: no elements */
    is(HVD_OK, WITH(SUM, root, 99)); /* an allreduce has no root */
    for (int dtype = 0; dtype < HVD_DTYPES; dtype++) is(HVD_OK, of_dtype(dtype));
}

TEST(test_a_wrong_tensor_name_is_refused) {
    struct request r = request_of("", 3);
    is(HVD_INVALID, r);
    memset(r.name, 'n', sizeof r.name); /* the name has no final zero */
    FAILS(request_check(&r, 4, ERR), HVD_INVALID);
    CHECK_HAS(ERR->text, "nnnnnnnn");
    r.name[HVD_MAX_NAME - 1] = 0;
    is(HVD_OK, r);
    /* all joins have one name, because the fast path knows a collective by its name */
    is(HVD_INVALID, WITH(request_of("second", 0), kind, HVD_JOIN));
    is(HVD_OK, WITH(request_of("join", 0), kind, HVD_JOIN));
}

TEST(test_a_request_with_a_field_out_of_range_is_refused) {
    static const int32_t BAD[] = {-1, 99, INT32_MIN, INT32_MAX};
    static const double NO_SCALE[] = {NAN, HUGE_VAL, -HUGE_VAL};
    for (int i = 0; i < 4; i++) {
        is(HVD_INVALID, WITH(SUM, kind, BAD[i]));
        is(HVD_INVALID, WITH(SUM, op, BAD[i]));
        is(HVD_UNSUPPORTED, of_dtype(BAD[i]));
        is(HVD_UNSUPPORTED, WITH(SUM, ndim, BAD[i]));
        is(HVD_INVALID, broadcast_of("weight", 3, BAD[i]));
    }
    is(HVD_INVALID, broadcast_of("weight", 3, 4));
    is(HVD_UNSUPPORTED, of_dtype(HVD_DTYPES));
    is(HVD_UNSUPPORTED, WITH(SUM, ndim, HVD_MAX_DIMS + 1));
    for (int i = 0; i < 3; i++) {
        is(HVD_INVALID, WITH(SUM, prescale, NO_SCALE[i]));
        is(HVD_INVALID, WITH(SUM, postscale, NO_SCALE[i]));
    }
}

TEST(test_a_wrong_shape_is_refused) {
    is(HVD_INVALID, request_of("weight", -1));
    is(HVD_INVALID, gather_of("weight", 3, -2));
    is(HVD_INVALID, request_of("weight", INT64_MAX));
    is(HVD_INVALID, gather_of("weight", (int64_t)1 << 40, (int64_t)1 << 40));
    is(HVD_INVALID, request_of("weight", (int64_t)1 << 61)); /* 2^63 bytes */
}

TEST(test_scales_and_ops_that_a_dtype_lacks_are_refused) {
    const struct request flag = of_dtype(HVD_BOOL);
    is(HVD_UNSUPPORTED, WITH(flag, prescale, 2));
    is(HVD_UNSUPPORTED, WITH(flag, postscale, 0.5));
    is(HVD_UNSUPPORTED, WITH(flag, op, HVD_AVERAGE));
    is(HVD_UNSUPPORTED, WITH(of_dtype(HVD_UINT64), prescale, -0.5));
    is(HVD_OK, WITH(of_dtype(HVD_UINT64), postscale, -0.5));
    for (int dtype = 0; dtype < HVD_DTYPES; dtype++) {
        bool floats = dtype_is_float(dtype);
        is(floats ? HVD_OK : HVD_UNSUPPORTED, WITH(of_dtype(dtype), op, HVD_ADASUM));
    }
}

TEST(test_elements_rows_and_bytes_of_a_request_are_right) {
    struct request r = gather_of("x", 3, 5);
    CHECK_INT(request_count(&r), 15);
    CHECK_INT(request_rows(&r), 3);
    CHECK_INT(request_bytes(&r), 60);
    CHECK_INT(request_row_bytes(&r), 20);
    r.ndim = 0;
    CHECK_INT(request_count(&r), 1);
    CHECK_INT(request_rows(&r), 1);
    CHECK_INT(request_bytes(&r), 4);
    CHECK_INT(request_row_bytes(&r), 4);
    r = gather_of("x", 0, 5);
    CHECK_INT(request_bytes(&r), 0);
    CHECK_INT(request_row_bytes(&r), 20);
}

/* Changes one more field of `other`. The first field that conflicts with `sum` must be `field`. */
#define CONFLICT(member, value, field)                                                             \
    do {                                                                                           \
        other.member = value;                                                                      \
        CHECK_INT(request_conflict(&sum, &other), field);                                          \
    } while (0)

TEST(test_the_first_field_that_differs_is_found) {
    struct request sum = request_of("x", 3), other = sum;
    CONFLICT(root, 2, FIELD_NONE); /* an allreduce has no root */
    CONFLICT(priority, 9, FIELD_NONE);
    CHECK(request_same(&sum, &other));
    CONFLICT(delegated, 1, FIELD_DELEGATED);
    CONFLICT(postscale, 2, FIELD_SCALES);
    CONFLICT(op, HVD_AVERAGE, FIELD_OP);
    CONFLICT(dims[0], 4, FIELD_SHAPE);
    CONFLICT(dtype, HVD_FLOAT64, FIELD_DTYPE);
    sum.codec = (struct codec){HVD_CODEC_2BIT, 0.5};
    CONFLICT(codec, sum.codec, FIELD_DTYPE);
    CONFLICT(rule, HVD_SGD, FIELD_RULE);
    CONFLICT(codec.parameter, 0.25, FIELD_CODEC);
    CONFLICT(codec, ((struct codec){HVD_CODEC_1BIT, 0.5}), FIELD_CODEC);
    CONFLICT(kind, HVD_BROADCAST, FIELD_KIND);
    CHECK_INT(request_conflict(&other, &sum), FIELD_KIND);
    strcpy(other.call, "reduce, root 1");
    CHECK_INT(request_conflict(&sum, &other), FIELD_CALL);
    CONFLICT(states, HVD_DIVISORS, FIELD_DIVISOR);
    CONFLICT(states, 7, FIELD_STATES);
    CONFLICT(states, -7, FIELD_CHANGES);
    CONFLICT(grouped, 2, FIELD_GROUPED);
    CONFLICT(delegated, HVD_ASKS, FIELD_DELEGATED);
    sum.delegated = HVD_ASKS;
    CONFLICT(grouped, 3, FIELD_NONE); /* HVD_ASKS: no data to compare */
    other = sum = broadcast_of("x", 3, 0);
    CONFLICT(op, HVD_AVERAGE, FIELD_NONE); /* a broadcast has no op */
    CONFLICT(prescale, 7, FIELD_NONE);
    CONFLICT(root, 1, FIELD_ROOT);
    CONFLICT(ndim, 0, FIELD_SHAPE);
}

TEST(test_allgather_rows_may_differ) {
    struct request a = gather_of("x", 3, 5), b = gather_of("x", 4, 5), c = gather_of("x", 3, 6);
    CHECK_INT(request_conflict(&a, &b), FIELD_NONE);
    CHECK(!request_same(&a, &b)); /* other rows need another entry of the cache */
    CHECK_INT(request_conflict(&a, &c), FIELD_SHAPE);
    b = gather_of("y", 3, 5);
    CHECK(!request_same(&a, &b));
}

TEST(test_the_first_ranks_of_a_reducescatter_get_one_more_row) {
    struct request r = gather_of("x", 11, 5);
    static const int64_t PARTS[] = {3, 3, 3, 2};
    for (int rank = 0; rank < 4; rank++) CHECK_INT(request_part_rows(&r, rank, 4), PARTS[rank]);
    for (int kind = HVD_REDUCESCATTER; kind <= HVD_ALLTOALL; kind++) {
        r.kind = kind;
        is(HVD_OK, r);
        is(HVD_INVALID, WITH(r, ndim, 0));
    }
    r.kind = HVD_REDUCESCATTER;
    is(HVD_UNSUPPORTED, WITH(r, op, HVD_ADASUM));
}

TEST(test_a_field_that_a_kind_ignores_is_no_conflict) {
    struct request sum = gather_of("x", 4, 5), other = sum;
    sum.kind = HVD_ALLTOALL;
    CONFLICT(kind, HVD_ALLTOALL, FIELD_NONE);
    CONFLICT(dims[0], 8, FIELD_NONE);
    CONFLICT(op, HVD_MIN, FIELD_NONE); /* an alltoall has no op */
    CHECK(!request_same(&sum, &other));
    CONFLICT(dims[1], 6, FIELD_SHAPE);
    other = gather_of("x", 4, 5);
    sum.kind = HVD_REDUCESCATTER;
    CONFLICT(kind, HVD_REDUCESCATTER, FIELD_NONE);
    CONFLICT(postscale, 2, FIELD_SCALES);
    CONFLICT(op, HVD_MIN, FIELD_OP);
    CONFLICT(dims[0], 8, FIELD_SHAPE);
}

TEST(test_error_texts_show_fields_as_users_write_them) {
    static const struct {
        enum request_field field;
        int ndim;
        const char *text;
    } WORDS[] = {{FIELD_NONE, 2, "allgather 'conv0_weight' (float32, (17, 3))"},
                 {FIELD_SHAPE, 2, "(17, 3)"},
                 {FIELD_SHAPE, 1, "(17,)"},
                 {FIELD_SHAPE, 0, "()"},
                 {FIELD_DTYPE, 2, "float32"},
                 {FIELD_KIND, 2, "allgather"},
                 {FIELD_OP, 2, "Average"},
                 {FIELD_RULE, 2, "SGD with momentum, dealt to the hosts"}};
    struct request r = gather_of("conv0_weight", 17, 3);
    r.op = HVD_AVERAGE;
    r.rule = HVD_SGD_MOMENTUM | REQUEST_DEALT;
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        char text[400];
        r.ndim = WORDS[i].ndim;
        if (WORDS[i].field)
            field_text(&r, WORDS[i].field, text, sizeof text);
        else
            request_text(&r, text, sizeof text);
        CHECK_TEXT(text, WORDS[i].text);
    }
    for (int f = FIELD_NONE; f <= FIELD_ROOT; f++) CHECK(field_name((enum request_field)f)[0] != 0);
}

/* The longest shape in the shortest buffers. */
TEST(test_a_long_field_is_cut_to_its_buffer) {
    struct request r = request_of("x", INT64_MAX);
    r.ndim = HVD_MAX_DIMS;
    for (int i = 0; i < HVD_MAX_DIMS; i++) r.dims[i] = INT64_MAX;
    for (size_t size = 1; size < 40; size++) {
        OWNED char *text = room(size);
        field_text(&r, FIELD_SHAPE, text, size);
        CHECK_INT(strlen(text), size - 1);
        request_text(&r, text, size);
        CHECK_INT(strlen(text), size - 1);
    }
}

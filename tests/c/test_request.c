/* Requests: every refusal, sizes, what is a conflict, how they are put into words. */
#include "requests.h"

static void refused(struct request r, int code) {
    FAILS(request_check(&r, 4, ERR), code);
    CHECK_HAS(ERR->text, r.name);
}

/* A sum like any other but for one field. */
#define REFUSED(field, value, code)                                                                \
    do {                                                                                           \
        struct request odd_ = request_of("weight", 3);                                             \
        odd_.field = value;                                                                        \
        refused(odd_, code);                                                                       \
    } while (0)

TEST(test_good) {
    struct request good[] = {request_of("a", 5), request_of("b", 0), gather_of("c", 0, 3),
                             broadcast_of("d", 7, 0), broadcast_of("e", 7, 3)};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) OK(request_check(&good[i], 4, ERR));
    struct request r = request_of("many", 1);
    r.ndim = HVD_MAX_DIMS;
    for (int i = 0; i < HVD_MAX_DIMS; i++) r.dims[i] = 1;
    OK(request_check(&r, 4, ERR));
    r = request_of("zero", 0);
    r.ndim = 3;
    r.dims[1] = r.dims[2] = INT64_MAX; /* no elements at all */
    r.root = 99;                       /* an allreduce has none */
    OK(request_check(&r, 4, ERR));
    for (int dtype = 0; dtype < HVD_DTYPES; dtype++) {
        r = request_of("dtype", 3);
        r.dtype = dtype;
        OK(request_check(&r, 1, ERR));
    }
}

TEST(test_names) {
    struct request r = request_of("", 3);
    FAILS(request_check(&r, 4, ERR), HVD_INVALID);
    memset(r.name, 'n', sizeof r.name); /* no final zero */
    FAILS(request_check(&r, 4, ERR), HVD_INVALID);
    CHECK_HAS(ERR->text, "nnnnnnnn");
    r.name[HVD_MAX_NAME - 1] = 0;
    OK(request_check(&r, 4, ERR));
}

TEST(test_ranges) {
    static const int32_t BAD[] = {-1, 99, INT32_MIN, INT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        REFUSED(kind, BAD[i], HVD_INVALID);
        REFUSED(op, BAD[i], HVD_INVALID);
        REFUSED(dtype, BAD[i], HVD_UNSUPPORTED);
        REFUSED(ndim, BAD[i], HVD_UNSUPPORTED);
        refused(broadcast_of("weight", 3, BAD[i]), HVD_INVALID);
    }
    refused(broadcast_of("weight", 3, 4), HVD_INVALID);
    REFUSED(dtype, HVD_DTYPES, HVD_UNSUPPORTED);
    REFUSED(ndim, HVD_MAX_DIMS + 1, HVD_UNSUPPORTED);
}

TEST(test_shapes) {
    refused(request_of("weight", -1), HVD_INVALID);
    refused(gather_of("weight", 3, -2), HVD_INVALID);
    refused(request_of("weight", INT64_MAX), HVD_INVALID);
    refused(gather_of("weight", (int64_t)1 << 40, (int64_t)1 << 40), HVD_INVALID);
    refused(request_of("weight", (int64_t)1 << 61), HVD_INVALID); /* 2^63 bytes */
}

TEST(test_scales) {
    static const double BAD[] = {NAN, HUGE_VAL, -HUGE_VAL};
    for (int i = 0; i < 3; i++) {
        REFUSED(prescale, BAD[i], HVD_INVALID);
        REFUSED(postscale, BAD[i], HVD_INVALID);
    }
    struct request r = request_of("flag", 3);
    r.dtype = HVD_BOOL;
    OK(request_check(&r, 4, ERR));
    r.prescale = 2;
    refused(r, HVD_UNSUPPORTED);
    r.prescale = 1;
    r.postscale = 0.5;
    refused(r, HVD_UNSUPPORTED);
    r.postscale = 1;
    r.op = HVD_AVERAGE;
    refused(r, HVD_UNSUPPORTED);
}

TEST(test_adasum_is_for_floats) {
    for (int dtype = 0; dtype < HVD_DTYPES; dtype++) {
        struct request r = request_of("weight", 3);
        r.op = HVD_ADASUM;
        r.dtype = dtype;
        if (dtype >= HVD_FLOAT16 && dtype <= HVD_FLOAT64)
            OK(request_check(&r, 4, ERR));
        else
            refused(r, HVD_UNSUPPORTED);
    }
}

TEST(test_sizes) {
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

/* One field more each time; the first in the order of fields is told. */
#define CONFLICT(member, value, field)                                                             \
    do {                                                                                           \
        other.member = value;                                                                      \
        CHECK_INT(request_conflict(&sum, &other), field);                                          \
    } while (0)

TEST(test_conflicts) {
    struct request sum = request_of("x", 3), other = sum;
    CONFLICT(root, 2, FIELD_NONE); /* not an allreduce's */
    CONFLICT(priority, 9, FIELD_NONE);
    CHECK(request_same(&sum, &other));
    CONFLICT(postscale, 2, FIELD_SCALES);
    CONFLICT(op, HVD_AVERAGE, FIELD_OP);
    CONFLICT(dims[0], 4, FIELD_SHAPE);
    CONFLICT(dtype, HVD_FLOAT64, FIELD_DTYPE);
    sum.codec = (struct codec){HVD_CODEC_2BIT, 0.5};
    CONFLICT(codec, sum.codec, FIELD_DTYPE);
    CONFLICT(codec.parameter, 0.25, FIELD_CODEC);
    CONFLICT(codec, ((struct codec){HVD_CODEC_1BIT, 0.5}), FIELD_CODEC);
    CONFLICT(kind, HVD_BROADCAST, FIELD_KIND);
    CHECK_INT(request_conflict(&other, &sum), FIELD_KIND);
    CONFLICT(grouped, 2, FIELD_GROUPED);
    other = sum = broadcast_of("x", 3, 0);
    CONFLICT(op, HVD_AVERAGE, FIELD_NONE); /* not a broadcast's */
    CONFLICT(prescale, 7, FIELD_NONE);
    CONFLICT(root, 1, FIELD_ROOT);
    CONFLICT(ndim, 0, FIELD_SHAPE);
}

TEST(test_allgather_rows_may_differ) {
    struct request a = gather_of("x", 3, 5), b = gather_of("x", 4, 5), c = gather_of("x", 3, 6);
    CHECK_INT(request_conflict(&a, &b), FIELD_NONE);
    CHECK(!request_same(&a, &b)); /* a hit stands for the rows, too */
    CHECK_INT(request_conflict(&a, &c), FIELD_SHAPE);
    b = gather_of("y", 3, 5);
    CHECK(!request_same(&a, &b));
}

TEST(test_rows_are_dealt_out) {
    struct request r = gather_of("x", 11, 5);
    static const int64_t PARTS[] = {3, 3, 3, 2};
    for (int rank = 0; rank < 4; rank++) CHECK_INT(request_part_rows(&r, rank, 4), PARTS[rank]);
    for (int kind = HVD_REDUCESCATTER; kind <= HVD_ALLTOALL; kind++) {
        r.kind = kind;
        OK(request_check(&r, 4, ERR));
        struct request scalar = r;
        scalar.ndim = 0;
        refused(scalar, HVD_INVALID);
    }
    r.kind = HVD_REDUCESCATTER;
    r.op = HVD_ADASUM;
    refused(r, HVD_UNSUPPORTED);
}

TEST(test_conflicts_of_parts) {
    struct request sum = gather_of("x", 4, 5), other = sum;
    sum.kind = HVD_ALLTOALL;
    CONFLICT(kind, HVD_ALLTOALL, FIELD_NONE);
    CONFLICT(dims[0], 8, FIELD_NONE);
    CONFLICT(op, HVD_MIN, FIELD_NONE); /* not an alltoall's */
    CHECK(!request_same(&sum, &other));
    CONFLICT(dims[1], 6, FIELD_SHAPE);
    other = gather_of("x", 4, 5);
    sum.kind = HVD_REDUCESCATTER;
    CONFLICT(kind, HVD_REDUCESCATTER, FIELD_NONE);
    CONFLICT(postscale, 2, FIELD_SCALES);
    CONFLICT(op, HVD_MIN, FIELD_OP);
    CONFLICT(dims[0], 8, FIELD_SHAPE);
}

TEST(test_words) {
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
                 {FIELD_OP, 2, "Average"}};
    struct request r = gather_of("conv0_weight", 17, 3);
    r.op = HVD_AVERAGE;
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
TEST(test_words_are_cut) {
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

/* Both ways to write copy any bytes to any place and no byte beside it; the faster one is taken. */
#include "check.h"

#include "stores.h"

enum { ROOM = 512, BYTES = 1000 };

static void check_copy(enum store_way way, size_t to, size_t from, size_t bytes) {
    _Alignas(64) unsigned char in[ROOM], out[ROOM];
    for (size_t i = 0; i < ROOM; i++) in[i] = (unsigned char)(i * 7 + 1);
    memset(out, 0xa5, sizeof out);
    stores_copy(way)(out + to, in + from, bytes);
    for (size_t i = 0; i < ROOM; i++)
        CHECK_INT(out[i], i < to || i >= to + bytes ? 0xa5 : in[from + i - to]);
}

static void test_any_place_and_length(void) {
    static const size_t LENGTHS[] = {0, 1, 15, 63, 64, 65, 127, 128, 200, 300};
    for (int way = 0; way < STORE_WAYS; way++)
        for (size_t to = 0; to < 130; to += 1 + 12 * CHECK_SLOW)
            for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++)
                check_copy((enum store_way)way, to, 3 * i, LENGTHS[i]);
}

/* A pass of so many seconds by each way; returns whether it took the second way. */
static int pass(struct stores *s, size_t bytes, double cached, double past_caches) {
    enum store_way way = stores_choose(s, bytes);
    stores_note(s, bytes, way, way == STORE_PAST_CACHES ? past_caches : cached);
    return way == STORE_PAST_CACHES;
}

static int take(struct stores *s, int passes, double cached, double past_caches) {
    int past = 0;
    for (int i = 0; i < passes; i++) past += pass(s, BYTES, cached, past_caches);
    return past;
}

/* Each is tried; then it is the faster one, but for a look at the other now and then. */
static void test_the_faster_way(void) {
    struct stores left = {0}, right = {0};
    CHECK_INT(take(&left, 6, 1, 2), 3);
    CHECK_INT(take(&right, 6, 2, 1), 3);
    int past = take(&left, 640, 1, 2), cached = 640 - take(&right, 640, 2, 1);
    CHECK(past >= 1 && past <= 12);
    CHECK_INT(cached, past);
}

/* One slow pass is forgiven, and what has become faster is found out. */
static void test_change(void) {
    struct stores s = {0};
    take(&s, 6, 1, 1.5);
    stores_note(&s, BYTES, STORE_CACHED, 2);
    CHECK_INT(take(&s, 40, 1, 1.5), 0);
    CHECK(take(&s, 640, 1, 0.5) > 500);
    CHECK(take(&s, 640, 1, 4) < 40);
}

/* Sizes in turn, of which the small one takes longer a byte, and each has its own faster way. */
static void test_sizes_are_not_compared(void) {
    enum { SMALL = 1 << 20, LARGE = 1 << 26, STEPS = 1000 };
    struct stores s = {0};
    int small_past = 0, large_past = 0;
    for (int i = 0; i < STEPS; i++) {
        small_past += pass(&s, SMALL, 2.0 * SMALL, 3.0 * SMALL);
        large_past += pass(&s, LARGE, 1.5 * LARGE, 1.0 * LARGE);
    }
    CHECK(small_past < STEPS / 20);
    CHECK(large_past > STEPS - STEPS / 20);
}

int main(void) {
    check_begin();
    RUN(test_any_place_and_length);
    RUN(test_the_faster_way);
    RUN(test_change);
    RUN(test_sizes_are_not_compared);
    return check_end("test_stores");
}

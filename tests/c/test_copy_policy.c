/* Both ways to write copy any bytes to any place and no byte beside it; the faster one is taken. */
#include "check.h"

#include "shm/copy_policy.h"

enum { ROOM = 512, BYTES = 1000 };

static void check_copy(enum copy_way way, size_t to, size_t from, size_t bytes) {
    _Alignas(64) unsigned char in[ROOM], out[ROOM];
    for (size_t i = 0; i < ROOM; i++) in[i] = (unsigned char)(i * 7 + 1);
    memset(out, 0xa5, sizeof out);
    copy_function_of(way)(out + to, in + from, bytes);
    for (size_t i = 0; i < ROOM; i++)
        CHECK_INT(out[i], i < to || i >= to + bytes ? 0xa5 : in[from + i - to]);
}

TEST(test_any_place_and_length) {
    static const size_t LENGTHS[] = {0, 1, 15, 63, 64, 65, 127, 128, 200, 300};
    for (int way = 0; way < COPY_WAYS; way++)
        for (size_t to = 0; to < 130; to += 1 + 12 * CHECK_SLOW)
            for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++)
                check_copy((enum copy_way)way, to, 3 * i, LENGTHS[i]);
}

/* Two ranks of a host, of whom the first one leads; they begin stretches first by turns. */
struct pair {
    struct copy_board board;
    struct copy_policy of[2];
    int first;
};

static void open_pair(struct pair *p) {
    memset(p, 0, sizeof *p);
    for (int i = 0; i < 2; i++)
        p->of[i] = (struct copy_policy){.board = &p->board, .leads = i == 0};
}

/* One stretch, with seconds a byte for each way; returns whether the ranks took the second way. The
 * follower's own times would mislead. */
static int stretch(struct pair *p, size_t bytes, double cached, double past_caches) {
    enum copy_way ways[2];
    ways[p->first] = copy_policy_begin(&p->of[p->first], bytes);
    p->first = !p->first;
    ways[p->first] = copy_policy_begin(&p->of[p->first], bytes);
    CHECK_INT(ways[1], ways[0]);
    bool past = ways[0] == COPY_NONTEMPORAL;
    copy_policy_end(&p->of[0], bytes, ways[0], past ? past_caches : cached);
    copy_policy_end(&p->of[1], bytes, ways[1], past ? cached : past_caches);
    return past;
}

/* Returns how many of the stretches took the second way. */
static int take(struct pair *p, int stretches, double cached, double past_caches) {
    int past = 0;
    for (int i = 0; i < stretches; i++) past += stretch(p, BYTES, cached, past_caches);
    return past;
}

/* Both are tried, then the faster one is taken; the other is tried again, ever more rarely. */
TEST(test_the_faster_way) {
    struct pair left, right;
    open_pair(&left);
    open_pair(&right);
    CHECK_INT(take(&left, 6, 1, 2), 3);
    CHECK_INT(take(&right, 6, 2, 1), 3);
    int soon = take(&left, 100, 1, 2), past = soon + take(&left, 540, 1, 2);
    int later = take(&left, 2560, 1, 2);
    CHECK(soon >= 3 && soon <= 6);
    CHECK(past >= 1 && past <= 12);
    CHECK(later >= 10 && later <= 12);
    CHECK_INT(640 - take(&right, 640, 2, 1), past);
    CHECK_INT(2560 - take(&right, 2560, 2, 1), later);
}

/* One slow stretch does not change the way. A way that has become faster is found. */
TEST(test_change) {
    struct pair p, undisturbed;
    open_pair(&p);
    open_pair(&undisturbed);
    take(&p, 6, 1, 1.5);
    take(&undisturbed, 6, 1, 1.5);
    CHECK_INT(stretch(&p, BYTES, 2, 1.5), 0);
    CHECK_INT(stretch(&undisturbed, BYTES, 1, 1.5), 0);
    int tried = take(&undisturbed, 40, 1, 1.5);
    CHECK(tried <= 3);
    CHECK_INT(take(&p, 40, 1, 1.5), tried);
    CHECK(take(&p, 640, 1, 0.5) > 500);
    CHECK(take(&p, 640, 1, 4) < 40);
}

/* Sizes in turn, of which the small one takes longer a byte, and each has its own faster way. */
TEST(test_sizes_are_not_compared) {
    enum { SMALL = 1 << 20, LARGE = 1 << 26, STEPS = 1000 };
    struct pair p;
    int small_past = 0, large_past = 0;
    open_pair(&p);
    for (int i = 0; i < STEPS; i++) {
        small_past += stretch(&p, SMALL, 2, 3);
        large_past += stretch(&p, LARGE, 1.5, 1);
    }
    CHECK(small_past < STEPS / 20);
    CHECK(large_past > STEPS - STEPS / 20);
}

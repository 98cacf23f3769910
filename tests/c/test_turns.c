/* Turns of names: whoever comes first, those of one name pass in the order in which they
 * entered. */
#include "check.h"

#include "mxnet/turns.h"

static struct turns turns;

#define TURNS_TEST(name)                                                                           \
    TEST_ON(name, struct turns, t, turns_init(&turns), mutex_destroy(&turns.mutex))

static void enter(struct turn *turn, int group, const char *name) {
    turn_enter(&turns, turn, group, name, turn);
}

TURNS_TEST(test_the_later_one_waits_for_the_earlier) {
    struct turn first, second, third, other;
    enter(&first, 0, "weight");
    enter(&second, 0, "weight");
    enter(&third, 0, "weight");
    enter(&other, 0, "bias");
    CHECK(turn_come(&turns, &second) == NULL);
    CHECK(turn_come(&turns, &other) == &other);
    CHECK(turn_pass(&turns, &other) == NULL);
    CHECK(turn_come(&turns, &first) == &first);
    CHECK(turn_pass(&turns, &first) == &second);
    CHECK(turn_pass(&turns, &second) == NULL); /* the third has not come */
    CHECK(turn_come(&turns, &third) == &third);
    CHECK(turn_pass(&turns, &third) == NULL);
}

TURNS_TEST(test_one_that_comes_while_the_first_is_under_way_goes_with_it) {
    struct turn first, second;
    enter(&first, 0, "weight");
    enter(&second, 0, "weight");
    CHECK(turn_come(&turns, &first) == &first);
    CHECK(turn_come(&turns, &second) == NULL);
    CHECK(turn_pass(&turns, &first) == &second);
    CHECK(turn_pass(&turns, &second) == NULL);
}

TURNS_TEST(test_groups_have_names_of_their_own) {
    struct turn all, part;
    enter(&all, 0, "weight");
    enter(&part, 1, "weight");
    CHECK(turn_come(&turns, &part) == &part);
    CHECK(turn_pass(&turns, &part) == NULL);
    CHECK(turn_come(&turns, &all) == &all);
    CHECK(turn_pass(&turns, &all) == NULL);
}

/* ---- many threads ---- */

enum { THREADS = 4, EACH = 3000, NAMES = 5 };

static struct turn entered[THREADS * EACH];
static char names[NAMES][16];
static int passed_of[NAMES]; /* the turns must guard it: no atomic */
static atomic_int next_one, in_order, passed;

static void submit(struct turn *turn) {
    const int number = (int)(turn - entered), name = number % NAMES;
    atomic_fetch_add(&in_order, passed_of[name] == number / NAMES);
    passed_of[name]++;
    atomic_fetch_add(&passed, 1);
}

/* Takes them in blocks and brings each block's last ones first. */
static void *bring(void *arg) {
    enum { BLOCK = 60 };
    for (int from; (from = atomic_fetch_add(&next_one, BLOCK)) < THREADS * EACH;)
        for (int i = BLOCK - 1; i >= 0; i--) {
            struct turn *turn = turn_come(&turns, &entered[from + i]);
            while (turn) {
                submit(turn);
                turn = turn_pass(&turns, turn);
            }
        }
    return arg;
}

TURNS_TEST(test_threads_bring_them_in_any_order) {
    for (int i = 0; i < NAMES; i++) snprintf(names[i], sizeof names[i], "name%d", i);
    for (int i = 0; i < THREADS * EACH; i++) enter(&entered[i], 0, names[i % NAMES]);
    threads_run(THREADS, bring, NULL, 0);
    CHECK_INT(atomic_load(&passed), THREADS * EACH);
    CHECK_INT(atomic_load(&in_order), THREADS * EACH);
}

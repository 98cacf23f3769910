/* Collectives of one name are submitted in the order in which they entered. */
#include "check.h"

#include "mxnet/queues.h"

static struct queues queues;

#define QUEUES_TEST(name)                                                                          \
    TEST_ON(name, struct queues, t, queues_init(&queues), mutex_destroy(&queues.mutex))

static void enter(struct queue_entry *entry, int group, const char *name) {
    queue_enter(&queues, entry, group, name, entry);
}

QUEUES_TEST(test_a_collective_waits_for_an_earlier_collective_of_its_name) {
    struct queue_entry first, second, third, other;
    enter(&first, 0, "weight");
    enter(&second, 0, "weight");
    enter(&third, 0, "weight");
    enter(&other, 0, "bias");
    CHECK(queue_ready(&queues, &second) == NULL);
    CHECK(queue_ready(&queues, &other) == &other);
    CHECK(queue_next(&queues, &other) == NULL);
    CHECK(queue_ready(&queues, &first) == &first);
    CHECK(queue_next(&queues, &first) == &second); /* this thread also submits the second */
    CHECK(queue_next(&queues, &second) == NULL);   /* the third entry is not ready yet */
    CHECK(queue_ready(&queues, &third) == &third);
    CHECK(queue_next(&queues, &third) == NULL);
}

QUEUES_TEST(test_equal_names_in_two_groups_do_not_wait_for_each_other) {
    struct queue_entry all, part;
    enter(&all, 0, "weight");
    enter(&part, 1, "weight");
    CHECK(queue_ready(&queues, &part) == &part);
    CHECK(queue_next(&queues, &part) == NULL);
    CHECK(queue_ready(&queues, &all) == &all);
    CHECK(queue_next(&queues, &all) == NULL);
}

/* ---- many threads ---- */

enum { THREADS = 4, EACH = 3000, NAMES = 5 };

static struct queue_entry entered[THREADS * EACH];
static char names[NAMES][16];
static int passed_of[NAMES]; /* not atomic, because the queues must guard it */
static atomic_int next_one, in_order, passed;

static void submit(struct queue_entry *entry) {
    const int number = (int)(entry - entered), name = number % NAMES;
    atomic_fetch_add(&in_order, passed_of[name] == number / NAMES);
    passed_of[name]++;
    atomic_fetch_add(&passed, 1);
}

/* Takes blocks of entries and makes a block's entries ready in reverse order. */
static void *bring(void *arg) {
    enum { BLOCK = 60 };
    for (int from; (from = atomic_fetch_add(&next_one, BLOCK)) < THREADS * EACH;)
        for (int i = BLOCK - 1; i >= 0; i--) {
            struct queue_entry *entry = queue_ready(&queues, &entered[from + i]);
            while (entry) {
                submit(entry);
                entry = queue_next(&queues, entry);
            }
        }
    return arg;
}

QUEUES_TEST(test_threads_that_push_in_any_order_submit_in_order) {
    for (int i = 0; i < NAMES; i++) snprintf(names[i], sizeof names[i], "name%d", i);
    for (int i = 0; i < THREADS * EACH; i++) enter(&entered[i], 0, names[i % NAMES]);
    threads_run(THREADS, bring, NULL, 0);
    CHECK_INT(atomic_load(&passed), THREADS * EACH);
    CHECK_INT(atomic_load(&in_order), THREADS * EACH);
}

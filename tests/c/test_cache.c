/* The response cache: ids and names, use order, capacities 0 and 1. */
#include "requests.h"

#include "negotiation/cache.h"
#include "random.h"

static void end(struct cache **c) { cache_free(*c); }

static void put(struct cache *c, uint64_t id, int name) {
    struct request r = numbered_request(name, (int64_t)id);
    OK(cache_put(c, id, &r, NULL, 0, ERR));
}

static const struct cache_entry *by_name(struct cache *c, const char *name) {
    struct map_node like = map_node_of(name, NULL);
    return cache_by_name(c, &like);
}

static const struct cache_entry *named(struct cache *c, int name) {
    struct request r = numbered_request(name, 1);
    return by_name(c, r.name);
}

TEST(test_by_name_and_id) {
    OWN(end) struct cache *c = cache_new(5000);
    for (int i = 1; i <= 3000; i++) put(c, (uint64_t)i * 1024, i);
    for (int i = 1; i <= 3000; i++) {
        const struct cache_entry *entry = cache_by_id(c, (uint64_t)i * 1024);
        if (!CHECK(entry != NULL)) continue;
        CHECK(named(c, i) == entry);
        CHECK(entry->id == (uint64_t)i * 1024 && entry->request.dims[0] == i * 1024);
        CHECK_INT(entry->nrows, 0);
    }
    CHECK(cache_by_id(c, 7) == NULL);
    CHECK(by_name(c, "nobody") == NULL);
    cache_free(NULL);
}

TEST(test_small_capacities) {
    struct cache *c = cache_new(0);
    put(c, 1, 1);
    CHECK(cache_by_id(c, 1) == NULL && named(c, 1) == NULL);
    cache_free(c);
    c = cache_new(1);
    put(c, 1, 1);
    CHECK(cache_by_id(c, 1) != NULL);
    put(c, 2, 2);
    CHECK(cache_by_id(c, 1) == NULL && named(c, 1) == NULL);
    CHECK(cache_by_id(c, 2) != NULL);
    put(c, 3, 2);
    CHECK(cache_by_id(c, 2) == NULL);
    CHECK(named(c, 2) != NULL && named(c, 2)->id == 3);
    cache_free(c);
}

TEST(test_unused_for_longest_goes) {
    OWN(end) struct cache *c = cache_new(3);
    for (int i = 1; i <= 3; i++) put(c, (uint64_t)i, i);
    CHECK(cache_by_id(c, 1) != NULL); /* uses by id ... */
    CHECK(named(c, 2) != NULL);       /* ... and by name */
    put(c, 4, 4);
    CHECK(cache_by_id(c, 3) == NULL);
    put(c, 5, 5);
    CHECK(cache_by_id(c, 1) == NULL);
    CHECK(cache_by_id(c, 2) && cache_by_id(c, 4) && cache_by_id(c, 5));
}

/* The same name again takes no second place, even when the cache is full. */
TEST(test_replaced_by_name) {
    OWN(end) struct cache *c = cache_new(2);
    put(c, 1, 1);
    put(c, 2, 2);
    put(c, 3, 2);
    CHECK(cache_by_id(c, 1) != NULL);
    CHECK(cache_by_id(c, 2) == NULL);
    CHECK(cache_by_id(c, 3) != NULL && cache_by_id(c, 3)->request.dims[0] == 3);
}

TEST(test_rows_are_copied) {
    OWN(end) struct cache *c = cache_new(2);
    int64_t rows[] = {3, 0, 5};
    struct request r = gather_of("g", 3, 2);
    OK(cache_put(c, 9, &r, rows, 3, ERR));
    memset(rows, 0, sizeof rows);
    memset(&r, 0, sizeof r);
    const struct cache_entry *entry = by_name(c, "g");
    if (CHECK(entry && entry->nrows == 3)) CHECK(entry->rows[0] == 3 && entry->rows[2] == 5);
}

/* Against a plain list, random puts and looks. */
TEST(test_random) {
    enum { NAMES = 30, CAPACITY = 10 };
    uint64_t random = 1, id_of[NAMES] = {0}, used[NAMES] = {0};
    OWN(end) struct cache *c = cache_new(CAPACITY);
    for (uint64_t step = 1; step < 5000; step++) {
        size_t name = random_below(&random, NAMES), in = 0, oldest = NAMES;
        if (random_next(&random) % 2) {
            const struct cache_entry *entry = named(c, (int)name);
            CHECK((entry ? entry->id : 0) == id_of[name]);
            used[name] = step;
            continue;
        }
        for (size_t i = 0; i < NAMES; i++) {
            if (!id_of[i] || i == name) continue;
            in++;
            if (oldest == NAMES || used[i] < used[oldest]) oldest = i;
        }
        if (in == CAPACITY) id_of[oldest] = 0;
        put(c, step, (int)name);
        id_of[name] = used[name] = step;
    }
}

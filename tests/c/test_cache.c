/* The response cache: ids and names, the order of use, capacities 0 and 1. */
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

TEST(test_the_cache_copies_the_rows_of_an_entry) {
    OWN(end) struct cache *c = cache_new(2);
    int64_t rows[] = {3, 0, 5};
    struct request r = gather_of("g", 3, 2);
    OK(cache_put(c, 9, &r, rows, 3, ERR));
    memset(rows, 0, sizeof rows);
    memset(&r, 0, sizeof r);
    const struct cache_entry *entry = by_name(c, "g");
    if (CHECK(entry && entry->nrows == 3)) CHECK(entry->rows[0] == 3 && entry->rows[2] == 5);
}

/* Compares the cache with a plain list for random puts and look-ups by name and id. A full cache
 * drops the least recently used entry; putting a name again replaces its entry. */
static void check_random(size_t capacity) {
    enum { NAMES = 30 };
    uint64_t random = 1, id_of[NAMES] = {0}, used[NAMES] = {0};
    OWN(end) struct cache *c = cache_new(capacity);
    for (uint64_t step = 1; step < 5000; step++) {
        size_t name = random_below(&random, NAMES), in = 0, oldest = NAMES;
        if (random_next(&random) % 2) {
            bool by_id = random_next(&random) % 2 && id_of[name];
            const struct cache_entry *entry =
                by_id ? cache_by_id(c, id_of[name]) : named(c, (int)name);
            CHECK((entry ? entry->id : 0) == id_of[name]);
            if (entry) CHECK((uint64_t)entry->request.dims[0] == id_of[name]);
            used[name] = step;
            continue;
        }
        for (size_t i = 0; i < NAMES; i++) {
            if (!id_of[i] || i == name) continue;
            in++;
            if (oldest == NAMES || used[i] < used[oldest]) oldest = i;
        }
        uint64_t gone[] = {id_of[name], in == capacity && in ? id_of[oldest] : 0};
        if (in == capacity && in) id_of[oldest] = 0;
        put(c, step << 20, (int)name);
        id_of[name] = capacity ? step << 20 : 0;
        used[name] = step;
        for (int i = 0; i < 2; i++) CHECK(!gone[i] || !cache_by_id(c, gone[i]));
    }
}

TEST(test_the_cache_drops_the_least_recently_used_entries) {
    static const size_t CAPACITIES[] = {0, 1, 2, 10};
    for (int i = 0; i < 4; i++) check_random(CAPACITIES[i]);
}

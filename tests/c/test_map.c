/* The map: thousands of keys, removed and put again, in random order. */
#include "check.h"

#include "base/map.h"
#include "random.h"

enum { KEYS = 5000 };

struct value {
    char key[32];
    struct map_node node;
    bool in;
};

static struct value *values_new(void) {
    struct value *values = room(KEYS * sizeof *values);
    for (int i = 0; i < KEYS; i++)
        snprintf(values[i].key, sizeof values[i].key, "allreduce.t.%d", i);
    for (int i = 0; i < KEYS; i++) values[i].node = map_node_of(values[i].key, &values[i]);
    return values;
}

static size_t check_all(const struct map *map, struct value *values) {
    size_t in = 0;
    for (int i = 0; i < KEYS; i++) {
        void *expected = values[i].in ? &values[i] : NULL;
        CHECK(map_get(map, values[i].key) == expected);
        CHECK(map_find(map, &values[i].node) == expected);
        in += values[i].in;
    }
    CHECK_INT(map->count, in);
    return in;
}

TEST(test_empty) {
    struct map map = {0};
    CHECK(map_get(&map, "a") == NULL);
    map_clear(&map);
    CHECK_INT(map.count, 0);
}

TEST(test_many) {
    struct map map = {0};
    OWNED struct value *values = values_new();
    for (int i = 0; i < KEYS; i++) {
        OK(map_put(&map, &values[i].node, ERR));
        values[i].in = true;
    }
    CHECK_INT(check_all(&map, values), KEYS);
    map_clear(&map);
    CHECK(map_get(&map, values[0].key) == NULL);
    OK(map_put(&map, &values[0].node, ERR));
    CHECK(map_get(&map, values[0].key) == &values[0]);
    map_clear(&map);
}

TEST(test_removed_and_put_again) {
    OWNED struct value *values = values_new();
    OWN(map_clear) struct map map = {0};
    uint64_t random = 1;
    for (int step = 0; step < 60000; step++) {
        struct value *v = &values[random_below(&random, KEYS)];
        if (v->in)
            map_remove(&map, &v->node);
        else
            OK(map_put(&map, &v->node, ERR));
        v->in = !v->in;
        CHECK(map_get(&map, v->key) == (v->in ? v : NULL));
    }
    check_all(&map, values);
}

/* What is looked up need not be the pointer that was put. */
TEST(test_keys_by_text) {
    OWN(map_clear) struct map map = {0};
    char key[8] = "weight", other[8] = "weight";
    struct map_node node = map_node_of(key, key), like = map_node_of(other, NULL);
    struct map_node again = map_node_like(&node, other, other), none = map_node_of("", other);
    OK(map_put(&map, &node, ERR));
    CHECK(map_get(&map, other) == key);
    CHECK(map_find(&map, &like) == key && map_find(&map, &again) == key);
    CHECK(map_get(&map, "weigh") == NULL);
    CHECK(map_get(&map, "") == NULL);
    map_remove(&map, &node);
    CHECK_INT(map.count, 0);
    OK(map_put(&map, &again, ERR));
    OK(map_put(&map, &none, ERR));
    key[0] = 'W'; /* of no use any more */
    CHECK(map_get(&map, "weight") == other && map_get(&map, "") == other);
}

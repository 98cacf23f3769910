/* Tensors in a region (memory that the other ranks map): reduced in place, or through the window if
 * a rank's tensor is elsewhere. */
#include "engine_case.h"

enum { STRIDE = 1 << 19, WORKS = 12 };

struct shared_region {
    char *memory; /* the region, with a part for every rank */
    int outside;  /* rank whose tensors are outside of the region; -1: none */
    int shifted;  /* rank whose tensors have other offsets than those of other ranks; -1: none */
    size_t ahead; /* the option bytes_ahead: with 1, large tensors are cut */
};

TEST(test_a_region_has_only_memory_of_this_ranks_part) {
    char memory[300];
    int64_t offset = -1;
    struct regions t;
    struct region r = {.id = 7, .memory = memory, .stride = 100, .n = 3, .self = 1};
    regions_init(&t);
    CHECK(!regions_find(&t, memory + 100, 1, &offset));
    regions_add(&t, &r);
    CHECK(regions_find(&t, memory + 100, 100, &offset) == &r);
    CHECK_INT(offset, 0);
    CHECK(regions_find(&t, memory + 150, 50, &offset) == &r);
    CHECK_INT(offset, 50);
    CHECK(!regions_find(&t, memory + 150, 51, &offset));
    CHECK(!regions_find(&t, memory + 99, 1, &offset));
    CHECK(!regions_find(&t, memory + 201, 1, &offset));
    regions_remove(&t, &r);
    regions_remove(&t, &r);
    CHECK(!regions_find(&t, memory + 100, 1, &offset));
    regions_free(&t);
}

/* Moves the memory of a sum into the region, after the earlier sums. */
static void place_work(struct work *w, struct engine_rank *me, int i, char *part, size_t *used) {
    struct coll_case c = plain_sum((size_t)(i * i * 200 + 1));
    if (i % 3 == 1) c.dtype = HVD_FLOAT16;
    if (i % 3 == 2) c.how = (struct scaling){HVD_AVERAGE, 0.5, 2};
    work_init(w, me, c, numbered("gradient", i), true);
    if (!part) return;
    char *place = part + *used;
    *used += (w->in_bytes + 63) & ~(size_t)63;
    REQUIRE(*used <= STRIDE);
    memcpy(place, w->in, w->in_bytes);
    free(w->in);
    w->in = w->out = (unsigned char *)place;
    w->tensor.in = w->tensor.out = place;
}

ENGINES_BY(region_main, arg,
           config.options.bytes_ahead = ((const struct shared_region *)arg)->ahead) {
    const struct shared_region *s = arg;
    struct work works[WORKS];
    const struct layout *l = &rank_transport(me->ranks, me->rank)->layout;
    struct region region = {.id = 1, .stride = STRIDE, .n = l->host.size, .self = l->host.rank};
    region.memory = s->memory + (size_t)(l->host_of[me->rank] * me->ranks->size) * STRIDE;
    engine_add_region(me->engine, &region);
    char *part = me->rank == s->outside ? NULL : region_part(&region, region.self);
    size_t used = me->rank == s->shifted ? 4096 : 0;
    for (int i = 0; i < WORKS; i++) place_work(&works[i], me, i, part, &used);
    for (int round = 0; round < 2; round++) { /* the second round uses the cache */
        works_submit(works, WORKS, NULL);
        works_check(me, works, WORKS);
    }
    engine_remove_region(me->engine, &region);
    check_in_order(me, "after");
    if (!part) works_free(works, WORKS);
}

/* lowest: by rank, the lowest rank of the rank's host; NULL: one host. */
static void run_region_on(int p, const int *lowest, int outside, int shifted) {
    for (size_t ahead = 0; ahead < 2; ahead++) {
        struct local_hub *hub = lowest ? hub_on(p, lowest, true) : hub_of(p, 0, true);
        size_t parts = (size_t)(p * local_hub_rank(hub, 0)->layout.hosts);
        struct shared_region s = {room(parts * STRIDE), outside, shifted, ahead};
        ranks_run_hub(p, hub, region_main, &s);
        free(s.memory);
    }
}

TEST(test_a_sum_of_tensors_in_a_region_is_exact) {
    for (int p = 1; p <= 5; p = more_ranks(p)) run_region_on(p, NULL, -1, -1);
}

TEST(test_a_rank_whose_tensor_lies_outside_the_region_gets_the_same_sum) {
    for (int p = 2; p <= 4; p = more_ranks(p)) {
        run_region_on(p, NULL, 0, -1);
        run_region_on(p, NULL, p - 1, -1);
        run_region_on(p, NULL, -1, p - 1);
    }
}

/* A row has the number of ranks, and for each rank the lowest rank of its host. */
TEST(test_tensors_in_regions_are_reduced_on_several_hosts) {
    static const int PLACED[][6] = {
        {4, 0, 0, 2, 2}, {4, 0, 1, 0, 1}, {5, 0, 1, 1, 0, 1}, {4, 0, 1, 1, 1}};
    for (size_t i = 0; i < sizeof PLACED / sizeof *PLACED; i += 1 + CHECK_SLOW) {
        const int p = PLACED[i][0], *lowest = PLACED[i] + 1;
        run_region_on(p, lowest, -1, -1);
        run_region_on(p, lowest, 1, -1);
        run_region_on(p, lowest, -1, p - 1);
    }
}

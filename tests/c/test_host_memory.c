/* Memory that exists once on a host, and views whose pages a process may spoil for itself. */
#include "check.h"

#include "shm/shmem.h"

static const size_t PAGES = 1100; /* more than one read of the page map */

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

/* Two mappings of one memory, as of two ranks. */
static bool open_two(struct host_memory m[2]) {
    char address[SHMEM_ADDRESS];
    if (!OK(host_memory_make(&m[0], PAGES * page_bytes(), ERR))) return false;
    host_memory_address(&m[0], address);
    return OK(host_memory_attach(&m[1], PAGES * page_bytes(), address, ERR));
}

static int settle(const struct host_memory *m, size_t at, size_t bytes, hvd_error *err) {
    return host_memory_settle(&(struct host_range){m, m->view + at, bytes}, err);
}

static void close_two(struct host_memory m[2]) {
    host_memory_free(&m[0]);
    host_memory_free(&m[1]);
}

struct two {
    struct host_memory m[2];
};

#define TWO_TEST(name) TEST_ON(name, struct two, two, REQUIRE(open_two(two->m)), close_two(two->m))

TWO_TEST(test_all_see_what_one_shares) {
    struct host_memory *m = two->m;
    CHECK_INT(m[1].view[7], 0);
    m[0].shared[7] = 1;
    m[1].shared[PAGES * page_bytes() - 1] = 2;
    CHECK_INT(m[1].shared[7], 1);
    CHECK_INT(m[1].view[7], 1);
    CHECK_INT(m[0].view[PAGES * page_bytes() - 1], 2);
}

TWO_TEST(test_what_one_writes_to_its_view_others_do_not_see) {
    struct host_memory *m = two->m;
    m[0].shared[5] = 1;
    m[0].view[5] = 2;
    CHECK_INT(m[0].view[5], 2);
    CHECK_INT(m[0].shared[5], 1);
    CHECK_INT(m[1].view[5], 1);
}

TWO_TEST(test_settling_shares_what_was_written) {
    struct host_memory *m = two->m;
    size_t page = page_bytes(), last = PAGES * page - 1;
    m[0].view[5] = 2;
    m[0].view[last] = 3;
    OK(settle(&m[0], 0, page + 1, ERR));
    CHECK_INT(m[1].view[5], 2);
    CHECK_INT(m[1].view[last], 0); /* was not settled */
    OK(settle(&m[0], page, last + 1 - page, ERR));
    CHECK_INT(m[1].view[last], 3);
}

TWO_TEST(test_a_settled_view_follows_the_memory_again) {
    struct host_memory *m = two->m;
    m[0].view[5] = 2;
    OK(settle(&m[0], 0, page_bytes(), ERR));
    m[1].shared[5] = 4;
    CHECK_INT(m[0].view[5], 4);
}

TEST(test_no_memory_has_that_address) {
    struct host_memory m;
    CHECK(host_memory_attach(&m, 4096, "/proc/self/fd/9999", ERR) != HVD_OK);
    CHECK(strstr(ERR->text, "/proc/self/fd/9999") != NULL);
}

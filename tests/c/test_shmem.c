/* Memory that the ranks of one host map. Parts: each rank makes one part and attaches the other
 * parts. Memory that exists once: a page of a view becomes private when a process writes to it. */
#define _DEFAULT_SOURCE /* mincore */
#include "check.h"

#include "shm/shmem.h"
#include "shm/window.h"

#include <sys/mman.h>

enum { N = 3, BYTES = 1 << 20, USED = 1 << 16 };

struct part {
    char *memory; /* address of the first of all parts */
    int fd;
};

static char *part_of(const struct part *p, int i) { return p->memory + (size_t)i * BYTES; }

static bool reserve_all(struct part parts[N]) {
    for (int i = 0; i < N; i++) {
        void *memory;
        if (!OK(shmem_reserve(&memory, BYTES, N, i, &parts[i].fd, ERR))) return false;
        parts[i].memory = memory;
    }
    return true;
}

static void attach_all(const struct part parts[N]) {
    char address[SHMEM_ADDRESS];
    for (int i = 0; i < N; i++) {
        for (int j = 0; j < N; j++) {
            if (i == j) continue;
            shmem_address(parts[j].fd, address);
            OK(shmem_attach(part_of(&parts[i], j), USED, address, ERR));
        }
    }
}

static void release_from(struct part parts[N], int first) {
    for (int i = first; i < N; i++) shmem_release(parts[i].memory, (size_t)N * BYTES, parts[i].fd);
}

/* All ranks see the bytes that a rank writes to any part, before or after attaching, at the same
 * offset. */
TEST(test_each_part_is_seen_at_the_same_offset_by_all) {
    struct part parts[N];
    if (!reserve_all(parts)) return;
    for (int i = 0; i < N; i++) {
        CHECK_INT(part_of(&parts[i], i)[USED], 0);
        part_of(&parts[i], i)[100] = (char)(i + 1);
    }
    attach_all(parts);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < N; j++) CHECK_INT(part_of(&parts[i], j)[100], j + 1);
    part_of(&parts[2], 0)[USED - 1] = 7;
    CHECK_INT(part_of(&parts[0], 0)[USED - 1], 7);
    CHECK_INT(part_of(&parts[1], 0)[USED - 1], 7);
    release_from(parts, 0);
}

/* A rank detaches all parts if it could not attach every part. The addresses must stay reserved. */
TEST(test_a_detached_part_is_not_mapped_but_keeps_its_addresses) {
    struct part parts[N];
    int ends[2];
    OWNED unsigned char *there = room(BYTES / 4096);
    if (!reserve_all(parts)) return;
    REQUIRE(pipe(ends) == 0);
    attach_all(parts);
    char *other = part_of(&parts[0], 1);
    CHECK_INT(write(ends[1], other, 1), 1);
    shmem_detach(other, BYTES);
    CHECK_INT(write(ends[1], other, 1), -1);
    CHECK_INT(mincore(other, BYTES, there), 0); /* fails if other memory could be mapped there */
    part_of(&parts[0], 0)[0] = 1;
    CHECK_INT(part_of(&parts[2], 0)[0], 1);
    for (int i = 0; i < 2; i++) close(ends[i]);
    release_from(parts, 0);
}

/* Ranks that have attached a part keep it after its maker has ended; other processes can't attach
 * it any more. */
TEST(test_a_part_outlives_the_rank_that_made_it) {
    struct part parts[N];
    char address[SHMEM_ADDRESS];
    if (!reserve_all(parts)) return;
    part_of(&parts[0], 0)[5] = 9;
    attach_all(parts);
    shmem_address(parts[0].fd, address);
    shmem_release(parts[0].memory, (size_t)N * BYTES, parts[0].fd);
    CHECK_INT(part_of(&parts[1], 0)[5], 9);
    CHECK_INT(shmem_attach(part_of(&parts[2], 1), USED, address, ERR), HVD_NO_MEMORY);
    CHECK(strstr(ERR->text, address) != NULL);
    release_from(parts, 1);
}

/* In containers with separate process ids, a path may lead to another file. */
TEST(test_an_address_that_leads_to_another_file_is_refused) {
    char address[SHMEM_ADDRESS];
    void *memory;
    int fds[2];
    for (int i = 0; i < 2; i++) OK(shmem_make(BYTES, &fds[i], ERR));
    shmem_address(fds[0], address);
    OK(shmem_map(&memory, BYTES, true, address, ERR));
    shmem_close(memory, BYTES);
    CHECK_INT(dup2(fds[1], fds[0]), fds[0]);
    FAILS(shmem_map(&memory, BYTES, true, address, ERR), HVD_NO_MEMORY);
    FAILS(shmem_map(&memory, BYTES, true, "", ERR), HVD_NO_MEMORY);
    for (int i = 0; i < 2; i++) close(fds[i]);
}

/* If shmem_make fails, it must set fd to -1: another file may get the number of the closed file,
 * and a later close(fd) would close it. */
TEST(test_refused_memory_leaves_no_file) {
    int fd = -2;
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old = limit_to(RLIMIT_FSIZE, BYTES / 2);
    FAILS(shmem_make(BYTES, &fd, ERR), HVD_NO_MEMORY);
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK_INT(fd, -1);
}

/* Reading beyond the other rank's part would crash. */
TEST(test_attaching_more_than_a_part_has_is_refused) {
    struct part parts[N];
    char address[SHMEM_ADDRESS];
    if (!reserve_all(parts)) return;
    shmem_address(parts[1].fd, address);
    CHECK_INT(shmem_attach(part_of(&parts[0], 1), BYTES + 1, address, ERR), HVD_NO_MEMORY);
    /* zero bytes, so the address does not matter */
    OK(shmem_attach(part_of(&parts[0], 1), 0, "nowhere", ERR));
    release_from(parts, 0);
}

/* Large pages, if the kernel has them, change neither bytes that were written before nor others. */
TEST(test_large_pages_keep_the_bytes) {
    enum { LARGE = SHMEM_LARGE_PAGE, GAP = 1 << 16, PART = 5 * LARGE + GAP, HOLE = 2 * LARGE };
    char address[SHMEM_ADDRESS];
    void *memory[2];
    int fd[2];
    for (int i = 0; i < 2; i++)
        if (!OK(shmem_reserve(&memory[i], PART, 2, i, &fd[i], ERR))) return;
    char *own = (char *)memory[1] + PART, *seen = (char *)memory[0] + PART;
    CHECK_INT((int)(shmem_whole_pages(own, 1) % LARGE), LARGE - GAP);
    CHECK_INT((int)shmem_whole_pages(own, LARGE - GAP), LARGE - GAP);
    for (size_t i = 0; i < PART; i += 1000)
        if (i < HOLE || i >= HOLE + LARGE) own[i] = (char)(i / 1000 + 1);
    shmem_collapse(own, PART);
    shmem_address(fd[1], address);
    OK(shmem_attach(seen, PART, address, ERR));
    for (size_t i = 0; i < PART; i += 1000) {
        char expected = i < HOLE || i >= HOLE + LARGE ? (char)(i / 1000 + 1) : 0;
        CHECK_INT(own[i], expected);
        CHECK_INT(seen[i], expected);
    }
    seen[HOLE + LARGE / 2] = 5;
    own[PART - 1] = 6;
    CHECK_INT(own[HOLE + LARGE / 2], 5);
    CHECK_INT(seen[PART - 1], 6);
    for (int i = 0; i < 2; i++) shmem_release(memory[i], 2 * (size_t)PART, fd[i]);
}

static size_t page_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

static long pages_of_address_space(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    long pages = 0;
    if (!file || fscanf(file, "%ld", &pages) != 1) pages = 0;
    if (file) fclose(file);
    return pages;
}

/* The size of a flight recorder is not a multiple of a page. Freeing it must free the whole address
 * space, which is 2 MB for each init(). */
TEST(test_memory_of_an_odd_size_is_freed_whole) {
    enum { ODD = 5000, TIMES = 200 };
    char address[SHMEM_ADDRESS];
    long before = pages_of_address_space();
    int fd;
    if (!OK(shmem_make(ODD, &fd, ERR))) return;
    shmem_address(fd, address);
    for (int i = 0; i < TIMES; i++) {
        void *memory;
        if (OK(shmem_map(&memory, ODD, true, address, ERR))) shmem_close(memory, ODD);
    }
    close(fd);
    if (!CHECK_SLOW) /* sanitizers and emulators also map memory meanwhile */
        CHECK(before && pages_of_address_space() < before + TIMES);
}

/* On a host with several NUMA nodes, a page is on the node of the rank that first uses it. */
TEST(test_each_rank_allocates_only_its_own_part_of_the_window) {
    const size_t bytes = window_bytes(N), part = bytes / N, pages = part / page_bytes();
    char address[SHMEM_ADDRESS];
    OWNED unsigned char *there = room(bytes / page_bytes());
    void *memory;
    int fd;
    if (!OK(shmem_make(bytes, &fd, ERR))) return;
    shmem_address(fd, address);
    if (OK(shmem_map_sparse(&memory, bytes, address, ERR))) {
        window_touch(memory, 1);
        REQUIRE(mincore(memory, bytes, there) == 0);
        for (size_t i = 0; i < N * pages; i++)
            CHECK_CASE((there[i] & 1) == (i / pages == 1), "page %zu", i);
        shmem_close(memory, bytes);
    }
    close(fd);
}

/* ---- memory that exists once per host ---- */

static const size_t PAGES = 1100; /* more than one read of the page map */

/* Opens two mappings of the same memory, as two ranks do. */
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

TWO_TEST(test_all_processes_see_writes_to_the_shared_mapping) {
    struct host_memory *m = two->m;
    CHECK_INT(m[1].view[7], 0);
    m[0].shared[7] = 1;
    m[1].shared[PAGES * page_bytes() - 1] = 2;
    CHECK_INT(m[1].shared[7], 1);
    CHECK_INT(m[1].view[7], 1);
    CHECK_INT(m[0].view[PAGES * page_bytes() - 1], 2);
}

TWO_TEST(test_a_page_is_allocated_by_the_process_that_first_writes_it) {
    unsigned char there[2] = {1, 1};
    CHECK_INT(mincore(two->m[0].shared, 2 * page_bytes(), there), 0);
    CHECK_INT((there[0] | there[1]) & 1, 0);
    two->m[1].shared[page_bytes()] = 0;
    CHECK_INT(mincore(two->m[0].shared, 2 * page_bytes(), there), 0);
    CHECK_INT(there[0] & 1, 0);
    CHECK_INT(there[1] & 1, 1);
}

TWO_TEST(test_writes_to_a_view_are_private) {
    struct host_memory *m = two->m;
    m[0].shared[5] = 1;
    m[0].view[5] = 2;
    CHECK_INT(m[0].view[5], 2);
    CHECK_INT(m[0].shared[5], 1);
    CHECK_INT(m[1].view[5], 1);
}

TWO_TEST(test_settling_a_page_shows_its_written_bytes_to_all_ranks) {
    struct host_memory *m = two->m;
    size_t page = page_bytes(), last = PAGES * page - 1;
    m[0].view[5] = 2;
    m[0].view[last] = 3;
    OK(settle(&m[0], 0, page + 1, ERR));
    CHECK_INT(m[1].view[5], 2);
    CHECK_INT(m[1].view[last], 0); /* settle() has not copied this page to the memory */
    OK(settle(&m[0], page, last + 1 - page, ERR));
    CHECK_INT(m[1].view[last], 3);
}

TWO_TEST(test_a_private_view_without_private_pages_shows_writes_to_the_memory) {
    struct host_memory *m = two->m;
    m[0].view[5] = 2;
    OK(settle(&m[0], 0, page_bytes(), ERR));
    m[1].shared[5] = 4;
    CHECK_INT(m[0].view[5], 4);
}

TEST(test_the_error_about_a_missing_file_of_memory_names_the_file) {
    struct host_memory m;
    CHECK(host_memory_attach(&m, 4096, "/proc/self/fd/9999", ERR) != HVD_OK);
    CHECK(strstr(ERR->text, "/proc/self/fd/9999") != NULL);
}

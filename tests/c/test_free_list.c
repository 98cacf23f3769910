/* Blocks that were given back come again, each to one taker, whatever thread gives and takes. */
#include "check.h"

#include "base/free_list.h"

enum { BYTES = 200, BLOCKS = 64, ROUNDS = 200 * (1 + 9 * !CHECK_SLOW), THREADS = 4 };

/* Takes some, marks them, and finds its marks on all. */
static void *use(void *arg) {
    struct free_list *s = arg;
    unsigned char *blocks[BLOCKS], mark = (unsigned char)(uintptr_t)&blocks;
    for (int round = 0; round < ROUNDS; round++) {
        int n = 1 + round % BLOCKS;
        for (int i = 0; i < n; i++) memset(blocks[i] = free_list_take(s, BYTES), mark + i, BYTES);
        for (int i = 0; i < n; i++) {
            CHECK_INT(blocks[i][0], (unsigned char)(mark + i));
            CHECK_INT(blocks[i][BYTES - 1], (unsigned char)(mark + i));
            free_list_give(s, blocks[i]);
        }
    }
    return NULL;
}

TEST(test_no_two_threads_get_one_block) {
    static struct free_list s;
    free_list_init(&s);
    threads_run(THREADS, use, &s, 0);
}

/* A signal: the C stack goes to the file, and both earlier handlers are called. */
#define CHECK_OWN_MAIN
#define _GNU_SOURCE /* sigaction */
#include "check.h"

#include "base/stacks.h"

static atomic_int users_calls, pythons_calls;

static void users(int number) { users_calls++; }

static void pythons(int number) { pythons_calls++; }

int main(void) {
    int ends[2];
    char text[8192] = "";
    REQUIRE(pipe(ends) == 0);
    signal(SIGURG, users);
    stacks_keep_users(SIGURG);
    signal(SIGURG, pythons);
    stacks_install(SIGURG, ends[1]);
    for (int i = 1; i <= 2; i++) {
        raise(SIGURG);
        CHECK_INT(users_calls, i);
        CHECK_INT(pythons_calls, i);
    }
    CHECK(read(ends[0], text, sizeof text - 1) > 0);
    CHECK_HAS(text, "C stack of the main thread:");
    CHECK_HAS(text, "test_stacks");
    return check_end("test_stacks");
}

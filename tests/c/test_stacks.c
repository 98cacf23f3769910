/* Signals: SIGURG writes the stack of the main thread; hvdlite's own threads handle only signals of
 * faults. */
#define _GNU_SOURCE /* sigaction */
#include "check.h"

#include "base/os.h"
#include "hvd.h"

static atomic_int users_calls, pythons_calls;

static void users(int number) { users_calls++; }

static void pythons(int number) { pythons_calls++; }

static const int FAULTS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
enum { NFAULTS = sizeof FAULTS / sizeof *FAULTS };
static atomic_int fault;

static void crash_handler(int number) { fault = number; }

static void *crash(void *arg) {
    raise(SIGURG);
    for (int i = 0; i < NFAULTS; i++) {
        raise(FAULTS[i]);
        CHECK_INT(fault, FAULTS[i]);
    }
    return NULL;
}

static void check_threads(void) {
    pthread_t thread;
    int before = pythons_calls;
    for (int i = 0; i < NFAULTS; i++) signal(FAULTS[i], crash_handler);
    OK(thread_start(&thread, crash, NULL, "crash", ERR));
    thread_join(thread);
    CHECK_INT(pythons_calls, before);
    for (int i = 0; i < NFAULTS; i++) signal(FAULTS[i], SIG_DFL);
}

TEST(test_a_signal_appends_the_c_stack_and_calls_both_earlier_handlers) {
    int ends[2];
    char text[8192] = "";
    REQUIRE(pipe(ends) == 0);
    signal(SIGURG, users);
    hvd_stacks_keep_users(SIGURG);
    signal(SIGURG, pythons);
    hvd_stacks_install(SIGURG, ends[1]);
    for (int i = 1; i <= 2; i++) {
        raise(SIGURG);
        CHECK_INT(users_calls, i);
        CHECK_INT(pythons_calls, i);
    }
    CHECK(read(ends[0], text, sizeof text - 1) > 0);
    CHECK_HAS(text, "C stack of the main thread:");
    CHECK_HAS(text, "test_stacks");
    check_threads();
}

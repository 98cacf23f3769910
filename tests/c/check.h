/* The harness of the C tests. Include this file first. Any thread may run checks. An alarm ends a
 * program that hangs. */
#ifndef HVDLITE_CHECK_H
#define HVDLITE_CHECK_H

#define _POSIX_C_SOURCE 200809L

#include "base/error.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

/* Sanitizers and emulators make large cases ten times slower, and use address space themselves. So
 * tests under them run fewer large cases, and no case that limits memory. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__) || defined(CHECK_EMULATED)
enum { CHECK_SLOW = 1 };
#else
enum { CHECK_SLOW = 0 };
#endif

/* Only a hang lasts this many seconds, even under a sanitizer on a busy machine. */
enum { CHECK_SECONDS = 600, CHECK_MOST_LINES = 40 };

static atomic_long check_passed, check_failed;
static const char *check_running = "main"; /* only the main thread writes it */

/* Counts a check. Prints each of the first CHECK_MOST_LINES checks that fail. */
__attribute__((format(printf, 4, 5))) static inline bool
check_report(bool good, const char *file, int line, const char *format, ...) {
    if (good) {
        atomic_fetch_add_explicit(&check_passed, 1, memory_order_relaxed);
        return true;
    }
    if (atomic_fetch_add(&check_failed, 1) >= CHECK_MOST_LINES) return false;
    char text[3000];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    printf("%s:%d: %s: %s\n", file, line, check_running, text);
    fflush(stdout);
    return false;
}

static inline bool check_int(const char *file, int line, const char *what, long long got,
                             long long expected) {
    return check_report(got == expected, file, line, "%s: got %lld, expected %lld", what, got,
                        expected);
}

static inline bool check_double(const char *file, int line, const char *what, double got,
                                double expected, double tolerance) {
    return check_report(fabs(got - expected) <= tolerance, file, line,
                        "%s: got %.17g, expected %.17g within %g", what, got, expected, tolerance);
}

static inline bool check_same_text(const char *file, int line, const char *got,
                                   const char *expected) {
    return check_report(strcmp(got, expected) == 0, file, line,
                        "got text\n    \"%s\", expected\n    \"%s\"", got, expected);
}

static inline bool check_part(const char *file, int line, const char *got, const char *part) {
    return check_report(strstr(got, part) != NULL, file, line,
                        "got text\n    \"%s\", expected in it\n    \"%s\"", got, part);
}

static inline bool check_code(const char *file, int line, const char *call, int got, int expected,
                              const char *text) {
    return check_report(got == expected, file, line, "%s: got code %d (\"%s\"), expected %d", call,
                        got, got ? text : "", expected);
}

#define CHECK(condition)                                                                           \
    check_report((condition), __FILE__, __LINE__, "%s: got false, expected true", #condition)
#define CHECK_INT(got, expected)                                                                   \
    check_int(__FILE__, __LINE__, #got, (long long)(got), (long long)(expected))
#define CHECK_NEAR(got, expected, tolerance)                                                       \
    check_double(__FILE__, __LINE__, #got, (got), (expected), (tolerance))
#define CHECK_TEXT(got, expected) check_same_text(__FILE__, __LINE__, (got), (expected))
#define CHECK_HAS(got, part) check_part(__FILE__, __LINE__, (got), (part))

/* Checks the code that a call returns. If the code is wrong, prints the text in `err`, the
 * hvd_error (not a pointer) that the call fills. */
#define CHECK_CODE(call, expected, err)                                                            \
    check_code(__FILE__, __LINE__, #call, (call), (expected), (err).text)

/* OK and FAILS check a call that fills ERR, this thread's error: OK(map_put(&map, &node, ERR)). */
static _Thread_local hvd_error last_error;
static inline hvd_error *error_here(void) { return &last_error; }
#define ERR error_here()
#define OK(call) CHECK_CODE(call, HVD_OK, *ERR)
#define FAILS(call, code) CHECK_CODE(call, code, *ERR)

/* A check that also prints the case if it fails: CHECK_CASE(good, "%d ranks", p). */
#define CHECK_CASE(condition, ...)                                                                 \
    check_report((condition), __FILE__, __LINE__, #condition " is false for " __VA_ARGS__)

/* A check without which the test can't continue: if it fails, the program ends. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!CHECK(condition)) abort();                                                            \
    } while (0)

/* Before the declaration of a variable: `end` is called on the variable when the variable's scope
 * ends: OWN(wire_free) struct wire_writer w = {0}. OWNED frees a pointer in this way. */
#define OWN(end) __attribute__((cleanup(end)))
#define OWNED OWN(free_owned)
static inline void free_owned(void *variable) { free(*(void **)variable); }

/* Allocates exactly `bytes` zeroed bytes, so that the address sanitizer detects an access to one
 * byte more. */
static inline void *room(size_t bytes) {
    void *memory = calloc(bytes ? bytes : 1, 1);
    REQUIRE(memory != NULL);
    return memory;
}

/* Returns the CPU seconds of this thread or process: CLOCK_THREAD_CPUTIME_ID or
 * CLOCK_PROCESS_CPUTIME_ID. */
static inline double cpu_seconds(clockid_t clock) {
    struct timespec t;
    REQUIRE(!clock_gettime(clock, &t));
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Lowers a limit of this process; returns the old limit. RLIM_INFINITY leaves the limit
 * unchanged. */
static inline struct rlimit limit_to(int resource, rlim_t most) {
    struct rlimit old;
    getrlimit(resource, &old);
    struct rlimit lower = {most < old.rlim_cur ? most : old.rlim_cur, old.rlim_max};
    setrlimit(resource, &lower);
    return old;
}

/* Returns "name.3" in a buffer of this thread, valid until this thread's next call. */
static inline const char *numbered(const char *name, int number) {
    static _Thread_local char text[64];
    snprintf(text, sizeof text, "%s.%d", name, number);
    return text;
}

/* Starts n threads. Thread i gets element i of the array `args`, whose elements have `size` bytes.
 * Unless a sanitizer needs more, a thread has a stack of 512 KiB, because users' threads may have
 * small stacks, too. */
static inline void threads_start(pthread_t *threads, int n, void *(*run)(void *), void *args,
                                 size_t size) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    if (!CHECK_SLOW) pthread_attr_setstacksize(&small, 512 << 10);
    for (int i = 0; i < n; i++)
        REQUIRE(!pthread_create(&threads[i], &small, run, (char *)args + (size_t)i * size));
    pthread_attr_destroy(&small);
}

static inline void threads_join(pthread_t *threads, int n) {
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
}

static inline void threads_run(int n, void *(*run)(void *), void *args, size_t size) {
    pthread_t threads[16];
    threads_start(threads, n, run, args, size);
    threads_join(threads, n);
}

static inline void check_hung(int signal_number) {
    const char *name = check_running;
    ssize_t written = write(STDOUT_FILENO, "hung in ", 8);
    written += write(STDOUT_FILENO, name, strlen(name));
    written += write(STDOUT_FILENO, "\n", 1);
    _exit(written > 0 ? 3 : 4);
}

/* Defines a test. main() runs all tests of the file in order. */
#define TEST(name)                                                                                 \
    static void name(void);                                                                        \
    __attribute__((constructor)) static void name##_is_run(void) { check_add(#name, name); }       \
    static void name(void)

/* Defines a test of an object *s. The statement `open` makes the object, `close` frees it. */
#define TEST_ON(name, type, s, open, close)                                                        \
    static void name##_on(type *s);                                                                \
    TEST(name) {                                                                                   \
        type *s = &(type){0};                                                                      \
        open;                                                                                      \
        name##_on(s);                                                                              \
        close;                                                                                     \
    }                                                                                              \
    static void name##_on(type *s)

enum { CHECK_MOST_TESTS = 64 };
static struct {
    const char *name;
    void (*run)(void);
} check_tests[CHECK_MOST_TESTS];
static int check_ntests;

static inline void check_add(const char *name, void (*run)(void)) {
    if (check_ntests == CHECK_MOST_TESTS) abort();
    check_tests[check_ntests].name = name;
    check_tests[check_ntests++].run = run;
}

int main(int argc, char **argv) {
    sigaction(SIGALRM, &(struct sigaction){.sa_handler = check_hung}, NULL);
    for (int i = 0; i < check_ntests; i++) {
        alarm(CHECK_SECONDS); /* the limit applies to each test */
        check_running = check_tests[i].name;
        check_tests[i].run();
    }
    const char *slash = strrchr(argv[0], '/'), *program = slash ? slash + 1 : argv[0];
    long failed = atomic_load(&check_failed), passed = atomic_load(&check_passed);
    if (failed)
        printf("%s: %ld of %ld checks failed\n", program, failed, failed + passed);
    else
        printf("%s: %ld checks passed\n", program, passed);
    return failed ? 1 : 0;
}

#endif

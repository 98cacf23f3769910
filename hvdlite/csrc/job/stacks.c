/* On a signal, the thread that handles it appends its C stack to a file and calls the previous
 * handlers.
 *
 * Only this file handles signals. There are two previous handlers, and neither calls the other: the
 * user's handler, and hvdlite's handler that writes Python stacks, which was installed later. */
#define _GNU_SOURCE /* sigaction, gettid by syscall */
#include "job/stacks.h"

#include "hvd.h"
#include "job/context.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if __has_include(<execinfo.h>)
#include <execinfo.h>
#else /* this C library has no backtrace(): only Python writes stacks */
static int backtrace(void **frames, int most) { return frames && most ? 0 : 0; }
static void backtrace_symbols_fd(void *const *frames, int n, int file) {
    (void)frames, (void)n, (void)file;
}
#endif

enum { MOST_FRAMES = 64 }; /* chosen; the handler keeps the frames on the stack of the thread */

static bool is_handler(const struct sigaction *action) {
    return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN;
}

static void call(const struct sigaction *action, int number, siginfo_t *info, void *context) {
    if (!is_handler(action)) return;
    if (action->sa_flags & SA_SIGINFO)
        action->sa_sigaction(number, info, context);
    else
        action->sa_handler(number);
}

/* Calls only functions that are allowed in a signal handler. */
static void handle(int number, siginfo_t *info, void *context) {
    static const char MAIN[] = "C stack of the main thread:\n", OTHER[] = "C stack of a thread:\n";
    int error = errno;
    void *frames[MOST_FRAMES];
    const struct stacks *s = context_stacks();
    bool is_main = syscall(SYS_gettid) == getpid();
    const char *head = is_main ? MAIN : OTHER;
    if (write(s->file, head, strlen(head)) >= 0)
        backtrace_symbols_fd(frames, backtrace(frames, MOST_FRAMES), s->file);
    call(&s->before, number, info, context);
    call(&s->users, number, info, context);
    errno = error;
}

void hvd_stacks_keep_users(int number) { sigaction(number, NULL, &context_stacks()->users); }

void hvd_stacks_install(int number, int file) {
    void *frames[1];
    struct sigaction action = {.sa_sigaction = handle,
                               .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};
    struct stacks *s = context_stacks();
    s->file = file;
    backtrace(frames, 1); /* the first call loads libgcc, which a signal handler must not do */
    sigemptyset(&action.sa_mask);
    sigaction(number, NULL, &s->before);
    sigaction(number, &action, NULL);
}

#define _POSIX_C_SOURCE 200809L
#include "base/log.h"

#include "base/clock.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

static const char *const NAMES[] = {"trace", "debug", "info", "warning", "error", "fatal", "off"};

enum log_level log_parse(const char *name, enum log_level fallback) {
    for (int i = LOG_TRACE; name && i <= LOG_OFF; i++)
        if (strcasecmp(name, NAMES[i]) == 0) return (enum log_level)i;
    return fallback;
}

void log_line(const struct log *log, enum log_level level, const char *format, ...) {
    if (!log_on(log, level)) return;
    char line[4096];
    int used = log->size > 0
                   ? snprintf(line, sizeof line, "[hvdlite %.6f %s rank %d of %d] ", clock_now(),
                              NAMES[level], log->rank, log->size)
                   : snprintf(line, sizeof line, "[hvdlite %.6f %s] ", clock_now(), NAMES[level]);
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, sizeof line - (size_t)used, format, args);
    va_end(args);
    fprintf(stderr, "%s\n", line);
}

void log_last_words(const char *text) {
    ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written;
}

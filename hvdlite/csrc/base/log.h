/* All output to stderr: levelled lines that carry time and rank.
 *
 * A value that callers receive, not a global. Any thread; each line is one write. */
#ifndef HVDLITE_BASE_LOG_H
#define HVDLITE_BASE_LOG_H

#include <stdbool.h>

enum log_level {
    LOG_TRACE,
    LOG_DEBUG,
    LOG_INFO,
    LOG_WARNING,
    LOG_ERROR,
    LOG_FATAL,
    LOG_OFF,
    LOG_UNKNOWN
};

struct log {
    enum log_level level; /* lines of a lower level are dropped */
    int rank, size;       /* size 0: not known yet, so lines show neither */
};

/* "trace" ... "off" in any case; `fallback` for NULL or anything else. */
enum log_level log_parse(const char *name, enum log_level fallback);

static inline bool log_on(const struct log *log, enum log_level level) {
    return level >= log->level;
}

void log_line(const struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prints without a lock and without a prefix, because other threads of this ending process may
 * hang. */
void log_last_words(const char *text);

#endif

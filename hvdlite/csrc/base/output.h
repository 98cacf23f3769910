/* All output of the core.
 *
 * Log lines go to stderr, with a level, the time and the rank. Callers pass the log as an argument;
 * there is no global log. Any thread may call these functions; each line is one write. */
#ifndef HVDLITE_BASE_OUTPUT_H
#define HVDLITE_BASE_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

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
    enum log_level level; /* lines below this level are not printed */
    int rank, size;       /* size 0: rank and size are unknown, so lines show neither */
};

/* Parses "trace", ..., "off" in upper or lower case; returns LOG_UNKNOWN for other texts. */
enum log_level log_parse(const char *name);

static inline bool log_on(const struct log *log, enum log_level level) {
    return level >= log->level;
}

void log_line(const struct log *log, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Prints without a lock and without a prefix: the process is ending, and a thread that hangs may
 * hold the lock. */
void log_before_exit(const char *text);

/* Opens and empties an output file at a path that the user gave. Refuses files and links of other
 * users, because in a folder such as /tmp another user may have put one at this path.
 * machine/files.py has the same rule in Python. The caller closes the file. On failure returns NULL
 * and sets errno; EACCES: the file or link belongs to another user. */
FILE *file_open_named(const char *path);

#endif

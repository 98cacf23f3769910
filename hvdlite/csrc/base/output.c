#define _GNU_SOURCE /* statx */
#include "base/output.h"

#include "base/os.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const NAMES[] = {"trace", "debug", "info", "warning", "error", "fatal", "off"};

enum log_level log_parse(const char *name) {
    int level = LOG_TRACE;
    while (level <= LOG_OFF && strcasecmp(name, NAMES[level])) level++;
    return (enum log_level)level;
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

void log_before_exit(const char *text) {
    ssize_t written = write(STDERR_FILENO, text, strlen(text));
    (void)written;
}

/* ---- files ---- */

/* statx replaces stat: glibc before 2.33 has no symbol `stat`, and wheels must run with it. */
static int look_at(const char *path, int flags, struct statx *found) {
    return statx(AT_FDCWD, path, flags, STATX_MODE | STATX_UID | STATX_NLINK, found);
}

static int folder_of(const char *path, struct statx *found) {
    char folder[PATH_MAX] = ".";
    const char *end = strrchr(path, '/');
    size_t length = end == path ? 1 : (size_t)(end - path);
    if (end && length >= sizeof folder) {
        errno = ENAMETOOLONG;
        return -1;
    }
    if (end) {
        memcpy(folder, path, length);
        folder[length] = 0;
    }
    return look_at(folder, 0, found);
}

/* Returns the flags to open the path with, or -1 and errno if the path must not be opened. */
static int flags_for(const char *path) {
    struct statx folder, found;
    if (folder_of(path, &folder)) return -1;
    if (look_at(path, AT_SYMLINK_NOFOLLOW, &found))
        /* O_EXCL: open() fails if another user makes a link at this path before the open() */
        return errno == ENOENT ? O_EXCL : -1;
    if (!(folder.stx_mode & S_IWOTH)) return 0;
    /* another user may have made a second hard link */
    bool linked = S_ISREG(found.stx_mode) && found.stx_nlink > 1;
    if (!linked && (found.stx_uid == geteuid() || found.stx_uid == folder.stx_uid)) return 0;
    errno = EACCES;
    return -1;
}

FILE *file_open_named(const char *path) {
    int fd, flags;
    do {
        if ((flags = flags_for(path)) < 0) return NULL;
        fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0666);
        /* EEXIST: another process has just made the file, so check its owner */
    } while (fd < 0 && errno == EEXIST && flags);
    return fd < 0 ? NULL : fdopen(fd, "w");
}

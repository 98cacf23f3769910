#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Removes UTF-8 characters that the end of the buffer or a format such as "%.60s" has cut in two.
 * If the text had half a character, MXNet would raise a UnicodeDecodeError instead of the error. */
static void drop_halves(char *text) {
    char *out = text;
    for (const char *at = text; *at;) {
        unsigned char first = (unsigned char)*at;
        int length = first < 0xC0 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4, have = 1;
        while (have < length && (at[have] & 0xC0) == 0x80) have++;
        if (have == length && (first & 0xC0) != 0x80)
            for (int i = 0; i < length; i++) *out++ = at[i];
        at += have;
    }
    *out = 0;
}

int error_set(hvd_error *err, hvd_code code, const char *format, ...) {
    if (!err) return code;
    memset(err, 0, offsetof(hvd_error, text));
    err->code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    drop_halves(err->text);
    return code;
}

int error_blame(hvd_error *err, int rank) {
    if (err->nblamed < HVD_MAX_BLAMED) err->blamed[err->nblamed] = rank;
    err->nblamed++;
    return err->code;
}

int error_of(hvd_error *err, const char *tensor) {
    snprintf(err->tensor, sizeof err->tensor, "%s", tensor);
    drop_halves(err->tensor);
    return err->code;
}

void error_also(hvd_error *all, const hvd_error *more) {
    size_t used = strlen(all->text);
    if (!all->code) {
        *all = *more;
        return;
    }
    snprintf(all->text + used, sizeof all->text - used, "; %s", more->text);
    drop_halves(all->text);
}

int error_while(hvd_error *err, const char *format, ...) {
    static const char LINK[] = ", while ";
    size_t used = strlen(err->text);
    if (used + sizeof LINK >= sizeof err->text) return err->code;
    memcpy(err->text + used, LINK, sizeof LINK);
    used += sizeof LINK - 1;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text + used, sizeof err->text - used, format, args);
    va_end(args);
    drop_halves(err->text);
    return err->code;
}

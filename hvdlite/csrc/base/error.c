#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int error_set(hvd_error *err, hvd_code code, const char *format, ...) {
    if (!err) return code;
    err->code = code;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    return code;
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
    return err->code;
}

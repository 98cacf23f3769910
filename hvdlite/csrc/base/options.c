#include "base/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const PREFIXES[] = {"HVDLITE_", "HOROVOD_"};

static const char *find(const char *name, const char **prefix) {
    for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++) {
        char full[128];
        snprintf(full, sizeof full, "%s%s", PREFIXES[i], name);
        const char *text = getenv(full);
        *prefix = PREFIXES[i];
        if (text && *text) return text;
    }
    return NULL;
}

const char *env_text(const char *name) {
    const char *prefix;
    return find(name, &prefix);
}

int env_invalid(const char *name, const char *expected, hvd_error *err) {
    const char *prefix, *text = find(name, &prefix);
    return error_set(err, HVD_INVALID, "%s%s is '%s': expected %s", prefix, name, text ? text : "",
                     expected);
}

const struct options OPTIONS_DEFAULT = {
#define DEFAULT(type, field, name, value, ...) .field = value,
    OPTIONS(DEFAULT)
#undef DEFAULT
};

/* ---- parse a text; after an error *value is unchanged ---- */

struct row {
    const char *name;
    int (*read)(const struct row *row, const char *text, void *value, hvd_error *err);
    size_t offset, least, most;
};

static int read_bool(const struct row *row, const char *text, void *value, hvd_error *err) {
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return env_invalid(row->name, "0 or 1", err);
    *(bool *)value = *text == '1';
    return HVD_OK;
}

static int read_double(const struct row *row, const char *text, void *value, hvd_error *err) {
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !(number >= 0) || isinf(number))
        return env_invalid(row->name, "a number of at least 0", err);
    *(double *)value = number;
    return HVD_OK;
}

static int read_size(const struct row *row, const char *text, void *value, hvd_error *err) {
    char *end, expected[80];
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno)
        return env_invalid(row->name, "a whole number of at least 0", err);
    snprintf(expected, sizeof expected, "a number from %zu to %zu", row->least, row->most);
    if (number < row->least || number > row->most) return env_invalid(row->name, expected, err);
    *(size_t *)value = (size_t)number;
    return HVD_OK;
}

static const struct row ROWS[] = {
#define READER(type) _Generic((type){0}, bool: read_bool, size_t: read_size, double: read_double)
#define AS_ROW(type, field, name, value, least, most)                                              \
    {#name, READER(type), offsetof(struct options, field), least, most},
    OPTIONS(AS_ROW)
#undef AS_ROW
};

int options_read(struct options *options, hvd_error *err) {
    int code = HVD_OK;
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const char *text = env_text(ROWS[i].name);
        void *value = (char *)options + ROWS[i].offset;
        int read = text ? ROWS[i].read(&ROWS[i], text, value, code ? NULL : err) : HVD_OK;
        if (!code) code = read;
    }
    return code;
}

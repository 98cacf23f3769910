#include "base/env.h"

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

int env_flag(const char *name, bool *value, hvd_error *err) {
    const char *text = env_text(name);
    if (!text) return HVD_OK;
    if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0) return env_invalid(name, "0 or 1", err);
    *value = *text == '1';
    return HVD_OK;
}

int env_seconds(const char *name, double *value, hvd_error *err) {
    const char *text = env_text(name);
    if (!text) return HVD_OK;
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !(number >= 0) || isinf(number))
        return env_invalid(name, "a number of at least 0", err);
    *value = number;
    return HVD_OK;
}

int env_size(const char *name, size_t *value, hvd_error *err) {
    const char *text = env_text(name);
    if (!text) return HVD_OK;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno)
        return env_invalid(name, "a whole number of at least 0", err);
    *value = (size_t)number;
    return HVD_OK;
}

#include "base/env.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

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

int env_seconds(const char *name, double *value, hvd_error *err) {
    const char *prefix, *text = find(name, &prefix);
    if (!text) return HVD_OK;
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !(number >= 0) || isinf(number))
        return error_set(err, HVD_INVALID, "%s%s is '%s': expected a number of at least 0", prefix,
                         name, text);
    *value = number;
    return HVD_OK;
}

int env_size(const char *name, size_t *value, hvd_error *err) {
    const char *prefix, *text = find(name, &prefix);
    if (!text) return HVD_OK;
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno)
        return error_set(err, HVD_INVALID, "%s%s is '%s': expected a whole number of at least 0",
                         prefix, name, text);
    *value = (size_t)number;
    return HVD_OK;
}

#include "base/options.h"

#include "base/env.h"

#include <stdio.h>

const struct options OPTIONS_DEFAULT = {
#define DEFAULT(type, field, name, value, ...) .field = value,
    OPTIONS(DEFAULT)
#undef DEFAULT
};

static int read_bool(const char *name, void *value, size_t least, size_t most, hvd_error *err) {
    (void)least, (void)most;
    return env_flag(name, value, err);
}

static int read_double(const char *name, void *value, size_t least, size_t most, hvd_error *err) {
    (void)least, (void)most;
    return env_seconds(name, value, err);
}

static int read_size(const char *name, void *value, size_t least, size_t most, hvd_error *err) {
    char expected[80];
    size_t read = least;
    HVD_TRY(env_size(name, &read, err));
    if (read >= least && read <= most) {
        if (env_text(name)) *(size_t *)value = read;
        return HVD_OK;
    }
    snprintf(expected, sizeof expected, "a number from %zu to %zu", least, most);
    return env_invalid(name, expected, err);
}

static const struct {
    const char *name;
    int (*read)(const char *name, void *value, size_t least, size_t most, hvd_error *err);
    size_t offset, least, most;
} ROWS[] = {
#define READER(type) _Generic((type){0}, bool: read_bool, size_t: read_size, double: read_double)
#define AS_ROW(type, field, name, value, least, most)                                              \
    {#name, READER(type), offsetof(struct options, field), least, most},
    OPTIONS(AS_ROW)
#undef AS_ROW
};

int options_read(struct options *options, hvd_error *err) {
    int code = HVD_OK;
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        void *value = (char *)options + ROWS[i].offset;
        hvd_error *first = code ? NULL : err;
        int read = ROWS[i].read(ROWS[i].name, value, ROWS[i].least, ROWS[i].most, first);
        if (!code) code = read;
    }
    return code;
}

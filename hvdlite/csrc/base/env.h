/* The one door to the environment: HVDLITE_NAME, else HOROVOD_NAME for scripts written for Horovod.
 *
 * Read at init only: getenv is not safe while another thread calls setenv. */
#ifndef HVDLITE_BASE_ENV_H
#define HVDLITE_BASE_ENV_H

#include "base/error.h"

/* The text, or NULL. `name` without prefix, e.g. "LOG_LEVEL". */
const char *env_text(const char *name);

/* HVD_INVALID, "HVDLITE_NAME is 'x': expected ...", with the prefix that is set. */
int env_invalid(const char *name, const char *expected, hvd_error *err);

/* 0 or 1; *value is unchanged where the variable is not set. */
int env_flag(const char *name, bool *value, hvd_error *err);

/* A number of at least 0; *value is unchanged where the variable is not set. */
int env_size(const char *name, size_t *value, hvd_error *err);
int env_seconds(const char *name, double *value, hvd_error *err);

#endif

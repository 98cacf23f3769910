/* The options of a job, a table with one row for each option.
 *
 * To add an option, add a row here and a row in docs/environment.md. Only options.c reads the
 * environment: HVDLITE_NAME or, if that is not set, HOROVOD_NAME, for scripts written for Horovod.
 * hvd_init reads the variables once, because getenv is unsafe while another thread calls setenv. */
#ifndef HVDLITE_BASE_OPTIONS_H
#define HVDLITE_BASE_OPTIONS_H

#include "base/error.h"

enum {
    PACE_SEGMENT = 60 * 1024, /* default bytes of a segment (transport/pace.h) */
    /* maximum segments in flight, and the length of arrays in collectives/pipeline.c. Chosen: above
     * 32, the largest number that was measured (transport/pace.h) */
    PACE_MOST_DEPTH = 64,
    HELPERS_MOST = 16 /* maximum threads of a rank, including the engine's (shm/helpers.h) */
};

/* Columns: type, field, variable (HVDLITE_...), default, minimum and maximum of a size. A default
 * outside these bounds means "not set": hvdlite then chooses a value from measurements. */
#define OPTIONS(ROW)                                                                               \
    ROW(size_t, fusion_bytes, FUSION_THRESHOLD, 64 << 20, 0, SIZE_MAX)                             \
    ROW(size_t, bytes_ahead, BYTES_AHEAD, SIZE_MAX, 0, SIZE_MAX)                                   \
    ROW(bool, deterministic, DETERMINISTIC, false, 0, 1)                                           \
    ROW(size_t, cache_capacity, CACHE_CAPACITY, 4096, 0, SIZE_MAX)                                 \
    ROW(double, stall_warning, STALL_CHECK_TIME_SECONDS, 60, 0, 0)                                 \
    ROW(double, stall_failure, STALL_SHUTDOWN_TIME_SECONDS, 0, 0, 0)                               \
    ROW(double, data_timeout, DATA_TIMEOUT_SECONDS, 300, 0, 0)                                     \
    ROW(bool, window, WINDOW, true, 0, 1)                                                          \
    ROW(bool, nudge, NUDGE, true, 0, 1)                                                            \
    ROW(size_t, segment, SEGMENT_BYTES, PACE_SEGMENT, 1024, 1 << 30)                               \
    ROW(size_t, segments_in_flight, SEGMENTS_IN_FLIGHT, 0, 1, PACE_MOST_DEPTH)                     \
    ROW(size_t, spin, SPIN_MICROSECONDS, 30, 0, SIZE_MAX)                                          \
    ROW(size_t, yield, YIELD_MICROSECONDS, 300, 0, SIZE_MAX)                                       \
    ROW(size_t, threads, THREADS, 0, 1, HELPERS_MOST)                                              \
    ROW(size_t, threads_bytes, THREADS_BYTES, 0, 1, SIZE_MAX)                                      \
    ROW(size_t, team, TEAM_RANKS, 0, 1, 1024)                                                      \
    ROW(bool, flight_recorder, FLIGHT_RECORDER, true, 0, 1)                                        \
    ROW(bool, mark_cycles, TIMELINE_MARK_CYCLES, false, 0, 1)

struct options {
#define FIELD(type, field, ...) type field;
    OPTIONS(FIELD)
#undef FIELD
};

extern const struct options OPTIONS_DEFAULT;

/* Reads each variable that is set into its field. An invalid value leaves its field unchanged; the
 * error names the first invalid value. */
int options_read(struct options *options, hvd_error *err);

/* Returns the variable's text, or NULL. `name` has no prefix: "LOG_LEVEL". */
const char *env_text(const char *name);
/* Returns HVD_INVALID with the text "HVDLITE_NAME is 'x': expected ...". If only HOROVOD_NAME is
 * set, the text names HOROVOD_NAME. */
int env_invalid(const char *name, const char *expected, hvd_error *err);

#endif

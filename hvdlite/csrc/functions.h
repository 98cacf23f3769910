/* The functions of the loaded C core, by name, with the prototypes of hvd.h.
 *
 * Libraries that are compiled for a framework do not link to the core, because Python has already
 * loaded a copy. Python passes the addresses of that copy's functions by name. To call one more
 * function of the core, add a row. */
#ifndef HVDLITE_FUNCTIONS_H
#define HVDLITE_FUNCTIONS_H

#include "hvd.h"

#define CORE(ROW)                                                                                  \
    ROW(hvd_plan)                                                                                  \
    ROW(hvd_plan_fits)                                                                             \
    ROW(hvd_run)                                                                                   \
    ROW(hvd_start)                                                                                 \
    ROW(hvd_keep_failure)                                                                          \
    ROW(hvd_watch) ROW(hvd_finish) ROW(hvd_result) ROW(hvd_source) ROW(hvd_give_up) ROW(hvd_drop)

/* C++ needs the type before the member */
#define CORE_TYPE(name) typedef __typeof__(&name) name##_type;
CORE(CORE_TYPE)
#define CORE_MEMBER(name) name##_type name;
struct core {
    CORE(CORE_MEMBER)
};

/* Looks up the address of each function by its name. */
/* cdef begin */
typedef void (*core_function)(void);
typedef core_function core_finder(const char *name);
/* cdef end */
static inline struct core core_found(core_finder *find) {
#define CORE_FOUND(name) .name = (name##_type)find(#name),
    struct core found = {CORE(CORE_FOUND)};
    return found;
}

#endif

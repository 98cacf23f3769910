/* The functions of the loaded C core, by their names, with the prototypes of hvd.h.
 *
 * The libraries for JAX do not link to the core: Python hands over the addresses in the copy that
 * it has loaded, before any other call. */
#ifndef HVDLITE_JAX_CORE_H
#define HVDLITE_JAX_CORE_H

#include "hvd.h"

#include <string.h>

#define CORE(ROW)                                                                                  \
    ROW(hvd_plan)                                                                                  \
    ROW(hvd_run) ROW(hvd_validate) ROW(hvd_start) ROW(hvd_watch) ROW(hvd_finish) ROW(hvd_drop)

#define CORE_MEMBER(name) __typeof__(&name) name;
struct core {
    CORE(CORE_MEMBER)
};
#undef CORE_MEMBER

/* Takes the function of that name. 0: none is called so. */
static inline int core_take(struct core *core, const char *name, void *function) {
#define CORE_TAKE(member)                                                                          \
    if (!strcmp(name, #member)) return memcpy(&core->member, &function, sizeof function), 1;
    CORE(CORE_TAKE)
#undef CORE_TAKE
    return 0;
}

#endif

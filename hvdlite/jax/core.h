/* The functions of the loaded C core, by their names, with the prototypes of hvd.h.
 *
 * The libraries for JAX do not link to the core: Python knows the addresses in the copy that it has
 * loaded. */
#ifndef HVDLITE_JAX_CORE_H
#define HVDLITE_JAX_CORE_H

#include "functions.h"

#define API __attribute__((visibility("default")))

/* Looks up the address of each function by its name. */
typedef void (*core_function)(void);
static inline struct core core_found(core_function (*find)(const char *name)) {
#define CORE_FIND(name) .name = (name##_type)find(#name),
    return (struct core){CORE(CORE_FIND)};
}

/* A tensor of one dimension. */
static inline hvd_tensor core_tensor(int kind, int dtype, const int64_t *count, const void *in,
                                     void *out, int64_t out_count) {
    return (hvd_tensor){.kind = kind,
                        .dtype = dtype,
                        .prescale = 1,
                        .postscale = 1,
                        .ndim = 1,
                        .dims = count,
                        .in = in,
                        .out = out,
                        .out_rows = out_count};
}

#endif

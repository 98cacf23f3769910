/* Scratch memory that grows and is reused, so only the first collective pays for page faults.
 *
 * Used by one thread. Each caller may overwrite the contents. */
#ifndef HVDLITE_BASE_SCRATCH_H
#define HVDLITE_BASE_SCRATCH_H

#include "base/error.h"

struct scratch {
    void *data;
    size_t size;
};

/* Sets *out to at least `bytes` bytes, 64-byte aligned, with undefined contents. A zeroed struct is
 * an empty scratch. */
int scratch_get(struct scratch *s, size_t bytes, void **out, hvd_error *err);
void scratch_free(struct scratch *s);

#endif

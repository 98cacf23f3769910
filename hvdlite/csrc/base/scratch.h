/* Scratch memory that grows and is kept, so only the first collective pays for page faults.
 *
 * One thread uses it; each caller takes all of it. */
#ifndef HVDLITE_BASE_SCRATCH_H
#define HVDLITE_BASE_SCRATCH_H

#include "base/error.h"

struct scratch {
    void *data;
    size_t size;
};

/* At least `bytes`, 64-byte aligned, contents undefined; a zeroed struct is empty. */
int scratch_get(struct scratch *s, size_t bytes, void **out, hvd_error *err);
void scratch_free(struct scratch *s);

#endif

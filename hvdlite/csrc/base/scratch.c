#define _POSIX_C_SOURCE 200809L
#include "base/scratch.h"

#include <stdlib.h>

int scratch_get(struct scratch *s, size_t bytes, void **out, hvd_error *err) {
    if (bytes > s->size) {
        void *data;
        if (posix_memalign(&data, 64, bytes))
            return error_set(err, HVD_NO_MEMORY, "no memory for a buffer of %zu bytes", bytes);
        free(s->data);
        s->data = data;
        s->size = bytes;
    }
    *out = s->data;
    return HVD_OK;
}

void scratch_free(struct scratch *s) {
    free(s->data);
    *s = (struct scratch){0};
}

#include "shm/bounce.h"

#include <unistd.h>

enum { BYTES = BOUNCE_SLOTS * BOUNCE_SLOT };

bool bounce_map(struct bounce *l, const char *address) {
    hvd_error ignored;
    void *memory = NULL;
    if (!l->memory && !l->failed) {
        l->failed = shmem_map(&memory, BYTES, true, address, &ignored) != HVD_OK;
        l->memory = memory;
    }
    return l->memory;
}

void bounce_make(struct bounce *l, char address[SHMEM_ADDRESS]) {
    hvd_error ignored;
    *address = 0;
    if (!l->memory && !l->failed) l->failed = shmem_make(BYTES, &l->file, &ignored) != HVD_OK;
    if (l->failed) return;
    shmem_address(l->file, address);
    if (!bounce_map(l, address)) *address = 0;
}

void bounce_close(struct bounce *l) {
    shmem_close(l->memory, BYTES);
    if (l->file > 0) close(l->file);
    *l = (struct bounce){0};
}

int bounce_take(struct bounce *l) {
    for (int slot = 0; slot < BOUNCE_SLOTS; slot++) {
        if (l->busy >> slot & 1) continue;
        l->busy |= 1u << slot;
        return slot;
    }
    return -1;
}

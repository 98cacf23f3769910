#include "engine/p2p_lane.h"

#include <unistd.h>

enum { BYTES = LANE_SLOTS * LANE_SLOT };

bool lane_make(struct lane *l, char address[SHMEM_ADDRESS]) {
    hvd_error ignored;
    if (!l->memory && !l->failed) {
        l->failed = shmem_make(BYTES, &l->file, &ignored) != HVD_OK;
        if (l->failed) return false;
        shmem_address(l->file, address);
        void *memory = NULL;
        l->failed = shmem_map(&memory, BYTES, true, address, &ignored) != HVD_OK;
        l->memory = memory;
    }
    if (l->memory) shmem_address(l->file, address);
    return l->memory;
}

bool lane_map(struct lane *l, const char *address) {
    hvd_error ignored;
    void *memory = NULL;
    if (!l->memory && !l->failed) {
        l->failed = shmem_map(&memory, BYTES, true, address, &ignored) != HVD_OK;
        l->memory = memory;
    }
    return l->memory;
}

void lane_close(struct lane *l) {
    shmem_close(l->memory, BYTES);
    if (l->file > 0) close(l->file);
    *l = (struct lane){0};
}

int lane_take(struct lane *l) {
    for (int slot = 0; slot < LANE_SLOTS; slot++) {
        if (l->busy >> slot & 1) continue;
        l->busy |= 1u << slot;
        return slot;
    }
    return -1;
}

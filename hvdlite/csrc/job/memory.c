#include "hvd.h"

#include "job/context.h"
#include "shm/host_memory.h"

#include <stdlib.h>

struct hvd_memory {
    struct host_memory memory; /* first: hvd_memory is a host_memory to the bindings */
};

_Static_assert(HVD_REGION_ADDRESS == SHMEM_ADDRESS, "one length of addresses");

static int check_shared(hvd_error *err) {
    HVD_TRY(context_enter(err));
    const struct transport *t = context_world()->transport;
    bool shared = t->at.local_size == 1 || t->layout.host.window;
    context_leave();
    return shared ? HVD_OK
                  : error_set(err, HVD_UNSUPPORTED, "the ranks of this host do not share memory");
}

/* address NULL: makes it. */
static int open_memory(struct host_memory *m, size_t bytes, const char *address, hvd_error *err) {
    HVD_TRY(check_shared(err));
    return address ? host_memory_attach(m, bytes, address, err) : host_memory_make(m, bytes, err);
}

static hvd_memory *new_memory(size_t bytes, const char *address, hvd_error *err) {
    hvd_memory *memory = malloc(sizeof *memory);
    if (!memory) {
        error_set(err, HVD_NO_MEMORY, "no memory for memory to share");
        return NULL;
    }
    if (!open_memory(&memory->memory, bytes, address, err)) return memory;
    free(memory);
    return NULL;
}

hvd_memory *hvd_memory_make(size_t bytes, hvd_error *err) { return new_memory(bytes, NULL, err); }

hvd_memory *hvd_memory_attach(size_t bytes, const char *address, hvd_error *err) {
    return new_memory(bytes, address, err);
}

void hvd_memory_address(hvd_memory *memory, char address[HVD_REGION_ADDRESS]) {
    host_memory_address(&memory->memory, address);
}

void *hvd_memory_shared(hvd_memory *memory) { return memory->memory.shared; }

void *hvd_memory_view(hvd_memory *memory) { return memory->memory.view; }

void hvd_memory_close(hvd_memory *memory) {
    host_memory_free(&memory->memory);
    free(memory);
}

int hvd_host(int *leader, int *number, int *hosts, hvd_error *err) {
    HVD_TRY(context_enter(err));
    const struct layout *l = &context_world()->transport->layout;
    *leader = l->host.ranks ? l->host.ranks[0] : 0;
    *number = l->host_of ? l->host_of[*leader] : 0;
    *hosts = l->hosts ? l->hosts : 1;
    context_leave();
    return HVD_OK;
}

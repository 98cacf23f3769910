/* The functions of hvd.h for memory that the ranks of one host share. */
#include "hvd.h"

#include "job/context.h"
#include "shm/shmem.h"

#include <stdlib.h>

static int check_shared(hvd_error *err) {
    HVD_TRY(context_enter(err));
    const struct transport *t = context_world()->transport;
    bool shared = t->at.local_size == 1 || t->layout.host.window;
    context_leave();
    return shared ? HVD_OK
                  : error_set(err, HVD_UNSUPPORTED, "the ranks of this host do not share memory");
}

hvd_memory *hvd_memory_open(size_t bytes, const char *address, hvd_error *err) {
    if (check_shared(err)) return NULL;
    hvd_memory *m = malloc(sizeof *m);
    int code = !m        ? error_set(err, HVD_NO_MEMORY, "no memory to describe shared memory")
               : address ? host_memory_attach(m, bytes, address, err)
                         : host_memory_make(m, bytes, err);
    if (!code) return m;
    free(m);
    return NULL;
}

void hvd_memory_address(hvd_memory *memory, char address[HVD_REGION_ADDRESS]) {
    host_memory_address(memory, address);
}

void hvd_memory_collapse(hvd_memory *memory) { shmem_collapse(memory->shared, memory->bytes); }

void *hvd_memory_shared(hvd_memory *memory) { return memory->shared; }

void *hvd_memory_view(hvd_memory *memory) { return memory->view; }

void hvd_memory_close(hvd_memory *memory) {
    host_memory_free(memory);
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

/* ---- regions ---- */

struct hvd_region {
    struct region region; /* must be first: the engine uses an hvd_region as a struct region */
    int fd;               /* file of this rank's part, which other ranks open through /proc */
};

/* Stores this rank's topology in *at. Fails if the ranks of a host do not share memory, because
 * then there are no regions. */
static int find_place_on_host(hvd_topology *at, hvd_error *err) {
    HVD_TRY(hvd_where(at, err));
    HVD_TRY(context_enter(err));
    const struct transport *t = context_world()->transport;
    bool shared = t->all.window || (t->layout.windows && t->all.size > t->layout.hosts);
    context_leave();
    return shared ? HVD_OK
                  : error_set(err, HVD_UNSUPPORTED, "the ranks of this job do not share memory");
}

hvd_region *hvd_region_create(size_t bytes, hvd_error *err) {
    hvd_topology at;
    if (find_place_on_host(&at, err)) return NULL;
    hvd_region *r = calloc(1, sizeof *r);
    if (!r) {
        error_set(err, HVD_NO_MEMORY,
                  "no memory to share tensors with the other ranks of this host");
        return NULL;
    }
    void *memory;
    size_t stride = bytes + REGION_GAP;
    r->region = (struct region){.stride = stride, .n = at.local_size, .self = at.local_rank};
    if (shmem_reserve(&memory, stride, at.local_size, at.local_rank, &r->fd, err)) {
        free(r);
        return NULL;
    }
    r->region.memory = memory;
    return r;
}

void *hvd_region_memory(hvd_region *r) { return region_part(&r->region, r->region.self); }

/* Returns the used bytes of a rank's part, rounded up to whole large pages, because the kernel maps
 * a large page as a whole. */
static size_t bytes_used(const hvd_region *r, int local_rank, uint64_t used) {
    size_t whole = shmem_whole_pages(region_part(&r->region, local_rank), (size_t)used);
    return whole < r->region.stride ? whole : r->region.stride;
}

void hvd_region_address(hvd_region *r, uint64_t used, char address[HVD_REGION_ADDRESS]) {
    shmem_collapse(hvd_region_memory(r), bytes_used(r, r->region.self, used));
    shmem_address(r->fd, address);
}

int hvd_region_join(hvd_region *r, int id, const char *const *addresses, const uint64_t *used,
                    hvd_error *err) {
    int code = HVD_OK;
    for (int i = 0; i < r->region.n && !code; i++)
        if (i != r->region.self)
            code = shmem_attach(region_part(&r->region, i), bytes_used(r, i, used[i]), addresses[i],
                                err);
    if (!code) code = context_enter(err);
    for (int i = 0; i < r->region.n && code; i++)
        if (i != r->region.self) shmem_detach(region_part(&r->region, i), r->region.stride);
    if (code) return code;
    r->region.id = id;
    engine_add_region(context_world()->engine, &r->region);
    context_leave();
    return HVD_OK;
}

void hvd_region_close(hvd_region *r) {
    if (!context_enter(NULL)) {
        engine_remove_region(context_world()->engine, &r->region);
        context_leave();
    }
    shmem_release(r->region.memory, r->region.stride * (size_t)r->region.n, r->fd);
    free(r);
}

/* Host memory: memory that exists once on a host; one process makes it, others map it.
 *
 * Each process has two mappings. Writes through `shared` reach all processes. `view` shows the same
 * bytes, but a page that this process writes becomes private: a library that rewrites its inputs in
 * place, such as MXNet with oneDNN's layouts, can't change what others read. Settling gives up
 * private pages. A page takes no memory until it is written. */
#ifndef HVDLITE_SHM_HOST_MEMORY_H
#define HVDLITE_SHM_HOST_MEMORY_H

#include "shm/shmem.h"

struct host_memory {
    char *shared, *view;
    size_t bytes;
    int fd;      /* of the process that made it, else -1 */
    int pagemap; /* /proc/self/pagemap: which pages of the view are private */
};

int host_memory_make(struct host_memory *m, size_t bytes, hvd_error *err);
/* `address`: from host_memory_address, while the process that made the memory runs. */
int host_memory_attach(struct host_memory *m, size_t bytes, const char *address, hvd_error *err);
/* Moves the memory to large pages where the kernel can. */
void host_memory_address(const struct host_memory *m, char address[SHMEM_ADDRESS]);
void host_memory_free(struct host_memory *m);

/* A range of a view. No other variable may lie in its pages. */
struct host_range {
    const struct host_memory *memory;
    char *at;
    size_t bytes;
};

/* Copies this process's writes in the range to the shared memory and gives up the private pages.
 * Nobody may use the range meanwhile, except to settle it with the same bytes. */
int host_memory_settle(const struct host_range *range, hvd_error *err);

#endif

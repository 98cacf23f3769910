/* Host memory: exists once on a host, made by one of its processes and mapped by others.
 *
 * Each process has two mappings of it. Through `shared` all see each other's writes. `view` shows
 * the same bytes, but a page that this process writes to becomes its own: a library that rewrites
 * its inputs in place, such as MXNet with oneDNN's layouts, can't spoil what others read. Settling
 * gives such pages up. Pages of the memory cost nothing until they are written to. */
#ifndef HVDLITE_SHM_HOST_MEMORY_H
#define HVDLITE_SHM_HOST_MEMORY_H

#include "shm/shmem.h"

struct host_memory {
    char *shared, *view;
    size_t bytes;
    int fd;      /* of the process that made it, else -1 */
    int pagemap; /* tells which pages of the view are this process's own */
};

int host_memory_make(struct host_memory *m, size_t bytes, hvd_error *err);
/* By the address that host_memory_address gave; not after its maker has ended. */
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

/* Copies what this process has written to the range to the shared memory, and gives up its own
 * pages of it. Nobody may use the range meanwhile, but others may settle it with the same bytes. */
int host_memory_settle(const struct host_range *range, hvd_error *err);

#endif

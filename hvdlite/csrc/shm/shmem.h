/* Shared memory: made by one process of a host, mapped by others, freed when the last one ends.
 *
 * Only shmem.c calls mmap. The memory has no name: nothing is left behind, even after kill -9, and
 * the size of /dev/shm does not matter. While the process that made it runs, another process of the
 * same user and host opens it by its address; mappings outlive that process. */
#ifndef HVDLITE_SHM_SHMEM_H
#define HVDLITE_SHM_SHMEM_H

#include "base/error.h"

/* bytes of an address; of a large page on x86-64 and most arm64 */
enum { SHMEM_ADDRESS = 64, SHMEM_LARGE_PAGE = 2 << 20 };

/* Reserves addresses for `n` parts of `bytes`. Part `self` is zeroed memory of this process; the
 * other parts must be attached. A page takes memory once it is written. */
int shmem_reserve(void **memory, size_t bytes, int n, int self, int *fd, hvd_error *err);
/* The address by which another process attaches the memory while this process runs. */
void shmem_address(int fd, char address[SHMEM_ADDRESS]);
/* Moves the first `bytes` of a part to large pages if the kernel can. To be called before others
 * attach the part. A sum of 2 x 100 MB took 8 % less time (2 cores of a Xeon). */
void shmem_collapse(void *part, size_t bytes);
/* `bytes` of a part, rounded up to the end of their last large page. */
size_t shmem_whole_pages(const void *part, size_t bytes);
/* Maps the first `bytes` of another process's part at `part`. */
int shmem_attach(void *part, size_t bytes, const char *address, hvd_error *err);
/* Makes zeroed memory without a name, not yet mapped into this process. */
int shmem_make(size_t bytes, int *fd, hvd_error *err);
/* Maps the first `bytes` of such memory at any address. Unless `shared`, this process's writes
 * stay private. */
int shmem_map(void **memory, size_t bytes, bool shared, const char *address, hvd_error *err);
/* The same, shared, but the first process to touch a page allocates it, on its own NUMA node. */
int shmem_map_sparse(void **memory, size_t bytes, const char *address, hvd_error *err);
void shmem_close(void *memory, size_t bytes);
void shmem_release(void *memory, size_t bytes, int fd); /* bytes: of all parts together */

/* ---- memory that exists once on a host: host_memory.c ----
 *
 * One process makes it, others map it. Each process has two mappings. Writes through `shared` reach
 * all processes. `view` shows the same bytes, but a page that this process writes becomes private:
 * a library that rewrites its inputs in place, such as MXNet with oneDNN's layouts, can't change
 * what others read. Settling gives up private pages. A page takes no memory until it is written. */

struct host_memory {
    char *shared, *view;
    size_t bytes;
    int fd;      /* file descriptor in the process that made the memory, else -1 */
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
 * No other thread or process may use the range meanwhile, except to settle the same bytes. */
int host_memory_settle(const struct host_range *range, hvd_error *err);

#endif

/* Shared memory: one process of a host makes it, others map it; the last process that ends frees
 * it.
 *
 * Only shmem.c calls mmap. The memory has no name, so nothing is left behind even after kill -9,
 * and the size of /dev/shm does not matter. While the process that made the memory runs, other
 * processes of the same user and host can open it by its address. Their mappings outlive that
 * process. */
#ifndef HVDLITE_SHM_SHMEM_H
#define HVDLITE_SHM_SHMEM_H

#include "base/os.h"
#include "base/types.h"

/* bytes of an address; bytes of a large page on x86-64 and most arm64 */
enum { SHMEM_ADDRESS = HVD_REGION_ADDRESS, SHMEM_LARGE_PAGE = 2 << 20 };

/* Reserves address space for `n` parts of `bytes` each. Part `self` is zeroed memory of this
 * process; the other parts must be attached. A page uses no memory until it is written. */
int shmem_reserve(void **memory, size_t bytes, int n, int self, int *fd, hvd_error *err);
/* Returns the address with which other processes attach the memory while this process runs. */
void shmem_address(int fd, char address[SHMEM_ADDRESS]);
/* Moves the first `bytes` of a part to large pages if the kernel can. Call it before other
 * processes attach the part. A sum of 2 x 100 MB took 8 % less time (2 cores of a Xeon). */
void shmem_collapse(void *part, size_t bytes);
/* Returns `bytes`, rounded up so that these first bytes of the part end where a large page ends. */
size_t shmem_whole_pages(const void *part, size_t bytes);
/* Maps the first `bytes` of another process's part at `part`. */
int shmem_attach(void *part, size_t bytes, const char *address, hvd_error *err);
/* Unmaps another process's part; its address space stays reserved. */
void shmem_detach(void *part, size_t bytes);
/* Makes zeroed memory without a name, not yet mapped into this process. */
int shmem_make(size_t bytes, int *fd, hvd_error *err);
/* Maps the first `bytes` of memory from shmem_make at any address. If not `shared`, this process's
 * writes stay private. */
int shmem_map(void **memory, size_t bytes, bool shared, const char *address, hvd_error *err);
/* Maps shared memory without allocating its pages. The process that first touches a page allocates
 * the page, on its own NUMA node. */
int shmem_map_sparse(void **memory, size_t bytes, const char *address, hvd_error *err);
/* Maps zeroed memory of this process alone, and allocates its pages. Measurements use this function
 * instead of malloc: after the free() of a large block, malloc takes later large arrays from the
 * heap, where a sum of 8 MiB by 2 ranks with two threads each on 2 cores took 1.2 times as long. */
int shmem_map_private(void **memory, size_t bytes, hvd_error *err);
void shmem_close(void *memory, size_t bytes);
void shmem_release(void *memory, size_t bytes, int fd); /* bytes: total of all parts */

/* ---- regions: memory in which the ranks of a host keep tensors ----
 *
 * Collectives on tensors in a region need no copies. A region is shared memory with one part for
 * each rank. All parts have the same size, and a tensor has the same offset in every part. struct
 * regions finds the region of a pointer. Any thread may call the functions. */

/* Bytes between parts. If the distance between parts were a power of two, reads and writes would
 * run at half speed: the L1 cache of some processors predicts the way of a line from a few bits of
 * the address (Lipp et al., "Take A Way: Exploring the Security Implications of AMD's Cache Way
 * Predictors", 2020). Parts may begin and end inside a large page, so a short gap is enough. */
enum { REGION_GAP = 64 * 1024 };

struct region {
    struct region *next;
    int32_t id;   /* equal on all ranks; not 0 */
    char *memory; /* the n parts, `stride` bytes apart, in the order of local ranks */
    size_t stride;
    int n, self;
};

struct regions {
    struct mutex mutex; /* guards the list; regions themselves do not change */
    struct region *first;
};

void regions_init(struct regions *t);
void regions_free(struct regions *t); /* does not free the regions */

void regions_add(struct regions *t, struct region *region);
void regions_remove(struct regions *t, struct region *region);

/* Finds the region in which this rank's part contains [memory, memory + bytes). *offset: offset of
 * the memory in the part. NULL: no such region. */
const struct region *regions_find(struct regions *t, const void *memory, size_t bytes,
                                  int64_t *offset);

static inline char *region_part(const struct region *r, int local_rank) {
    return r->memory + (size_t)local_rank * r->stride;
}

/* ---- memory that exists once per host: host_memory.c ----
 *
 * One process makes the memory, the other processes of the host map it. Each process has two
 * mappings. Writes through `shared` reach all processes. `view` shows the same bytes, but a page of
 * the view that this process writes becomes private. So a library that rewrites its inputs in
 * place, such as MXNet with oneDNN's layouts, can't change what other processes read.
 * host_memory_settle drops the private pages. A page uses no memory until a process writes to the
 * page; from then on the page is on the NUMA node of that process. */

struct host_memory {
    char *shared, *view;
    size_t bytes;
    int fd;      /* file descriptor in the process that made the memory, else -1 */
    int pagemap; /* /proc/self/pagemap: shows the private pages of the view */
};

int host_memory_make(struct host_memory *m, size_t bytes, hvd_error *err);
/* `address`: from host_memory_address; the process that made the memory must still run. */
int host_memory_attach(struct host_memory *m, size_t bytes, const char *address, hvd_error *err);
void host_memory_address(const struct host_memory *m, char address[SHMEM_ADDRESS]);
void host_memory_free(struct host_memory *m);

/* A range of memory->view. The range's pages must contain no other data. */
struct host_range {
    const struct host_memory *memory;
    char *at;
    size_t bytes;
};

/* Copies this process's writes in the range to the shared memory and drops the private pages. No
 * other thread or process may use the range meanwhile, except in the same call with equal bytes. */
int host_memory_settle(const struct host_range *range, hvd_error *err);

#endif

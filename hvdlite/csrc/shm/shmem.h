/* Shared memory: made by one process of a host, mapped by others, freed when the last one ends.
 *
 * Only shmem.c calls mmap. The memory has no name: nothing is left behind, even after kill -9, and
 * the size of /dev/shm does not matter. While the process that made it runs, another process of the
 * same user and host opens it by its address; mappings outlive that process. */
#ifndef HVDLITE_SHM_SHMEM_H
#define HVDLITE_SHM_SHMEM_H

#include "base/error.h"

enum { SHMEM_ADDRESS = 64, SHMEM_LARGE_PAGE = 2 << 20 /* on x86-64 and most arm64 */ };

/* Reserves addresses for `n` parts of `bytes`. Part `self` is zeroed memory of this process; the
 * other parts must be attached. Pages exist once written to. */
int shmem_reserve(void **memory, size_t bytes, int n, int self, int *fd, hvd_error *err);
/* The address by which another process attaches the memory while this process runs. */
void shmem_address(int fd, char address[SHMEM_ADDRESS]);
/* Before others attach the part: moves its first `bytes` to large pages if the kernel can. A sum of
 * 2 x 100 MB took 8 % less time (2 cores of a Xeon). */
void shmem_collapse(void *part, size_t bytes);
/* `bytes` of a part, rounded up to the end of their last large page. */
size_t shmem_whole_pages(const void *part, size_t bytes);
/* Maps the first `bytes` of another process's part at `part`. */
int shmem_attach(void *part, size_t bytes, const char *address, hvd_error *err);
/* Makes zeroed memory that has no name, nor an address in this process. */
int shmem_make(size_t bytes, int *fd, hvd_error *err);
/* Maps the first `bytes` of such memory, anywhere. Not `shared`: this process's writes stay
 * private. */
int shmem_map(void **memory, size_t bytes, bool shared, const char *address, hvd_error *err);
/* The same, shared. Pages after the first `at_once` bytes are allocated on first use. */
int shmem_map_sparse(void **memory, size_t bytes, size_t at_once, const char *address,
                     hvd_error *err);
void shmem_close(void *memory, size_t bytes);
void shmem_release(void *memory, size_t bytes, int fd); /* bytes of all parts */

#endif

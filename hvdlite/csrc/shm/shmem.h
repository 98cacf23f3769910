/* Shared memory: made by one process of a host, mapped by others, gone when the last of them ends.
 *
 * The one door to mmap. The memory has no name, so that nothing is left behind, not even after kill
 * -9, and the size of /dev/shm does not matter. Another process of the same user and host opens it
 * by its address while its maker runs; what is mapped outlives the maker. */
#ifndef HVDLITE_SHM_SHMEM_H
#define HVDLITE_SHM_SHMEM_H

#include "base/error.h"

enum { SHMEM_ADDRESS = 64, SHMEM_LARGE_PAGE = 2 << 20 /* on x86-64 and most arm64 */ };

/* Reserves addresses for `n` parts of `bytes`. Part `self` is zeroed memory of this process; the
 * other parts must be attached. Pages exist once written to. */
int shmem_reserve(void **memory, size_t bytes, int n, int self, int *fd, hvd_error *err);
/* The address by which another process attaches it, while this one runs. */
void shmem_address(int fd, char address[SHMEM_ADDRESS]);
/* Before others attach them: moves the first `bytes` of a part onto large pages where the kernel
 * can. It took 8 % off the sum of 2 x 100 MB (2 cores of a Xeon). */
void shmem_collapse(void *part, size_t bytes);
/* `bytes` of a part, rounded up to the end of their last large page. */
size_t shmem_whole_pages(const void *part, size_t bytes);
/* Maps the first `bytes` of another process's part at `part`. */
int shmem_attach(void *part, size_t bytes, const char *address, hvd_error *err);
/* Makes zeroed memory that has no name, nor an address in this process. */
int shmem_make(size_t bytes, int *fd, hvd_error *err);
/* Maps `bytes` of such memory, from its begin, anywhere. `shared`: else what this process writes to
 * a page stays its own. */
int shmem_map(void **memory, size_t bytes, bool shared, const char *address, hvd_error *err);
/* The same, shared; but pages after the first `at_once` bytes exist only once they are used. */
int shmem_map_sparse(void **memory, size_t bytes, size_t at_once, const char *address,
                     hvd_error *err);
void shmem_close(void *memory, size_t bytes);
void shmem_release(void *memory, size_t bytes, int fd); /* bytes of all parts */

#endif

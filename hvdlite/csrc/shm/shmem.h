/* Shared memory: made by one process of a host, mapped by others, gone when the last of them ends.
 *
 * The one door to shm_open and mmap. Mode 0600. Nothing is left behind, not even after kill -9: a
 * name in /dev/shm is unlinked once all have mapped it, and reserved memory has no name. */
#ifndef HVDLITE_SHM_SHMEM_H
#define HVDLITE_SHM_SHMEM_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { SHMEM_NAME = 64, SHMEM_LARGE_PAGE = 2 << 20 /* on x86-64 and most arm64 */ };

/* Makes zeroed memory of `bytes`, and the `name` by which others open it. All its pages exist at
 * once: a full /dev/shm is an error here, never a fault later. */
int shmem_create(void **memory, size_t bytes, char name[SHMEM_NAME], hvd_error *err);
int shmem_open(void **memory, size_t bytes, const char *name, hvd_error *err);
void shmem_unlink(const char *name);
void shmem_close(void *memory, size_t bytes);

/* Reserves addresses for `n` parts of `bytes`. Part `self` is zeroed memory of this process; the
 * other parts must be attached. Pages exist once written to, and not in /dev/shm. */
int shmem_reserve(void **memory, size_t bytes, int n, int self, int *fd, hvd_error *err);
/* The address by which another process of this user and host attaches it, while this one runs. */
void shmem_address(int fd, char address[SHMEM_NAME]);
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
void shmem_release(void *memory, size_t bytes, int fd); /* bytes of all parts */

#endif

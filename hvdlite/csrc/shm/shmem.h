/* Shared memory: made by one process of a host, mapped by others, gone when the last of them ends.
 *
 * The one door to shm_open and mmap. Mode 0600; nothing is left behind, not even after
 * kill -9: what has a name in /dev/shm is unlinked as soon as all have mapped it, and what a process
 * reserves for itself has none. */
#ifndef HVDLITE_SHM_SHMEM_H
#define HVDLITE_SHM_SHMEM_H

#include "base/error.h"

#include <stddef.h>

enum { SHMEM_NAME = 64, SHMEM_LARGE_PAGE = 2 << 20 /* that of x86-64 and of most arm64 */ };

/* Zeroed memory of `bytes`, and into `name` what the others open it by. Its pages are there from the
 * beginning: a full /dev/shm is an error here, never a fault later. */
int shmem_create(void **memory, size_t bytes, char name[SHMEM_NAME], hvd_error *err);
int shmem_open(void **memory, size_t bytes, const char *name, hvd_error *err);
void shmem_unlink(const char *name);
void shmem_close(void *memory, size_t bytes);

/* Room for `n` parts of `bytes`, of which the one of this process, number `self`, is zeroed memory, and
 * those of others are not there until they are attached. Its pages come as they are written to, and
 * need no room in /dev/shm. */
int shmem_reserve(void **memory, size_t bytes, int n, int self, int *fd, hvd_error *err);
/* What another process of this user and host attaches the part by, as long as this one runs. */
void shmem_address(int fd, char address[SHMEM_NAME]);
/* Puts the large pages that lie whole in the first `bytes` of a part on real ones, where the kernel can,
 * before others attach them. Summing up 2 x 100 MB there took 8 % less time (2 cores of a Xeon). */
void shmem_collapse(void *part, size_t bytes);
/* `bytes` of a part up to the end of their last large page. */
size_t shmem_whole_pages(const void *part, size_t bytes);
/* Maps the first `bytes` of another process's part in place of `part`. */
int shmem_attach(void *part, size_t bytes, const char *address, hvd_error *err);
void shmem_release(void *memory, size_t bytes, int fd); /* bytes: of all parts */

#endif

#define _GNU_SOURCE /* MAP_POPULATE, memfd_create, statx */
#include "shm/shmem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1; older kernels return an error */
#endif

void shmem_close(void *memory, size_t bytes) {
    if (memory) munmap(memory, bytes);
}

/* ---- parts ---- */

/* Returns the offset of a part in its file. The kernel uses large pages only if the offset and the
 * address have the same remainder when divided by the bytes of a large page. */
static off_t offset_in_file(const void *part) {
    return (off_t)((uintptr_t)part % SHMEM_LARGE_PAGE);
}

static bool map_part(void *part, size_t bytes, int fd, int populate) {
    return mmap(part, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | populate, fd,
                offset_in_file(part)) != MAP_FAILED;
}

enum { NOTHING = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE };

/* Reserves address space for `bytes`, aligned to a large page. */
static void *reserve_space(size_t bytes) {
    const size_t PAGE = (size_t)sysconf(_SC_PAGESIZE);
    /* rounded up to whole pages, so that the munmap of the rest starts at a page */
    bytes += (PAGE - bytes % PAGE) % PAGE;
    char *space = mmap(NULL, bytes + SHMEM_LARGE_PAGE, PROT_NONE, NOTHING, -1, 0);
    if (space == MAP_FAILED) return NULL;
    size_t before = (SHMEM_LARGE_PAGE - (size_t)offset_in_file(space)) % SHMEM_LARGE_PAGE;
    if (before) munmap(space, before);
    munmap(space + before + bytes, SHMEM_LARGE_PAGE - before);
    return space + before;
}

int shmem_reserve(void **memory, size_t bytes, int n, int self, int *fd, hvd_error *err) {
    size_t all = bytes * (size_t)n;
    *memory = reserve_space(all);
    if (!*memory)
        return error_set(err, HVD_NO_MEMORY, "no room in the address space for %zu bytes: %s", all,
                         strerror(errno));
    char *own = (char *)*memory + bytes * (size_t)self;
    int code = shmem_make((size_t)offset_in_file(own) + bytes, fd, err);
    if (!code && !map_part(own, bytes, *fd, 0))
        code = error_set(err, HVD_NO_MEMORY, "can't map %zu bytes of memory to share: %s", bytes,
                         strerror(errno));
    if (code) shmem_release(*memory, all, *fd);
    return code;
}

/* Calls madvise for each large page separately, because madvise stops at the first page that it
 * can't collapse, such as a page that was never written. */
void shmem_collapse(void *part, size_t bytes) {
    size_t before = (SHMEM_LARGE_PAGE - (size_t)offset_in_file(part)) % SHMEM_LARGE_PAGE;
    for (size_t at = before; at + SHMEM_LARGE_PAGE <= bytes; at += SHMEM_LARGE_PAGE)
        madvise((char *)part + at, SHMEM_LARGE_PAGE, MADV_COLLAPSE);
}

size_t shmem_whole_pages(const void *part, size_t bytes) {
    if (!bytes) return 0;
    size_t end = (size_t)offset_in_file(part) + bytes;
    return bytes + (SHMEM_LARGE_PAGE - end % SHMEM_LARGE_PAGE) % SHMEM_LARGE_PAGE;
}

/* statx replaces fstat: glibc before 2.33 has no symbol `fstat`, and wheels must run with it. */
static bool look_at(int fd, struct statx *file) {
    return statx(fd, "", AT_EMPTY_PATH, STATX_INO | STATX_SIZE, file) == 0;
}

void shmem_address(int fd, char address[SHMEM_ADDRESS]) {
    struct statx file;
    unsigned long number = look_at(fd, &file) ? (unsigned long)file.stx_ino : 0;
    snprintf(address, SHMEM_ADDRESS, "/proc/%ld/fd/%d %lu", (long)getpid(), fd, number);
}

/* Opens the file and checks its identity: in containers with separate process ids the path may name
 * a different file. */
static int open_address(const char *address, size_t bytes, int *fd, hvd_error *err) {
    char path[SHMEM_ADDRESS] = "";
    unsigned long number = 0;
    struct statx file;
    int read = sscanf(address, "%63s %lu", path, &number);
    *fd = open(path, O_RDWR | O_CLOEXEC);
    if (*fd < 0)
        return error_set(err, HVD_NO_MEMORY,
                         "can't open the memory that another rank shares, %s: %s", address,
                         strerror(errno));
    if (read == 2 && look_at(*fd, &file) && file.stx_ino == number && file.stx_size >= bytes)
        return HVD_OK;
    close(*fd);
    return error_set(err, HVD_NO_MEMORY,
                     "%s is not the %zu bytes of memory that another rank shares, but another "
                     "file: run the ranks of a host in one container, or let their containers "
                     "share a PID namespace",
                     address, bytes);
}

int shmem_attach(void *part, size_t bytes, const char *address, hvd_error *err) {
    int fd;
    if (!bytes) return HVD_OK;
    HVD_TRY(open_address(address, (size_t)offset_in_file(part) + bytes, &fd, err));
    int code = map_part(part, bytes, fd, MAP_POPULATE)
                   ? HVD_OK
                   : error_set(err, HVD_NO_MEMORY, "can't map %zu bytes of %s: %s", bytes, address,
                               strerror(errno));
    close(fd);
    return code;
}

void shmem_detach(void *part, size_t bytes) {
    mmap(part, bytes, PROT_NONE, NOTHING | MAP_FIXED, -1, 0);
}

int shmem_make(size_t bytes, int *fd, hvd_error *err) {
    *fd = memfd_create("hvdlite", MFD_CLOEXEC);
    if (*fd >= 0 && ftruncate(*fd, (off_t)bytes) == 0) return HVD_OK;
    error_set(err, HVD_NO_MEMORY, "can't make %zu bytes of memory to share: %s", bytes,
              strerror(errno));
    if (*fd >= 0) close(*fd);
    *fd = -1;
    return err->code;
}

static int map_whole(void **memory, size_t bytes, int flags, int fd, const char *address,
                     hvd_error *err) {
    char *space = reserve_space(bytes);
    if (space &&
        mmap(space, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | flags, fd, 0) != MAP_FAILED) {
        *memory = space;
        return HVD_OK;
    }
    int why = errno;
    if (space) munmap(space, bytes);
    return error_set(err, HVD_NO_MEMORY, "can't map %zu bytes of %s: %s", bytes, address,
                     strerror(why));
}

int shmem_map_private(void **memory, size_t bytes, hvd_error *err) {
    return map_whole(memory, bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1,
                     "memory for a measurement", err);
}

static int map(void **memory, size_t bytes, int flags, const char *address, hvd_error *err) {
    int fd;
    HVD_TRY(open_address(address, bytes, &fd, err));
    int code = map_whole(memory, bytes, flags, fd, address, err);
    close(fd);
    return code;
}

/* Maps shared memory with MAP_POPULATE, because the first touch of a page takes 1.4 us, ten times
 * as long as a copy of the page. Does not populate private memory, because MAP_POPULATE would copy
 * all pages. */
int shmem_map(void **memory, size_t bytes, bool shared, const char *address, hvd_error *err) {
    return map(memory, bytes, shared ? MAP_SHARED | MAP_POPULATE : MAP_PRIVATE, address, err);
}

int shmem_map_sparse(void **memory, size_t bytes, const char *address, hvd_error *err) {
    return map(memory, bytes, MAP_SHARED, address, err);
}

void shmem_release(void *memory, size_t bytes, int fd) {
    munmap(memory, bytes);
    if (fd >= 0) close(fd);
}

/* ---- regions ---- */

void regions_init(struct regions *t) {
    t->first = NULL;
    mutex_init(&t->mutex);
}

void regions_free(struct regions *t) { mutex_destroy(&t->mutex); }

void regions_add(struct regions *t, struct region *region) {
    mutex_lock(&t->mutex);
    region->next = t->first;
    t->first = region;
    mutex_unlock(&t->mutex);
}

void regions_remove(struct regions *t, struct region *region) {
    mutex_lock(&t->mutex);
    struct region **at = &t->first;
    while (*at && *at != region) at = &(*at)->next;
    if (*at) *at = region->next;
    mutex_unlock(&t->mutex);
}

const struct region *regions_find(struct regions *t, const void *memory, size_t bytes,
                                  int64_t *offset) {
    uintptr_t begin = (uintptr_t)memory;
    mutex_lock(&t->mutex);
    struct region *r = t->first;
    for (; r; r = r->next) {
        uintptr_t part = (uintptr_t)region_part(r, r->self);
        if (begin < part || begin - part > r->stride || bytes > r->stride - (begin - part))
            continue;
        *offset = (int64_t)(begin - part);
        break;
    }
    mutex_unlock(&t->mutex);
    return r;
}

/* Memory that exists once per host. Each process maps it twice, see shmem.h. */
#define _DEFAULT_SOURCE /* madvise, pread */
#include "shm/shmem.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Bits of an entry of /proc/self/pagemap (Linux: Documentation/admin-guide/mm/pagemap.rst). */
static const uint64_t PRESENT = UINT64_C(1) << 63, SWAPPED = UINT64_C(1) << 62,
                      OF_FILE = UINT64_C(1) << 61;

enum { ENTRIES = 512 }; /* entries per read: 4 KiB of the stack */

static int map_views(struct host_memory *m, const char *address, hvd_error *err) {
    void *memory;
    HVD_TRY(shmem_map_sparse(&memory, m->bytes, address, err));
    m->shared = memory;
    HVD_TRY(shmem_map(&memory, m->bytes, false, address, err));
    m->view = memory;
    m->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    return m->pagemap >= 0 ? HVD_OK
                           : error_set(err, HVD_UNSUPPORTED, "can't open /proc/self/pagemap: %s",
                                       strerror(errno));
}

int host_memory_attach(struct host_memory *m, size_t bytes, const char *address, hvd_error *err) {
    *m = (struct host_memory){.bytes = bytes, .fd = -1, .pagemap = -1};
    int code = map_views(m, address, err);
    if (code) host_memory_free(m);
    return code;
}

int host_memory_make(struct host_memory *m, size_t bytes, hvd_error *err) {
    char address[SHMEM_ADDRESS];
    int fd;
    HVD_TRY(shmem_make(bytes, &fd, err));
    shmem_address(fd, address);
    int code = host_memory_attach(m, bytes, address, err);
    if (code)
        close(fd);
    else
        m->fd = fd;
    return code;
}

void host_memory_address(const struct host_memory *m, char address[SHMEM_ADDRESS]) {
    shmem_address(m->fd, address);
}

void host_memory_free(struct host_memory *m) {
    shmem_close(m->shared, m->bytes);
    shmem_close(m->view, m->bytes);
    if (m->fd >= 0) close(m->fd);
    if (m->pagemap >= 0) close(m->pagemap);
}

/* ---- settling ---- */

static bool is_own(uint64_t entry) {
    return entry & SWAPPED || ((entry & PRESENT) && !(entry & OF_FILE));
}

/* Drops one private page of the view. If the page differs from the shared memory, this process has
 * written to the page: then first copies it to the shared memory. */
static int settle_page(const struct host_memory *m, char *page, size_t bytes, hvd_error *err) {
    char *shared = m->shared + (page - m->view);
    if (memcmp(shared, page, bytes) != 0) memcpy(shared, page, bytes);
    return madvise(page, bytes, MADV_DONTNEED)
               ? error_set(err, HVD_INTERNAL, "can't release a page of memory: %s", strerror(errno))
               : HVD_OK;
}

int host_memory_settle(const struct host_range *range, hvd_error *err) {
    const struct host_memory *m = range->memory;
    char *at = range->at;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t first = (uintptr_t)at / page,
                 end = ((uintptr_t)at + range->bytes + page - 1) / page;
    uint64_t entries[ENTRIES];
    char *where = at - (uintptr_t)at % page;
    for (size_t number = first; number < end; number += ENTRIES) {
        size_t n = end - number < ENTRIES ? end - number : ENTRIES;
        if (pread(m->pagemap, entries, n * sizeof *entries, (off_t)(number * sizeof *entries)) !=
            (ssize_t)(n * sizeof *entries))
            return error_set(err, HVD_INTERNAL, "can't read /proc/self/pagemap: %s",
                             strerror(errno));
        for (size_t i = 0; i < n; i++, where += page)
            if (is_own(entries[i])) HVD_TRY(settle_page(m, where, page, err));
    }
    return HVD_OK;
}

#define _GNU_SOURCE /* process_vm_readv */
#include "shm/near.h"

#include <sys/random.h>
#include <sys/uio.h>
#include <unistd.h>

uint64_t loan_cookie(void) {
    uint64_t cookie;
    return getrandom(&cookie, sizeof cookie, 0) == sizeof cookie ? cookie : 0;
}

struct loan loan_of(const void *memory, const uint64_t *cookie) {
    return (struct loan){getpid(), (uintptr_t)memory, (uintptr_t)cookie, *cookie};
}

/* Reads cookie and data in one call: between two calls, the process id could get a new owner. */
enum loan_end loan_read(const struct loan *l, size_t offset, void *to, size_t bytes) {
    uint64_t cookie = 0;
    const struct iovec local[] = {{&cookie, sizeof cookie}, {to, bytes}};
    const struct iovec remote[] = {{(void *)(uintptr_t)l->cookie_at, sizeof cookie},
                                   {(void *)(uintptr_t)(l->memory + offset), bytes}};
    ssize_t n = process_vm_readv((pid_t)l->pid, local, 2, remote, 2, 0);
    if (n < (ssize_t)sizeof cookie || !cookie || cookie != l->cookie) return LOAN_FORBIDDEN;
    return (size_t)n == sizeof cookie + bytes ? LOAN_READ : LOAN_FAILED;
}

enum { BYTES = BOUNCE_SLOTS * BOUNCE_SLOT }; /* size of a bounce buffer */

bool bounce_map(struct bounce *b, const char *address) {
    hvd_error ignored;
    void *memory = NULL;
    if (!b->memory && !b->failed) {
        b->failed = shmem_map(&memory, BYTES, true, address, &ignored) != HVD_OK;
        b->memory = memory;
    }
    return b->memory;
}

void bounce_make(struct bounce *b, char address[SHMEM_ADDRESS]) {
    hvd_error ignored;
    *address = 0;
    if (!b->memory && !b->failed) b->failed = shmem_make(BYTES, &b->file, &ignored) != HVD_OK;
    if (b->failed) return;
    shmem_address(b->file, address);
    if (!bounce_map(b, address)) *address = 0;
}

void bounce_close(struct bounce *b) {
    shmem_close(b->memory, BYTES);
    if (b->file > 0) close(b->file);
    *b = (struct bounce){0};
}

int bounce_take(struct bounce *b) {
    for (int slot = 0; slot < BOUNCE_SLOTS; slot++) {
        if (b->busy >> slot & 1) continue;
        b->busy |= 1u << slot;
        return slot;
    }
    return -1;
}

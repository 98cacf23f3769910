#define _GNU_SOURCE /* syscall */
#include "bell.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A cache line each: ringing one bell does not disturb the others. */
struct bell {
    _Alignas(64) atomic_uint rings;
    atomic_uint asleep;
};

struct bells {
    int n;
    struct bell *bell; /* [n], mapped */
};

static int map_bells(struct bells **out, int n, int fd, const char *name, hvd_error *err) {
    size_t bytes = (size_t)n * sizeof(struct bell);
    int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    struct bells *b = malloc(sizeof *b);
    if (memory != MAP_FAILED && b) {
        *b = (struct bells){.n = n, .bell = memory};
        *out = b;
        return HVD_OK;
    }
    int why = errno;
    free(b);
    if (memory != MAP_FAILED) munmap(memory, bytes);
    return error_set(err, HVD_NO_MEMORY, "can't map shared memory %s of %zu bytes: %s", name, bytes,
                     strerror(why));
}

int bells_create(struct bells **out, int n, char name[BELL_NAME], hvd_error *err) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(name, BELL_NAME, "/hvdlite-%ld-%lx%lx", (long)getpid(), (unsigned long)now.tv_sec,
             (unsigned long)now.tv_nsec);
    int fd = shm_open(name, O_CREAT | O_EXCL | O_RDWR, 0600), code;
    if (fd < 0)
        return error_set(err, HVD_NO_MEMORY, "can't make shared memory %s: %s", name,
                         strerror(errno));
    /* posix_fallocate and not ftruncate: a full /dev/shm is an error here, not a SIGBUS later. */
    int why = posix_fallocate(fd, 0, n * (off_t)sizeof(struct bell));
    code =
        why ? error_set(err, HVD_NO_MEMORY, "no room in /dev/shm for %s: %s", name, strerror(why))
            : map_bells(out, n, fd, name, err);
    close(fd);
    if (code) shm_unlink(name);
    return code;
}

int bells_open(struct bells **out, int n, const char *name, hvd_error *err) {
    int fd = shm_open(name, O_RDWR, 0);
    if (fd < 0)
        return error_set(err, HVD_NO_MEMORY, "can't open shared memory %s: %s", name,
                         strerror(errno));
    int code = map_bells(out, n, fd, name, err);
    close(fd);
    return code;
}

void bells_unlink(const char *name) { shm_unlink(name); }

struct bells *bells_private(int n) {
    struct bells *b = NULL;
    map_bells(&b, n, -1, "(private)", NULL);
    return b;
}

void bells_close(struct bells *b) {
    if (!b) return;
    munmap(b->bell, (size_t)b->n * sizeof(struct bell));
    free(b);
}

static void futex(atomic_uint *word, int op, unsigned value, const struct timespec *timeout) {
    syscall(SYS_futex, word, op, value, timeout, NULL, 0);
}

/* Either the ringer sees `asleep`, or the sleeper sees the ring: both orders are sequentially
 * consistent. */
void bell_ring(struct bells *b, int which) {
    struct bell *bell = &b->bell[which];
    atomic_fetch_add(&bell->rings, 1);
    if (atomic_load(&bell->asleep)) futex(&bell->rings, FUTEX_WAKE, 1, NULL);
}

unsigned bell_listen(struct bells *b, int which) { return atomic_load(&b->bell[which].rings); }

void bell_sleep(struct bells *b, int which, unsigned ticket, double seconds) {
    struct bell *bell = &b->bell[which];
    struct timespec timeout = {.tv_sec = (time_t)seconds};
    timeout.tv_nsec = (long)((seconds - (double)timeout.tv_sec) * 1e9);
    atomic_store(&bell->asleep, 1);
    futex(&bell->rings, FUTEX_WAIT, ticket, &timeout); /* returns at once unless rings == ticket */
    atomic_store(&bell->asleep, 0);
}

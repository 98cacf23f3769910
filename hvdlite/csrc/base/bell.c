#define _GNU_SOURCE /* ppoll */
#include "base/bell.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

int bell_open(struct bell *b, hvd_error *err) {
    monitor_init(&b->monitor);
    b->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return b->event < 0 ? error_set(err, HVD_NO_MEMORY, "no event file: %s", strerror(errno))
                        : HVD_OK;
}

void bell_close(struct bell *b) {
    if (b->event >= 0) close(b->event);
    monitor_destroy(&b->monitor);
}

static void end_look(struct bell *b) {
    uint64_t one = 1;
    ssize_t written = write(b->event, &one, sizeof one);
    (void)written; /* the counter is far from full */
}

void bell_ring(struct bell *b) {
    monitor_lock(&b->monitor);
    atomic_fetch_add(&b->rings, 1);
    if (b->watched) end_look(b);
    monitor_notify(&b->monitor);
    monitor_unlock(&b->monitor);
}

unsigned bell_listen(struct bell *b) { return atomic_load(&b->rings); }

/* Without the lock; who rings meanwhile writes to `event`. */
static void look(struct bell *b, int file, double seconds) {
    struct pollfd files[] = {{.fd = b->event, .events = POLLIN}, {.fd = file, .events = POLLIN}};
    struct timespec timeout = {.tv_sec = (time_t)seconds};
    timeout.tv_nsec = (long)((seconds - (double)timeout.tv_sec) * 1e9);
    ppoll(files, 2, &timeout, NULL);
}

void bell_sleep(struct bell *b, unsigned ticket, int file, double seconds) {
    uint64_t rings;
    monitor_lock(&b->monitor);
    if (atomic_load(&b->rings) == ticket && b->watched) {
        monitor_wait(&b->monitor, seconds);
    } else if (atomic_load(&b->rings) == ticket) {
        b->watched = true;
        monitor_unlock(&b->monitor);
        look(b, file, seconds);
        monitor_lock(&b->monitor);
        b->watched = false;
        ssize_t read_bytes =
            read(b->event, &rings, sizeof rings); /* under the lock: no ring is lost */
        (void)read_bytes;
        monitor_notify(&b->monitor); /* another sleeper looks at the file from now on */
    }
    monitor_unlock(&b->monitor);
}

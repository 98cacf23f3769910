#define _GNU_SOURCE /* ppoll */
#include "base/poller.h"

#include "base/os.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STOP = 0 };                 /* index of the eventfd that ends the poller's thread */
static const double PAUSE = 10e-3; /* seconds of sleep after poll() has failed; not measured */

struct file_handler {
    poller_handler *handler;
    void *arg;
};

struct poller {
    pthread_t thread;
    bool started;
    atomic_bool ends;
    size_t n;
    /* array of n; descriptor -1: no longer watched, so poll() skips it */
    struct pollfd *files;
    struct file_handler *handlers; /* array of n */
};

int poller_new(struct poller **out, hvd_error *err) {
    struct poller *p = calloc(1, sizeof *p);
    int file = p ? eventfd(0, EFD_CLOEXEC) : -1;
    int code = file < 0 ? error_set(err, HVD_NO_MEMORY, "can't open eventfd: %s", strerror(errno))
                        : poller_add(p, file, NULL, NULL, err);
    if (code && file >= 0) close(file);
    if (code)
        poller_free(p);
    else
        *out = p;
    return code;
}

int poller_add(struct poller *p, int file, poller_handler *handler, void *arg, hvd_error *err) {
    struct pollfd *files = realloc(p->files, (p->n + 1) * sizeof *files);
    if (files) p->files = files;
    struct file_handler *handlers = realloc(p->handlers, (p->n + 1) * sizeof *handlers);
    if (handlers) p->handlers = handlers;
    if (!files || !handlers)
        return error_set(err, HVD_NO_MEMORY, "no memory to watch %zu files", p->n + 1);
    files[p->n] = (struct pollfd){.fd = file, .events = POLLIN};
    handlers[p->n++] = (struct file_handler){handler, arg};
    return HVD_OK;
}

/* Polls all files with one call. The kernel refuses this call if memory is short, or if there are
 * more files than the limit on open files allows. Then the files are polled one by one. */
static void await(struct poller *p) {
    if (poll(p->files, p->n, -1) >= 0) return;
    if (errno != EINTR) clock_nap(PAUSE);
    for (size_t i = 0; i < p->n; i++)
        if (poll(&p->files[i], 1, 0) <= 0) p->files[i].revents = 0;
}

static void *watch_sockets(void *arg) {
    struct poller *p = arg;
    for (await(p); !atomic_load(&p->ends); await(p))
        for (size_t i = STOP + 1; i < p->n; i++)
            if (p->files[i].revents && !p->handlers[i].handler(p->handlers[i].arg, p->files[i].fd))
                p->files[i].fd = -1;
    return NULL;
}

int poller_start(struct poller *p, const char *name, hvd_error *err) {
    HVD_TRY(thread_start(&p->thread, watch_sockets, p, name, err));
    p->started = true;
    return HVD_OK;
}

bool poller_can_read(int file) { return poll(&(struct pollfd){file, POLLIN, 0}, 1, 0) > 0; }

static void ring_file(int event) {
    uint64_t one = 1;
    ssize_t written = write(event, &one, sizeof one);
    (void)written; /* the write can't fail: the eventfd's counter is far from full */
}

void poller_free(struct poller *p) {
    if (!p) return;
    atomic_store(&p->ends, true);
    if (p->started) ring_file(p->files[STOP].fd);
    if (p->started) thread_join(p->thread);
    if (p->n) close(p->files[STOP].fd);
    free(p->files);
    free(p->handlers);
    free(p);
}

/* ---- bells ---- */

int bell_open(struct bell *b, hvd_error *err) {
    mutex_init(&b->mutex);
    b->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return b->event < 0 ? error_set(err, HVD_NO_MEMORY, "can't open eventfd: %s", strerror(errno))
                        : HVD_OK;
}

void bell_close(struct bell *b) {
    if (b->event >= 0) close(b->event);
    mutex_destroy(&b->mutex);
}

void bell_ring(struct bell *b) {
    mutex_lock(&b->mutex);
    atomic_fetch_add(&b->rings, 1);
    if (b->watched) ring_file(b->event);
    mutex_notify(&b->mutex);
    mutex_unlock(&b->mutex);
}

unsigned bell_listen(struct bell *b) { return atomic_load(&b->rings); }

/* Polls the file without the lock. If a thread calls bell_ring meanwhile, `event` ends the poll. */
static void look(struct bell *b, int file, double seconds) {
    struct pollfd files[] = {{.fd = b->event, .events = POLLIN}, {.fd = file, .events = POLLIN}};
    struct timespec timeout = clock_span(seconds);
    if (ppoll(files, 2, &timeout, NULL) < 0 && errno != EINTR) clock_nap(PAUSE);
}

void bell_sleep(struct bell *b, unsigned ticket, int file, double seconds) {
    uint64_t rings;
    mutex_lock(&b->mutex);
    if (atomic_load(&b->rings) == ticket && b->watched) {
        mutex_wait(&b->mutex, seconds);
    } else if (atomic_load(&b->rings) == ticket) {
        b->watched = true;
        mutex_unlock(&b->mutex);
        look(b, file, seconds);
        mutex_lock(&b->mutex);
        b->watched = false;
        /* under the mutex: later, the read could remove a ring that must wake the next thread */
        ssize_t read_bytes = read(b->event, &rings, sizeof rings);
        (void)read_bytes;
        mutex_notify(&b->mutex); /* wakes the other threads: one of them then polls the file */
    }
    mutex_unlock(&b->mutex);
}

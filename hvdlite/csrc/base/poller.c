#include "base/poller.h"

#include "base/sync.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { STOP = 0 }; /* the first file: written to when the thread is to end */

struct watch {
    poller_handler *handler;
    void *arg;
};

struct poller {
    pthread_t thread;
    bool started;
    size_t n;
    struct pollfd *files;  /* [n]; -1: not watched any more, which poll() skips */
    struct watch *watches; /* [n] */
};

int poller_new(struct poller **out, hvd_error *err) {
    struct poller *p = calloc(1, sizeof *p);
    int file = p ? eventfd(0, EFD_CLOEXEC) : -1;
    int code = file < 0 ? error_set(err, HVD_NO_MEMORY, "no event file: %s", strerror(errno))
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
    struct watch *watches = realloc(p->watches, (p->n + 1) * sizeof *watches);
    if (watches) p->watches = watches;
    if (!files || !watches)
        return error_set(err, HVD_NO_MEMORY, "no memory to watch %zu files", p->n + 1);
    files[p->n] = (struct pollfd){.fd = file, .events = POLLIN};
    watches[p->n++] = (struct watch){handler, arg};
    return HVD_OK;
}

static void handle(struct poller *p, size_t i) {
    if (!p->files[i].revents) return;
    if (!p->watches[i].handler(p->watches[i].arg, p->files[i].fd)) p->files[i].fd = -1;
}

static void *run(void *arg) {
    struct poller *p = arg;
    for (;;) {
        if (poll(p->files, p->n, -1) < 0) continue; /* a signal */
        if (p->files[STOP].revents) return NULL;
        for (size_t i = STOP + 1; i < p->n; i++) handle(p, i);
    }
}

int poller_start(struct poller *p, const char *name, hvd_error *err) {
    HVD_TRY(thread_start(&p->thread, run, p, name, err));
    p->started = true;
    return HVD_OK;
}

static void end_thread(struct poller *p) {
    uint64_t one = 1;
    ssize_t written = write(p->files[STOP].fd, &one, sizeof one);
    (void)written; /* the counter is far from full */
    thread_join(p->thread);
}

void poller_free(struct poller *p) {
    if (!p) return;
    if (p->started) end_thread(p);
    if (p->n) close(p->files[STOP].fd);
    free(p->files);
    free(p->watches);
    free(p);
}

/* Sleep until a file can be read: of a thread made for it, a poller, or of any thread, with a bell.
 *
 * A poller calls a file's handler. It is for events without a doorbell: sockets and exits of
 * processes. Handlers run on the poller's thread; files are added before it starts. With nothing to
 * read it costs nothing. */
#ifndef HVDLITE_BASE_POLLER_H
#define HVDLITE_BASE_POLLER_H

#include "base/sync.h"

#include <stdatomic.h>

struct poller;

/* Reads what there is. False: the file is not watched any more. */
typedef bool poller_handler(void *arg, int file);

int poller_new(struct poller **out, hvd_error *err);

/* The caller owns the file and closes it after poller_free. */
int poller_add(struct poller *p, int file, poller_handler *handler, void *arg, hvd_error *err);

/* `name`: of the thread. */
int poller_start(struct poller *p, const char *name, hvd_error *err);

/* Ends the thread, if it was started. NULL does nothing. */
void poller_free(struct poller *p);

/* A bell wakes the threads of this process that sleep until it rings or a file can be read. Any
 * thread rings, and any number of threads sleep; the one that looks at the file wakes the others.
 * For processes there is the doorbell, which knows no files (shm/doorbell.h). */
struct bell {
    struct mutex mutex; /* guards what follows */
    atomic_uint rings;  /* written under the mutex */
    bool watched;       /* a sleeper looks at the file, and at `event` */
    int event;          /* of the kernel: ends that look */
};

int bell_open(struct bell *b, hvd_error *err);
void bell_close(struct bell *b); /* nobody sleeps; also takes one that could not be opened */

void bell_ring(struct bell *b);
/* Take a ticket, look for work, sleep on the ticket: a ring in between ends the sleep at once. */
unsigned bell_listen(struct bell *b);
/* May return early. */
void bell_sleep(struct bell *b, unsigned ticket, int file, double seconds);

#endif

/* Two ways to sleep until a file can be read: a poller, with a thread of its own, and a bell,
 * for any thread.
 *
 * When a file can be read, the poller's thread calls the file's handler. Pollers serve events
 * that ring no doorbell: data on sockets, and ends of processes. Files are added before the
 * thread starts. */
#ifndef HVDLITE_BASE_POLLER_H
#define HVDLITE_BASE_POLLER_H

#include "base/sync.h"

#include <stdatomic.h>

struct poller;

/* Reads the file's data. False: stop watching the file. */
typedef bool poller_handler(void *arg, int file);

int poller_new(struct poller **out, hvd_error *err);

/* The caller owns the file and closes it after poller_free. */
int poller_add(struct poller *p, int file, poller_handler *handler, void *arg, hvd_error *err);

/* `name`: the thread's name. */
int poller_start(struct poller *p, const char *name, hvd_error *err);

/* Ends the thread, if it was started. NULL does nothing. */
void poller_free(struct poller *p);

/* A bell wakes threads of this process, which sleep until the bell rings or a file can be read.
 * Any thread rings; any number of threads sleep. One sleeper watches the file and wakes the
 * others. Between processes the doorbell does the same, without files (shm/doorbell.h). */
struct bell {
    struct mutex mutex; /* guards what follows */
    atomic_uint rings;  /* written under the mutex */
    bool watched;       /* a sleeper watches the file and `event` */
    int event;          /* an eventfd: a write ends that sleeper's poll */
};

int bell_open(struct bell *b, hvd_error *err);
/* while no thread sleeps on the bell; also after bell_open failed */
void bell_close(struct bell *b);

void bell_ring(struct bell *b);
/* Take a ticket, look for work, sleep on the ticket: a ring in between ends the sleep at once. */
unsigned bell_listen(struct bell *b);
/* May return early. */
void bell_sleep(struct bell *b, unsigned ticket, int file, double seconds);

#endif

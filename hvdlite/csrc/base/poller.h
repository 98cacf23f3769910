/* How threads sleep until a file can be read: in a poller, or on a bell (below).
 *
 * A poller has a thread, which calls a file's handler when the file can be read. Pollers watch
 * sockets for data, and pidfds for the ends of processes. First add all files, then start. */
#ifndef HVDLITE_BASE_POLLER_H
#define HVDLITE_BASE_POLLER_H

#include "base/os.h"

#include <stdatomic.h>

struct poller;

/* Reads the file's data. Returns false to stop watching the file. */
typedef bool poller_handler(void *arg, int file);

int poller_new(struct poller **out, hvd_error *err);

/* The caller owns the file and closes it after poller_free. */
int poller_add(struct poller *p, int file, poller_handler *handler, void *arg, hvd_error *err);

/* `name`: the thread's name. */
int poller_start(struct poller *p, const char *name, hvd_error *err);

bool poller_can_read(int file); /* any thread; no poller is needed */

/* Ends the thread if it was started. NULL is allowed. */
void poller_free(struct poller *p);

/* A bell: threads of this process sleep until another thread rings the bell, or until a file can be
 * read. Any number of threads may sleep. One of them watches the file and wakes the others. A
 * doorbell (shm/doorbell.c) wakes threads of other processes, but watches no file. */
struct bell {
    struct mutex mutex; /* guards the fields below */
    atomic_uint rings;  /* written under the mutex */
    bool watched;       /* a sleeping thread polls the file and `event` */
    int event;          /* an eventfd; a write ends the poll of that thread */
};

int bell_open(struct bell *b, hvd_error *err);
/* Call bell_close when no thread sleeps on the bell. bell_open may have failed. */
void bell_close(struct bell *b);

void bell_ring(struct bell *b);
/* Returns a ticket. Take the ticket, look for work, then sleep with the ticket: if the bell rings
 * after bell_listen, bell_sleep returns immediately. */
unsigned bell_listen(struct bell *b);
/* May return early. */
void bell_sleep(struct bell *b, unsigned ticket, int file, double seconds);

#endif

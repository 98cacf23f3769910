/* A poller: a thread that sleeps until one of its files can be read, then calls its handler.
 *
 * For events without a doorbell: sockets and exits of processes. Handlers run on the poller's
 * thread; files are added before it starts. With nothing to read it costs nothing. */
#ifndef HVDLITE_BASE_POLLER_H
#define HVDLITE_BASE_POLLER_H

#include "base/error.h"

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

#endif

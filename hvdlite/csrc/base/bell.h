/* A bell: wakes the threads of this process that sleep until it rings or a file can be read.
 *
 * Any thread rings, and any number of threads sleep; the one that looks at the file wakes the
 * others. For processes there is the doorbell, which knows no files (shm/doorbell.h). */
#ifndef HVDLITE_BASE_BELL_H
#define HVDLITE_BASE_BELL_H

#include "base/sync.h"

#include <stdatomic.h>

struct bell {
    struct monitor monitor; /* guards what follows */
    atomic_uint rings;      /* written under the monitor */
    bool watched;           /* a sleeper looks at the file, and at `event` */
    int event;              /* of the kernel: ends that look */
};

int bell_open(struct bell *b, hvd_error *err);
void bell_close(struct bell *b); /* nobody sleeps; also takes one that could not be opened */

void bell_ring(struct bell *b);
/* Take a ticket, look for work, sleep on the ticket: a ring in between ends the sleep at once. */
unsigned bell_listen(struct bell *b);
/* May return early. */
void bell_sleep(struct bell *b, unsigned ticket, int file, double seconds);

#endif

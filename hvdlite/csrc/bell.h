/* Bells: how a rank that sleeps is woken by another process of its host.
 *
 * Layer 2. MPI can only be polled; a bell is a word of shared memory that the sleeper waits on with
 * a futex and everyone of the host may ring. The memory is made by one rank, mapped by all, and
 * unlinked as soon as they have it, so that not even kill -9 leaves anything behind. Mode 0600. */
#ifndef HVDLITE_BELL_H
#define HVDLITE_BELL_H

#include "error.h"

#include <stdbool.h>

struct bells;

enum { BELL_NAME = 64 };

/* Makes n bells and puts the name into `name`; the others open it, then the maker unlinks it. */
int bells_create(struct bells **out, int n, char name[BELL_NAME], hvd_error *err);
int bells_open(struct bells **out, int n, const char *name, hvd_error *err);
void bells_unlink(const char *name);
/* Bells of this process alone, for where shared memory can't be had. NULL: no memory. */
struct bells *bells_private(int n);
void bells_close(struct bells *b);

/* Any thread of any process of the host. */
void bell_ring(struct bells *b, int which);
/* The one sleeper of a bell: take a ticket, look for work, sleep; a ring since the ticket ends it.
 */
unsigned bell_listen(struct bells *b, int which);
void bell_sleep(struct bells *b, int which, unsigned ticket, double seconds);

#endif

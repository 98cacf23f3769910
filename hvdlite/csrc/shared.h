/* Shared memory: made by one process of a host, mapped by all, gone when the last of them ends.
 *
 * Layer 2. The one door to shm_open. Mode 0600; the maker unlinks it as soon as all have mapped it, so
 * that not even kill -9 leaves anything behind. Pages are there from the beginning: a full /dev/shm
 * is an error of shared_create, never a fault later. */
#ifndef HVDLITE_SHARED_H
#define HVDLITE_SHARED_H

#include "error.h"

#include <stddef.h>

enum { SHARED_NAME = 64 };

/* Zeroed memory of `bytes`, and into `name` what the others open it by. */
int shared_create(void **memory, size_t bytes, char name[SHARED_NAME], hvd_error *err);
int shared_open(void **memory, size_t bytes, const char *name, hvd_error *err);
void shared_unlink(const char *name);
void shared_close(void *memory, size_t bytes);

#endif

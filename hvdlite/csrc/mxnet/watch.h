/* Tells, without waiting, whether NDArrays have been written.
 *
 * An empty operation reads the arrays. MXNet runs it when all that was pushed before is done, or
 * drops it when one of the arrays has failed. */
#ifndef HVDLITE_MXNET_WATCH_H
#define HVDLITE_MXNET_WATCH_H

#include "mxnet/push.h"

/* cdef begin */
typedef struct hvd_mxnet_watch hvd_mxnet_watch;

/* Watches what was pushed so far on n arrays, given by their handles; NULL: see *err. */
hvd_mxnet_watch *hvd_mxnet_watch_start(hvd_mxnet *lib, void **arrays, int n, hvd_error *err);
/* 1: they are done, or have failed; 0: not yet. */
int hvd_mxnet_watch_done(hvd_mxnet_watch *w);
void hvd_mxnet_watch_end(hvd_mxnet_watch *w); /* at any time */
/* cdef end */

#endif

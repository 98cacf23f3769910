/* Tells, without waiting, whether NDArrays have been written.
 *
 * An operation that does nothing reads the arrays: MXNet runs it, or drops it where one of them
 * has failed, when all that was pushed before is done. */
#ifndef HVDLITE_MXNET_WATCH_H
#define HVDLITE_MXNET_WATCH_H

#include "mxnet/push.h"

/* cdef begin */
typedef struct hvd_mxnet_watch hvd_mxnet_watch;

/* Of the work on n arrays, given by their handles, that has been pushed so far; NULL: see *err. */
hvd_mxnet_watch *hvd_mxnet_watch_start(hvd_mxnet *lib, void **arrays, int n, hvd_error *err);
/* 1: it is done, or has failed; 0: not yet. */
int hvd_mxnet_watch_done(hvd_mxnet_watch *w);
void hvd_mxnet_watch_end(hvd_mxnet_watch *w); /* at any time */
/* cdef end */

#endif

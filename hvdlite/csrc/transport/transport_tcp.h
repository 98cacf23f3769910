/* Ranks as processes joined by streams: the transport of jobs without MPI.
 *
 * It is given connected sockets, of TCP or of any other stream. On one host with a window it does
 * as transport_mpi: messages pass through mailboxes, and a rank sleeps on its doorbell. Else all
 * that waits sleeps until a stream has news. */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_TCP_H
#define HVDLITE_TRANSPORT_TRANSPORT_TCP_H

#include "transport/transport.h"

/* Collective. Owns the descriptors from now on, also if it fails. If `window`, the ranks of one
 * host share a window where they can. timeout: seconds until a wait for another rank fails; 0:
 * never. */
int transport_tcp_open(struct transport **out, const hvd_sockets *sockets, bool window,
                       double timeout, hvd_error *err);

/* Collective over the ranks: opens the transport of a group of the job whose transport is `job`,
 * which must be closed last. number: > 0, the same on all of them and new in this job. */
int transport_tcp_open_among(struct transport **out, struct transport *job, const int *ranks,
                             int size, int number, bool window, hvd_error *err);

#endif

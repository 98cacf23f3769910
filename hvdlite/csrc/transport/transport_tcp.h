/* Ranks as processes joined by streams: the transport of jobs without MPI.
 *
 * The caller provides connected stream sockets, TCP or other. If all ranks share a window, messages
 * pass through mailboxes and a rank sleeps on its doorbell, as in transport_mpi. Else a waiting
 * rank sleeps until a stream can be read or written. */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_TCP_H
#define HVDLITE_TRANSPORT_TRANSPORT_TCP_H

#include "transport/transport.h"

/* Collective. Owns the descriptors from now on, also if it fails. If `window`, the ranks of one
 * host share a window if they can. timeout: seconds until a wait for another rank fails; 0:
 * never. */
int transport_tcp_open(struct transport **out, const hvd_sockets *sockets, bool window,
                       double timeout, hvd_error *err);

/* Collective over `ranks`: opens the transport of a group in the job whose transport is `job`;
 * close `job` last. number: > 0, the same on all these ranks and new in this job. */
int transport_tcp_open_among(struct transport **out, struct transport *job, const int *ranks,
                             int size, int number, bool window, hvd_error *err);

#endif

/* Ranks as threads of one process: the transport of the C tests.
 *
 * Every rank's transport comes from one hub. Sends are copied and complete at once, in
 * order; a fault can be put in, which real MPI seldom does on demand. */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_LOCAL_H
#define HVDLITE_TRANSPORT_TRANSPORT_LOCAL_H

#include "transport/transport.h"

struct local_hub;

/* per_host: ranks that count as one host, in blocks; 0: all of them. NULL: no memory. */
struct local_hub *local_hub_new(int size, int per_host);
void local_hub_free(struct local_hub *hub); /* after every rank's thread has ended */

/* Gives the ranks of each host a window. Before they start; false: no memory. */
bool local_hub_share(struct local_hub *hub);

/* The transport of one rank; it belongs to the hub. */
struct transport *local_hub_rank(struct local_hub *hub, int rank);

/* From now on every data transfer of this rank fails with HVD_TRANSPORT. Any thread. */
void local_hub_break(struct local_hub *hub, int rank);

#endif

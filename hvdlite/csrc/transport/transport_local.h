/* Ranks as threads of one process: the transport of the C tests.
 *
 * One hub has the transports of all ranks. Sends are copied and complete at once, in order. Tests
 * can inject a fault, which MPI rarely shows on demand. */
#ifndef HVDLITE_TRANSPORT_TRANSPORT_LOCAL_H
#define HVDLITE_TRANSPORT_TRANSPORT_LOCAL_H

#include "transport/transport.h"

struct local_hub;

/* per_host: consecutive ranks that count as one host; 0: all ranks. NULL: no memory. */
struct local_hub *local_hub_new(int size, int per_host);
/* lowest: [rank]: the lowest rank of its host. */
struct local_hub *local_hub_on(int size, const int *lowest);
void local_hub_free(struct local_hub *hub); /* after every rank's thread has ended */

/* Gives the ranks of each host a window, before they start. False: no memory. */
bool local_hub_share(struct local_hub *hub);

/* The transport of one rank; the hub owns it. */
struct transport *local_hub_rank(struct local_hub *hub, int rank);

/* From now on every data transfer of this rank fails with HVD_TRANSPORT. Any thread. */
void local_hub_break(struct local_hub *hub, int rank);

#endif

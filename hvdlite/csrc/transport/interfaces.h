/* The IPv4 addresses of this host, on the networks that the user allows.
 *
 * Any thread may ask. */
#ifndef HVDLITE_TRANSPORT_INTERFACES_H
#define HVDLITE_TRANSPORT_INTERFACES_H

#include <stdint.h>

/* Fills in up to `most` addresses, in network order; returns how many there are. `wanted`: names of
 * interfaces and networks ("eth0,10.1.0.0/16"); NULL: all but the loopback. */
int interfaces_find(const char *wanted, uint32_t *addresses, int most);

#endif

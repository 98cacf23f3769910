"""The address of each rank's host, for libraries that open their own sockets."""

import socket
from typing import Dict, List

from hvdlite.core import topology
from hvdlite.core.objects import allgather_object
from hvdlite.launch import probe


def addresses_of_ranks() -> List[str]:
    """Return for each rank the IPv4 address at which other ranks reach its host. Collective.

    If all ranks are on one host, the address is the loopback, so nothing listens on the network.
    """
    everyone = allgather_object((socket.gethostname(), probe.interfaces()), "addresses")
    if topology.local_size() == topology.size():
        return ["127.0.0.1"] * topology.size()
    name, own = everyone[topology.rank()]
    others = [interfaces for host, interfaces in everyone if host != name]
    return allgather_object(_address_towards(own, others), "addresses.chosen")


def _address_towards(own: Dict[str, str], others: List[Dict[str, str]]) -> str:
    """Return the address from which this host sends to the first reachable other host."""
    for interfaces in others:
        for address in interfaces.values():
            here = address in own.values()  # the loopback, or a bridge that every host has
            source = None if here else probe.source_towards(address)
            if source:
                return source
    return next((a for a in own.values() if not a.startswith("127.")), "127.0.0.1")

"""The addresses at which hosts reach each other."""

import socket
from typing import Dict, List

from hvdlite.core import probe, topology
from hvdlite.core.listening import INTERFACES
from hvdlite.core.native import HvdliteError
from hvdlite.core.objects import allgather_object


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


def address_on(wanted: List[str]) -> str:
    """Return this host's address on the interfaces and networks that the user allows."""
    for name, address in probe.interfaces().items():
        if probe.is_on(name, address, wanted):
            return address
    raise HvdliteError(
        f"init(): {INTERFACES}, or DMLC_INTERFACE, is {','.join(wanted)}: this host has no address "
        "there"
    )

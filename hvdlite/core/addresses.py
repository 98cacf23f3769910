"""The addresses at which hosts reach each other."""

from typing import List

from hvdlite.core.listening import INTERFACES
from hvdlite.core.native import HvdliteError
from hvdlite.core.objects import allgather_object
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.core.shared_memory import own_host
from hvdlite.machine import probe


def joined(host: str, port: int) -> str:
    """Return "host:port". An IPv6 address gets brackets, because it contains colons.

    >>> joined("10.0.0.1", 9400), joined("::1", 9400)
    ('10.0.0.1:9400', '[::1]:9400')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def addresses_of_ranks(process_set: ProcessSet = global_process_set) -> List[str]:
    """Return for each rank of the set the address at which the other ranks reach the rank's host.

    The address is IPv6 only if the hosts have no IPv4 address. If all ranks are on one host, the
    address is the loopback address, so nothing listens on the network. Collective over the set.
    """
    own = own_host().number, [*probe.interfaces().values(), *probe.ipv6_addresses()]
    everyone = allgather_object(own, "addresses", process_set)
    others = [addresses for host, addresses in everyone if host != own[0]]
    if len({host for host, _ in everyone}) == 1:
        return ["127.0.0.1"] * len(everyone)
    return allgather_object(_address_towards(own[1], others), "addresses.chosen", process_set)


def _address_towards(own: List[str], others: List[List[str]]) -> str:
    """Return the address from which this host sends to the first reachable one of ``others``."""
    for address in (address for addresses in others for address in addresses):
        # an address that this host has, too (of a container bridge), leads to no other host
        source = None if address in own else probe.source_towards(address)
        if source:
            return source
    return next((a for a in own if not a.startswith("127.")), "127.0.0.1")


def address_on(wanted: List[str]) -> str:
    """Return this host's address on the interfaces and networks that the user allows."""
    for name, address in probe.interfaces().items():
        if probe.is_on(name, address, wanted):
            return address
    raise HvdliteError(
        f"init(): {INTERFACES}, or DMLC_INTERFACE, is {','.join(wanted)}: this host has no "
        f"address on these interfaces or networks: name one of {', '.join(probe.interfaces())}"
    )

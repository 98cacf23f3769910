"""The addresses at which agents reach the launcher, on the networks that the user allows."""

import ipaddress
import socket
from typing import List, Optional

from hvdlite.launch import probe

LOOPBACK = "127.0.0.1"


def listening_addresses(remote: bool, wanted: List[str], hosts: List[str]) -> List[str]:
    """Return this host's addresses for agents; the last one is the loopback, for local agents.

    :param remote: the job has other hosts.
    :param wanted: the networks that the user allows; empty: all of them.
    :param hosts: the known hosts of the job; only addresses on a route to them are returned.
    """
    if not remote:
        return [LOOPBACK]
    allowed = [a for n, a in probe.interfaces().items() if not wanted or _allowed(n, a, wanted)]
    ways = [_way_to(host) for host in hosts]
    if ways and not wanted and None not in ways:
        allowed = [address for address in allowed if address in ways]
    return [*(a for a in allowed if not a.startswith("127.")), LOOPBACK]


def _way_to(host: str) -> Optional[str]:
    """Return the source address of packets from here to the host; sends no packet."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((socket.gethostbyname(host), 9))
            return sock.getsockname()[0]
    except OSError:  # a name that only ssh knows
        return None


def unknown_interface(wanted: List[str]) -> Optional[str]:
    """Return the first interface or network (10.1.0.0/16) that this host lacks, or None."""
    own = probe.interfaces()
    return next((w for w in wanted if not any(_allowed(n, a, [w]) for n, a in own.items())), None)


def _allowed(name: str, address: str, wanted: List[str]) -> bool:
    return any(
        ipaddress.ip_address(address) in ipaddress.ip_network(w, strict=False)
        if "/" in w
        else w == name
        for w in wanted
    )

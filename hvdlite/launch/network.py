"""Where agents find the launcher, and which networks the user allows."""

import ipaddress
import socket
from typing import List, Optional

from hvdlite.launch import probe

LOOPBACK = "127.0.0.1"


def listening_addresses(remote: bool, wanted: List[str], hosts: List[str]) -> List[str]:
    """Return this host's addresses that ranks come to; the loopback last, for those on this host.

    :param remote: other hosts take part.
    :param wanted: the networks that the user allows; empty: all of them.
    :param hosts: of the job, as far as they are known: then only the ways to them count.
    """
    if not remote:
        return [LOOPBACK]
    allowed = [a for n, a in probe.interfaces().items() if not wanted or _allowed(n, a, wanted)]
    ways = [_way_to(host) for host in hosts]
    if ways and not wanted and None not in ways:
        allowed = [address for address in allowed if address in ways]
    return [*(a for a in allowed if not a.startswith("127.")), LOOPBACK]


def _way_to(host: str) -> Optional[str]:
    """Return the address of this host that packets to that one come from; sends none."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect((socket.gethostbyname(host), 9))
            return sock.getsockname()[0]
    except OSError:  # a name that only ssh knows
        return None


def unknown_interface(wanted: List[str]) -> Optional[str]:
    """Return the first of these that this host lacks; a network (10.1.0.0/16) is no interface."""
    own = probe.interfaces()
    return next((w for w in wanted if not any(_allowed(n, a, [w]) for n, a in own.items())), None)


def _allowed(name: str, address: str, wanted: List[str]) -> bool:
    return any(
        ipaddress.ip_address(address) in ipaddress.ip_network(w, strict=False)
        if "/" in w
        else w == name
        for w in wanted
    )

"""Where agents find the launcher, and which networks the user allows."""

import ipaddress
from typing import List, Optional

from hvdlite.launch import probe


def listening_address(remote: bool) -> str:
    """Return the address to listen on: other hosts reach the launcher only if there are any."""
    return "0.0.0.0" if remote else "127.0.0.1"


def offered_addresses(remote: bool, wanted: List[str]) -> List[str]:
    """Return this host's addresses for agents to try; the loopback last, for those on this host."""
    if not remote:
        return ["127.0.0.1"]
    own = probe.interfaces()
    allowed = [a for name, a in own.items() if not wanted or _allowed(name, a, wanted)]
    return [*(a for a in allowed if not a.startswith("127.")), "127.0.0.1"]


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

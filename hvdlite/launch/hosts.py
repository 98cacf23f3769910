"""Reads host lists and host files, and places processes on the hosts."""

import re
import socket
from typing import List, NamedTuple, Optional, Tuple

from hvdlite.core.files import text_of

MOST_SLOTS = 1024  # more is an ssh port: MXNet's host files have `host:port`


class Host(NamedTuple):
    """A host of the job; without slots it gets an even share of the processes."""

    name: str
    slots: Optional[int] = None


def parse_list(text: str) -> List[Host]:
    """Parse the host list of Horovod and MPI.

    >>> parse_list("server1:4, server2")
    [Host(name='server1', slots=4), Host(name='server2', slots=None)]
    """
    return _checked([_parse_host(part.strip()) for part in text.split(",") if part.strip()], text)


def read_file(path: str) -> List[Host]:
    """Read a host file: a host a line, then `slots=4`, or `host:4`; # starts a comment."""
    try:
        text = text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise ValueError(f"host file {path}: {why}; a list is host1:4,host2:4") from error
    lines = [line.split("#")[0].strip() for line in text.splitlines()]
    return _checked([_parse_line(line) for line in lines if line], path)


def _parse_line(line: str) -> Host:
    name, *words = re.sub(r"\s*=\s*", "=", line).split()
    slots = [word[len("slots=") :] for word in words if word.startswith("slots=")]
    return _parse_host(":".join([name, *slots]))


def _parse_host(text: str) -> Host:
    match = re.fullmatch(r"([^:\s]+)(?::(\d+))?", text)
    if not match:
        raise ValueError(f"'{text}' is no host: expected NAME or NAME:SLOTS")
    name, slots = match.groups()
    if slots is not None and not 0 < int(slots) <= MOST_SLOTS:
        raise ValueError(
            f"'{text}': a host takes 1 to {MOST_SLOTS} ranks (is that its ssh port? use --ssh-port)"
        )
    return Host(name, int(slots) if slots else None)


def _checked(hosts: List[Host], where: str) -> List[Host]:
    if not hosts:
        raise ValueError(f"there is no host in '{where}'")
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"host {twice} is in '{where}' twice: give it once, with its slots")
    return hosts


def place(hosts: List[Host], processes: int) -> List[Tuple[str, int]]:
    """Return the number of processes of each host; neighbouring ranks share a host.

    >>> place([Host("a"), Host("b")], 5)
    [('a', 3), ('b', 2)]
    >>> place([Host("a", 4), Host("b", 4)], 5)
    [('a', 4), ('b', 1)]
    """
    placed, left = [], processes
    for i, host in enumerate(hosts):
        share = -(-left // (len(hosts) - i)) if host.slots is None else host.slots
        count = min(left, share)
        left -= count
        if count:
            placed.append((host.name, count))
    if left:
        raise ValueError(
            f"{processes} processes do not fit on {processes - left} slots: give the hosts more "
            "slots, or start fewer"
        )
    return placed


def place_servers(placed: List[Tuple[str, int]], servers: int) -> List[Tuple[str, int]]:
    """Add a scheduler to the first host and servers around all of them; they take no slots.

    >>> place_servers([("a", 1), ("b", 1)], 3)
    [('a', 4), ('b', 2)]
    """
    more = [len(range(i, servers, len(placed))) for i in range(len(placed))]
    more[0] += 1
    return [(host, count + extra) for (host, count), extra in zip(placed, more)]


def is_here(name: str) -> bool:
    """Tell whether the name is this machine's: only its own addresses can be bound."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        with socket.socket() as sock:
            sock.bind((socket.gethostbyname(name), 0))
        return True
    except (OSError, UnicodeError):  # the latter: no name of a host is so long
        return False

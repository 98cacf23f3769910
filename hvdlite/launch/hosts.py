"""Reads host lists and host files, and places processes on the hosts."""

import re
import socket
from typing import List, NamedTuple, Optional, Tuple

from hvdlite.core.files import text_of

MOST_SLOTS = 1024  # a larger number is an ssh port: MXNet's host files have `host:port`
_LIMITS = ("max_slots", "max-slots")  # Open MPI's limit of ranks beyond the slots


class Host(NamedTuple):
    """A host of the job; without slots it gets an even share of the processes."""

    name: str
    slots: Optional[int] = None


def named(text: str, slots: Optional[int] = None) -> Host:
    """Check a host's name, and return the host. A name is NAME or USER@NAME.

    A name that begins with - would be an option of ssh.

    >>> named("me@server-1", 4)
    Host(name='me@server-1', slots=4)
    """
    if not re.fullmatch(r"(?:[\w.][\w.+-]*@)?[\w.][\w.-]*", text):
        raise ValueError(f"'{text}' is no host: expected NAME or NAME:SLOTS")
    if slots is not None and not 0 < slots <= MOST_SLOTS:
        raise ValueError(
            f"'{text}:{slots}': a host takes 1 to {MOST_SLOTS} ranks (is that its ssh port? use "
            "--ssh-port)"
        )
    return Host(text, slots)


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
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found += [_parse_line(words) for words in [line.partition("#")[0].strip()] if words]
        except ValueError as error:
            raise ValueError(f"host file {path}, line {number}: {error}") from None
    return _checked(found, path)


def _parse_line(line: str) -> Host:
    name, *words = re.sub(r"\s*=\s*", "=", line).split()
    slots = ""
    for word in words:
        key, _, value = word.partition("=")
        if key == "slots" and not slots and ":" not in name:
            slots = f":{value}"
        elif key not in _LIMITS or not value.isdigit():
            raise ValueError(f"'{word}' is unknown: expected one host a line, then slots=NUMBER")
    return _parse_host(name + slots)


def _parse_host(text: str) -> Host:
    name, colon, slots = text.partition(":")
    if colon and not re.fullmatch("[0-9]{1,9}", slots):
        raise ValueError(f"'{text}' is no host: expected NAME or NAME:SLOTS")
    return named(name, int(slots) if colon else None)


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


def place_servers(
    hosts: List[Host], placed: List[Tuple[str, int]], servers: int
) -> List[Tuple[str, List[str]]]:
    """Return the kinds of processes on each host of a job with servers, in order.

    The scheduler is on the first host. Hosts get servers in turn, first the hosts without workers
    in ``placed``; servers take no slots.

    >>> place_servers([Host("a"), Host("b")], [("a", 1), ("b", 1)], 1)
    [('a', ['scheduler', 'server', 'worker']), ('b', ['worker'])]
    >>> place_servers([Host("a", 2), Host("b", 2), Host("c", 2)], [("a", 2)], 1)
    [('a', ['scheduler', 'worker', 'worker']), ('b', ['server'])]
    """
    workers = dict(placed)
    in_turn = sorted((host.name for host in hosts), key=workers.__contains__)
    serving = [in_turn[i % len(in_turn)] for i in range(servers)]
    kinds = [
        (name, ["server"] * serving.count(name) + ["worker"] * workers.get(name, 0))
        for name in (host.name for host in hosts)
    ]
    kinds[0][1].insert(0, "scheduler")
    return [(name, of_host) for name, of_host in kinds if of_host]


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

"""The hosts of a job: reads lists of hosts, and makes the ssh command that reaches a host."""

import os
import re
import shlex
import socket
from typing import List, NamedTuple, Optional

from hvdlite.machine.files import text_of

# a larger number is probably an ssh port, because MXNet's host files have `host:port`
MOST_SLOTS = 1024
_LIMITS = ("max_slots", "max-slots")  # Open MPI's names of the most ranks that a host may have


class Host(NamedTuple):
    """A host of the job. A host without slots gets an equal share of the processes."""

    name: str
    slots: Optional[int] = None


class SSH(NamedTuple):
    """How to reach a host."""

    program: List[str] = ["ssh"]  # the command and its options
    port: Optional[int] = None
    identity: Optional[str] = None

    def command(self) -> List[str]:
        """Return the ssh command up to the host's name, with options so that ssh never asks."""
        options = ["-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"]
        options += ["-o", "ConnectTimeout=10"]
        options += ["-p", str(self.port)] if self.port else []
        options += ["-i", self.identity] if self.identity else []
        return [*self.program, *options]


def users_ssh(port: Optional[int] = None, identity: Optional[str] = None) -> SSH:
    """Return the ssh program from HVDLITE_SSH, or ``ssh``, with this port and identity."""
    return SSH(shlex.split(os.environ.get("HVDLITE_SSH") or "ssh"), port, identity)


def named(text: str, slots: Optional[int] = None) -> Host:
    """Check a host's name, NAME or USER@NAME; return the host.

    A name must not begin with -, because ssh would take it for an option.

    >>> named("me@server-1", 4)
    Host(name='me@server-1', slots=4)
    """
    if not re.fullmatch(r"(?:[\w.][\w.+-]*@)?[\w.][\w.-]*", text):
        raise ValueError(f"'{text}' is not a host: expected NAME or NAME:SLOTS")
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
    return _check([_parse_host(part.strip()) for part in text.split(",") if part.strip()], text)


def read_file(path: str) -> List[Host]:
    """Read a host file. A line is `host slots=4` or `host:4`; # starts a comment."""
    try:
        text = text_of(path)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a text file"
        raise ValueError(
            f"host file {path}: {why}; a list of hosts has the form host1:4,host2:4"
        ) from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            content = line.partition("#")[0].strip()
            found += [_parse_line(content)] if content else []
        except ValueError as error:
            raise ValueError(f"host file {path}, line {number}: {error}") from None
    return _check(found, path)


def _parse_line(line: str) -> Host:
    name, *settings = re.sub(r"\s*=\s*", "=", line).split()
    slots = ""
    for word in settings:
        key, _, value = word.partition("=")
        if key == "slots" and not slots and ":" not in name:
            slots = f":{value}"
        elif key not in _LIMITS or not value.isdigit():
            raise ValueError(
                f"'{word}' is unknown: expected one host in each line, and slots=NUMBER after it"
            )
    return _parse_host(name + slots)


def _parse_host(text: str) -> Host:
    name, colon, slots = text.partition(":")
    if colon and not re.fullmatch("[0-9]{1,9}", slots):
        raise ValueError(f"'{text}' is not a host: expected NAME or NAME:SLOTS")
    return named(name, int(slots) if colon else None)


def _check(hosts: List[Host], where: str) -> List[Host]:
    if not hosts:
        raise ValueError(f"there is no host in '{where}'")
    names = [host.name for host in hosts]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise ValueError(f"host {twice} is in '{where}' twice: give it once, with its slots")
    return hosts


def is_here(name: str) -> bool:
    """Return True if the name is this machine's: a socket can be bound to the name's address."""
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        with socket.socket() as sock:
            sock.bind((socket.gethostbyname(name), 0))
        return True
    except (OSError, UnicodeError):  # UnicodeError: the name is too long
        return False

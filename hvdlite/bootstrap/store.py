"""Store: named values that the processes of a job share, such as the place where ranks meet.

MPI and most launchers tell the ranks the meeting place, so no store is needed. A program that
starts its own ranks uses PyTorch's store; a job of MXNet's launcher uses the store of MXNet's
servers.
"""

import json
import os
from datetime import timedelta
from typing import List, Protocol, Union

from hvdlite.core import places

_KEY = "hvdlite/place"


class Store(Protocol):
    """A part of the interface of ``torch.distributed.Store``."""

    def set(self, key: str, value: str) -> None:
        """Set a value, for all processes."""

    def get(self, key: str) -> Union[bytes, str]:
        """Return a value that has been set."""

    def wait(self, keys: List[str], timeout: timedelta) -> None:
        """Wait until processes have set these values.

        :raises RuntimeError: a value is missing after the timeout.
        """


def place(
    store: Store, launcher: str, rank: int, size: int, host: str, timeout: timedelta
) -> places.Place:
    """Return where the ranks meet: rank 0 chooses a port and a key. Collective.

    :param launcher: the name of the program that started the ranks, for error texts.
    :param host: the address at which the other ranks reach this rank.
    """
    if rank == 0:
        store.set(_KEY, json.dumps([host, places.free_port(), os.urandom(16).hex()]))
    store.wait([_KEY], timeout)
    where, port, key = json.loads(store.get(_KEY))
    return places.Place(launcher, rank, size, where, places.ports_from(port), f"store {key}")

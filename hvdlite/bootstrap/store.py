"""Store: values by name that the processes of a job share. By one the ranks learn where they meet.

MPI and most launchers tell each process its place. Where a program starts its ranks itself, it has
PyTorch's store; where MXNet's launcher does, there are MXNet's servers.
"""

import json
import os
from datetime import timedelta
from typing import List, Protocol, Union

from hvdlite.core import start

_KEY = "hvdlite/place"


class Store(Protocol):
    """The shape of ``torch.distributed.Store``, of which this is a part."""

    def set(self, key: str, value: str) -> None:
        """Set a value, for all processes."""

    def get(self, key: str) -> Union[bytes, str]:
        """Return a value that has been set."""

    def wait(self, keys: List[str], timeout: timedelta) -> None:
        """Return when some process has set these values.

        :raises RuntimeError: that takes longer than the timeout.
        """


def place(
    store: Store, launcher: str, rank: int, size: int, host: str, timeout: timedelta
) -> start.Place:
    """Return where the ranks meet; rank 0 chooses a port and a key. Collective.

    :param launcher: what has started the ranks, for errors.
    :param host: where the other ranks reach this one.
    """
    if rank == 0:
        store.set(_KEY, json.dumps([host, start.free_port(), os.urandom(16).hex()]))
    store.wait([_KEY], timeout)
    where, port, key = json.loads(store.get(_KEY))
    return start.Place(launcher, rank, size, where, start.ports_from(port), f"store {key}")

"""Makes the ranks of a program meet if ``torch.multiprocessing.spawn`` has started them.

No launcher has told these ranks where they meet, but the program has given them PyTorch's store.
"""

import socket
from datetime import timedelta

import torch.distributed as dist

from hvdlite.core import member, places, start


def tell(store, rank: int, size: int, timeout: timedelta) -> None:
    """Make the job's ranks meet by the store, unless MPI or a launcher tells them the place.

    After the first init() do nothing, because init() has decided how the job starts. A child of a
    rank inherits the rank's environment, so the child needs a place even if it is the only rank.
    """
    if start.is_decided() or start.has_mpi_ranks():
        return
    known = start.place()
    has_place = known != places.ALONE or not member.rank_above()
    if has_place and (size == 1 or (known and (known.rank, known.size) == (rank, size))):
        return
    found = places.place_by_store(store, "its program", rank, size, _host(store), timeout)
    start.set_place(found)


def own_address(store) -> str:
    """Return the address at which the store's other processes reach this process."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((_host(store), 1))  # connecting UDP sends nothing: it only chooses a route
        except OSError:  # the store's host has an IPv6 address
            return socket.gethostname()
        return sock.getsockname()[0]


def _host(store) -> str:
    """Return rank 0's host: for a TCPStore the host of its server, otherwise this host."""
    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    return store.host if isinstance(store, dist.TCPStore) else "127.0.0.1"

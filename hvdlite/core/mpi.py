"""Calls MPI, through mpi4py. No other Python module calls MPI.

Importing ``mpi4py.MPI`` initializes MPI, so only :func:`load` imports it. The other functions use
the MPI that :func:`load` or the script has imported.
"""

import os
import sys
from array import array
from typing import Any, Callable, Iterator, List, Optional, Sequence

# Tags of messages. Every MPI has tags up to 32,767.
_VALUE, ARRIVED, ENDED = 32_765, 32_766, 32_767


def load() -> None:
    """Import mpi4py's MPI, which initializes MPI unless ``mpi4py.rc.initialize`` is False."""
    from mpi4py import MPI  # noqa: F401


def _mpi() -> Any:
    """Return mpi4py's MPI if it has been imported, else None."""
    mpi = sys.modules.get("mpi4py.MPI")
    # the import of mpi4py may still be in progress
    return mpi if hasattr(mpi, "Is_initialized") else None


def is_initialized() -> bool:
    """Return True if MPI has been initialized, even if it is finalized now."""
    return _mpi() is not None and _mpi().Is_initialized()


def is_finalized() -> bool:
    return _mpi() is not None and _mpi().Is_finalized()


def is_running() -> bool:
    return is_initialized() and not is_finalized()


def initialize() -> None:
    _mpi().Init_thread(_mpi().THREAD_MULTIPLE)


def finalize() -> None:
    _mpi().Finalize()


def before_finalize(function: Callable[[], None]) -> None:
    """Make MPI_Finalize call the function first, when it deletes the attributes of COMM_SELF."""
    keyval = _mpi().Comm.Create_keyval(delete_fn=lambda comm, key, value: function())
    _mpi().COMM_SELF.Set_attr(keyval, None)


def abort(code: int) -> None:
    _mpi().COMM_WORLD.Abort(code)


def version() -> str:
    return _mpi().Get_library_version()


def allows_threads() -> bool:
    """Return True if several threads may call MPI at the same time."""
    return _mpi().Query_thread() >= _mpi().THREAD_MULTIPLE


def ranks() -> int:
    """Return how many ranks MPI has; 0: neither mpi4py nor the script has initialized MPI."""
    return _mpi().COMM_WORLD.size if is_running() else 0


def rank() -> int:
    """Return this process's rank in MPI_COMM_WORLD."""
    return _mpi().COMM_WORLD.rank


def is_communicator(value: Any) -> bool:
    return _mpi() is not None and isinstance(value, _mpi().Comm)


def is_null(comm: Any) -> bool:
    """Return True for MPI_COMM_NULL: this process is in none of the communicators of a split."""
    return comm == _mpi().COMM_NULL


def address_of(comm: Any) -> int:
    """Return the address of the MPI_Comm in C."""
    return _mpi()._addressof(comm)


class Communicator:
    """Calls on a communicator of mpi4py. Some of them implement :class:`~.world.World`.

    :param comm: the communicator; None: MPI_COMM_WORLD.
    """

    def __init__(self, comm: Any = None) -> None:
        self.comm = _mpi().COMM_WORLD if comm is None else comm
        self.rank, self.size = self.comm.rank, self.comm.size

    def duplicate(self) -> Any:
        return self.comm.Dup()

    def create_among(self, ranks: Sequence[int], number: int = 0) -> Any:
        """Return a communicator of these ranks, in this order; only these ranks make the call.

        :param number: differs between communicators that are created at the same time.
        """
        most = _mpi().COMM_WORLD.Get_attr(_mpi().TAG_UB) or 32767
        return self.comm.Create_group(self.comm.group.Incl(ranks), number % (most + 1))

    def split(self, ranks: List[int]) -> Any:
        """Return a communicator of these ranks, in this order; all ranks make the call."""
        if self.rank in ranks:
            return self.comm.Split(0, ranks.index(self.rank))
        return self.comm.Split(_mpi().UNDEFINED)

    def free(self) -> None:
        self.comm.Free()

    def members(self) -> Any:
        return self.comm.group

    def ranks_of(self, members: Any) -> Sequence[Optional[int]]:
        ranks = _mpi().Group.Translate_ranks(members, None, self.comm.group)
        return [None if rank == _mpi().UNDEFINED else rank for rank in ranks]

    def begin_barrier(self) -> Callable[[], bool]:
        """Begin a barrier; return a function that returns True when all ranks have begun it."""
        return self.comm.Ibarrier().Test

    def barrier(self) -> None:
        have_all_entered = self.begin_barrier()
        while not have_all_entered():  # yields the core to ranks that must still begin the barrier
            os.sched_yield()

    def numbers(self, number: int) -> List[int]:
        # An array instead of pickled values: after a rank's death a pickle may arrive incomplete.
        all_numbers = array("i", [0] * self.size)
        self.comm.Allgather(array("i", [number]), all_numbers)
        return all_numbers.tolist()

    def allgather(self, value: Any) -> List[Any]:
        return self.comm.allgather(value)

    def send(self, value: Any, rank: int) -> None:
        self.comm.send(value, dest=rank, tag=_VALUE)

    def receive(self, rank: int) -> Any:
        return self.comm.recv(source=rank, tag=_VALUE)

    def signal(self, tag: int, ranks: Sequence[int]) -> None:
        """Send an empty message to each of ``ranks`` except this rank; do not wait."""
        for rank in ranks:
            if rank != self.rank:
                self.comm.Isend([None, 0, _mpi().BYTE], rank, tag).Free()

    def receive_signals(self, tag: int) -> Iterator[int]:
        """Yield the senders of the empty messages that have arrived.

        A message is received when the caller asks for the next sender. If the caller raises
        instead, the next call yields this sender again.
        """
        status = _mpi().Status()
        while self.comm.Iprobe(_mpi().ANY_SOURCE, tag, status):
            yield status.source
            self.comm.Recv([None, 0, _mpi().BYTE], status.source, tag)

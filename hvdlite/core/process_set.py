"""ProcessSet: some ranks of the job that run collectives among themselves."""

from typing import Any, List, Optional, Sequence, Union

from hvdlite.core import mpi, topology
from hvdlite.core.arguments import rank_of, whole, wrong
from hvdlite.core.native import HvdliteValueError


class ProcessSet:
    """A set of ranks, for the ``process_set=`` of a collective that only these ranks call.

    Register it by ``init(process_sets=[...])`` or ``add_process_set``. Arguments such as
    ``root_rank`` use the ranks' numbers in the job; results are in the order of these numbers. Sets
    may overlap. A collective of one set does not wait for another set.

    :param ranks_or_comm: ranks of the job, or an mpi4py communicator that contains this process.
    :raises ValueError: ``ranks_or_comm`` is neither.
    """

    def __init__(self, ranks_or_comm: Union[Sequence[int], Any]) -> None:
        self.process_set_id: Optional[int] = None  # the same on every rank
        self.ranks: List[int]  # sorted; made from a communicator: None until registered
        self.mpi_comm: Any = None
        # The set's number in the C library; None: this rank is not in the set.
        self._group: Optional[int] = None
        if mpi.is_communicator(ranks_or_comm):
            self.mpi_comm, self.ranks = ranks_or_comm, None  # type: ignore[assignment]
        else:
            self.ranks = sorted(_ranks(ranks_or_comm))

    def __deepcopy__(self, memo: dict) -> "ProcessSet":
        return self  # init() and elastic training update this object, and would not update a copy

    def included(self) -> bool:
        """Return True if this process is in the set."""
        self._check_registered()
        return self._group is not None

    def size(self) -> int:
        """Return how many ranks the set has."""
        self._check_registered()
        return len(self.ranks)

    def rank(self) -> int:
        """Return this process's number in the set; raise ValueError if it is not in the set."""
        return self.number_of(topology.rank())

    def number_of(self, rank: int) -> int:
        """Return a rank's number in the set; raise ValueError if the rank is not in the set."""
        self._check_registered()
        rank = rank if type(rank) is int else rank_of(rank)
        if rank not in self.ranks:
            raise HvdliteValueError(f"rank {rank} is not in the process set of ranks {self.ranks}")
        return self.ranks.index(rank)

    def register(self, process_set_id: int, ranks: List[int], group: Optional[int]) -> None:
        """Record that the set is registered in this job. Internal."""
        self.process_set_id, self.ranks, self._group = process_set_id, ranks, group

    def invalidate(self) -> None:
        """Record that the set was removed or its job has ended. Internal."""
        self.process_set_id = self._group = self.mpi_comm = None
        self.ranks = None  # type: ignore[assignment]

    def _check_registered(self) -> None:
        if self.process_set_id is None:
            raise HvdliteValueError(
                f"{self} is not registered: pass it to init(process_sets=[...]) or "
                "add_process_set() first; it can't be used after remove_process_set()"
            )

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalProcessSet(ProcessSet):
    """The set of all ranks of the current job."""

    def __init__(self) -> None:
        self.process_set_id, self.mpi_comm, self._group = 0, None, 0

    ranks = property(lambda self: list(range(topology.size())))

    def included(self) -> bool:
        return True

    def size(self) -> int:
        return topology.size()

    def rank(self) -> int:
        return topology.rank()

    def number_of(self, rank: int) -> int:
        # the C library checks the rank together with the tensor
        return rank if type(rank) is int else rank_of(rank)

    def __reduce__(self) -> str:
        # pickled by name, because code compares sets with this object by `is`
        return "global_process_set"

    def invalidate(self) -> None:
        """Do nothing: the global set outlives every job."""

    def __repr__(self) -> str:
        return "global_process_set"


global_process_set = _GlobalProcessSet()


def group_of(process_set: ProcessSet) -> int:
    """Return the set's number in the C library, for this process's collectives.

    :raises ValueError: the argument is not a registered set, or this process is not in the set.
    """
    if isinstance(process_set, ProcessSet) and process_set._group is not None:
        return process_set._group
    check_process_set(process_set).included()  # raises if the set is not registered
    raise HvdliteValueError(
        f"this process (rank {topology.rank()}) is not in the process set of ranks "
        f"{process_set.ranks}: only these ranks may make this call"
    )


def check_process_set(process_set: ProcessSet) -> ProcessSet:
    """Return ``process_set``; raise ValueError if it is not a process set."""
    if not isinstance(process_set, ProcessSet):
        raise wrong("process_set", process_set, "what hvd.add_process_set() returns, a ProcessSet")
    return process_set


def check_root(root_rank: int, process_set: ProcessSet) -> None:
    """Raise ValueError unless the set has this rank, before the caller sends anything."""
    number = check_process_set(process_set).number_of(root_rank)
    if not 0 <= number < topology.size():
        raise wrong("root_rank", root_rank, f"a rank of the job, 0 to {topology.size() - 1}")


def _ranks(ranks) -> List[int]:
    try:
        if isinstance(ranks, (str, bytes, bytearray)):
            raise ValueError
        return [whole(rank, "a rank", "a rank of the job") for rank in ranks]
    except (TypeError, ValueError):
        raise wrong("ranks", ranks, "a list of ranks or an mpi4py communicator") from None

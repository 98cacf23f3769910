"""ProcessSet: some ranks of the job that run collectives among themselves."""

from typing import List, Optional, Sequence, Union

from hvdlite.core import topology
from hvdlite.core.mpi import MPI
from hvdlite.core.native import HvdliteValueError


class ProcessSet:
    """A set of ranks, for the ``process_set=`` of a collective that only its ranks call.

    Register it by ``init(process_sets=[...])`` or ``add_process_set``. Ranks keep their numbers in
    the job, as in ``root_rank``, and results are in the order of these numbers. Sets may overlap;
    no set waits for another.

    :param ranks_or_comm: ranks of the job, or an mpi4py communicator that has this process in it.
    :raises ValueError: it is neither.
    """

    def __init__(self, ranks_or_comm: Union[Sequence[int], MPI.Comm]) -> None:
        self.process_set_id: Optional[int] = None  # the same on every rank
        self.ranks: List[int]  # sorted; None: told by the communicator when it is registered
        self.mpi_comm: Optional[MPI.Comm] = None
        self._group: Optional[int] = (
            None  # its number in the C library, None: this rank isn't in it
        )
        if isinstance(ranks_or_comm, MPI.Comm):
            self.mpi_comm, self.ranks = ranks_or_comm, None  # type: ignore[assignment]
        elif _are_ranks(ranks_or_comm):
            self.ranks = sorted(ranks_or_comm)
        else:
            raise ValueError(
                f"ProcessSet({ranks_or_comm!r}): expected a list of ranks or an mpi4py communicator"
            )

    def included(self) -> bool:
        """Tell whether this process is in the set."""
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
        """Return a rank's number in the set; raise ValueError if the set does not have it."""
        self._check_registered()
        if rank not in self.ranks:
            raise HvdliteValueError(f"rank {rank} is not in the process set of ranks {self.ranks}")
        return self.ranks.index(rank)

    def group(self) -> int:
        """Return the C library's number of the set, for this process's collectives. Internal."""
        self._check_registered()
        if self._group is None:
            raise HvdliteValueError(
                f"this process (rank {topology.rank()}) is not in the process set of ranks "
                f"{self.ranks}: only those make the call"
            )
        return self._group

    def register(self, process_set_id: int, ranks: List[int], group: Optional[int]) -> None:
        """Note that the set is registered in this job. Internal."""
        self.process_set_id, self.ranks, self._group = process_set_id, ranks, group

    def invalidate(self) -> None:
        """Note that the set was removed or its job has ended. Internal."""
        self.process_set_id = self._group = self.mpi_comm = None
        self.ranks = None  # type: ignore[assignment]

    def _check_registered(self) -> None:
        if self.process_set_id is None:
            raise HvdliteValueError(
                f"{self} is not registered: give it to init(process_sets=[...]) or "
                "add_process_set() first; it can't be used after remove_process_set()"
            )

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


class _GlobalProcessSet(ProcessSet):
    """All ranks of the job, whatever job this is."""

    def __init__(self) -> None:
        self.process_set_id, self.mpi_comm = 0, None

    ranks = property(lambda self: list(range(topology.size())))

    def included(self) -> bool:
        return True

    def size(self) -> int:
        return topology.size()

    def rank(self) -> int:
        return topology.rank()

    def number_of(self, rank: int) -> int:
        return rank  # the C library checks it with the tensor

    def group(self) -> int:
        return 0

    def invalidate(self) -> None:
        """Do nothing: the global set outlives every job."""

    def __repr__(self) -> str:
        return "global_process_set"


global_process_set = _GlobalProcessSet()


def _are_ranks(ranks) -> bool:
    try:
        return all(isinstance(rank, int) for rank in ranks)
    except TypeError:
        return False

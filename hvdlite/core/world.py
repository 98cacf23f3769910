"""World: how the ranks of a job exchange values outside of collectives."""

from typing import Any, List, Optional, Protocol, Sequence


class World(Protocol):
    """The ranks of a job. The bootstrap makes the world; all other code knows only this class.

    The calls may be slow, because they are made only when a job or a process set begins.
    """

    rank: int
    size: int

    def init(self) -> None:
        """Begin the C library's job. Collective."""

    def numbers(self, number: int) -> List[int]:
        """Return each rank's 32-bit number, correctly even after a rank's death. Collective."""
        return self.allgather(number)

    def allgather(self, value: Any) -> List[Any]:
        """Return each rank's value: a number, a text, None, or a list of values. Collective."""

    def barrier(self) -> None:
        """Wait until all ranks have called this. Collective."""
        self.allgather(None)

    def send(self, value: Any, rank: int) -> None:
        """Send a value. Rank 0 may send to any rank; another rank may send to rank 0 only."""

    def receive(self, rank: int) -> Any:
        """Return the next value that the rank has sent."""

    def open(self, ranks: List[int]) -> Optional[int]:
        """Open a group of the C library, with its ranks in this order. Collective over all ranks.

        :return: the group's number in this process; None: this rank is not in the group.
        """

    def open_among(self, ranks: List[int], number: int) -> int:
        """Open a group; only the group's ranks make the call.

        :param number: the same on all these ranks; their first rank must not use it twice.
        """

    def check_groups(self) -> None:
        """Raise HvdliteError if this job can have no group other than the group of all ranks."""
        return

    def members(self) -> Any:
        """Return a value that identifies the processes of this job, for :meth:`ranks_of`."""

    def ranks_of(self, members: Any) -> Sequence[Optional[int]]:
        """Return for each member of another job its rank in this job; None: it is not a member."""

    def ranks_in(self, comm: Any) -> Sequence[Optional[int]]:
        """Return for each process of an mpi4py communicator its rank in this job, or None.

        :raises HvdliteError: this is no job over MPI.
        """

    def leave(self, sound: bool) -> None:
        """Free the world's resources, after the C library has closed the job.

        :param sound: True if no rank has failed.
        """

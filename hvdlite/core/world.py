"""World: the processes of a job, and what they tell each other beside its collectives."""

from typing import Any, List, Optional, Protocol, Sequence


class World(Protocol):
    """The ranks of a job. What begins it (MPI, for one) makes it; all else knows only this.

    Its calls are for the moments in which a job or a process set begins: they may be slow.
    """

    rank: int
    size: int

    def init(self) -> None:
        """Begin the C library's job. Collective."""

    def numbers(self, number: int) -> List[int]:
        """Return each rank's number, of 32 bits. Collective; sound also after a death."""
        return self.allgather(number)

    def allgather(self, value: Any) -> List[Any]:
        """Return each rank's value: of numbers, texts, None, lists and tuples. Collective."""

    def barrier(self) -> None:
        """Return when all ranks have come; other processes get the core meanwhile. Collective."""
        self.allgather(None)

    def send(self, value: Any, rank: int) -> None:
        """Give rank 0 a value, or another rank as rank 0."""

    def receive(self, rank: int) -> Any:
        """Return the next value of a rank that sends."""

    def open(self, ranks: List[int]) -> Optional[int]:
        """Open a group of the C library, in this order. Collective over all ranks.

        :return: its number in this process; None where this rank is not in it.
        """

    def open_among(self, ranks: List[int], number: int) -> int:
        """Do the same for these ranks, which alone make the call.

        :param number: one that the first of them has not given yet, and gives to all of them.
        """

    def check_groups(self) -> None:
        """Raise HvdliteError if this job can have no groups but the one of all ranks."""
        return

    def members(self) -> Any:
        """Return what tells the processes of this job apart from all others."""

    def ranks_of(self, members: Any) -> Sequence[Optional[int]]:
        """Return the ranks of another job's members here; None: it is not in this job."""

    def leave(self, sound: bool) -> None:
        """Let go of all; the C library has closed the job.

        :param sound: no rank has failed.
        """

"""World: the ranks of a job, and the values that they exchange outside of collectives."""

from typing import Any, List, Optional, Protocol, Sequence


class World(Protocol):
    """The ranks of a job. The bootstrap makes the world; all other code knows only this class.

    The calls may be slow: they are for the moments when a job or a process set begins.
    """

    rank: int
    size: int

    def init(self) -> None:
        """Begin the C library's job. Collective."""

    def numbers(self, number: int) -> List[int]:
        """Return each rank's 32-bit number. Collective; the result is right even after a death."""
        return self.allgather(number)

    def allgather(self, value: Any) -> List[Any]:
        """Return each rank's value, made of numbers, texts, None, lists and tuples. Collective."""

    def barrier(self) -> None:
        """Return when all ranks have called this; yields the core meanwhile. Collective."""
        self.allgather(None)

    def send(self, value: Any, rank: int) -> None:
        """Send a value to rank 0; rank 0 sends to any rank."""

    def receive(self, rank: int) -> Any:
        """Return the next value that the rank has sent."""

    def open(self, ranks: List[int]) -> Optional[int]:
        """Open a group of the C library, with its ranks in this order. Collective over all ranks.

        :return: the group's number in this process; None: this rank is not in the group.
        """

    def open_among(self, ranks: List[int], number: int) -> int:
        """Open a group by a call of its ranks only.

        :param number: equal on these ranks; the first of these ranks must not use a number
            twice.
        """

    def check_groups(self) -> None:
        """Raise HvdliteError if this job can have no group but that of all ranks."""
        return

    def members(self) -> Any:
        """Return a value that identifies the processes of this job, for :meth:`ranks_of`."""

    def ranks_of(self, members: Any) -> Sequence[Optional[int]]:
        """Return the ranks in this job of another job's members; None: not in this job."""

    def leave(self, sound: bool) -> None:
        """Free everything; the C library has closed the job.

        :param sound: True if no rank has failed.
        """

"""Bootstrap: how a process takes part in its job, from the start of the job to its end."""

from typing import Any, Callable, Protocol

from hvdlite.core.membership import Membership
from hvdlite.core.world import World


class Bootstrap(Protocol):
    """How the ranks of a job meet: by MPI, or by sockets. A process has one such object.

    Methods whose body is ``return`` do nothing unless a subclass overrides them.
    """

    transport: str

    def begin(self, comm: Any) -> None:
        """Prepare to join a job; watch the launcher, so that this process ends with the launcher.

        :param comm: the argument of init().
        :raises HvdliteError: this process can't be in a job; or a launcher started this process as
            one of several, but did not tell this process about the others.
        """

    def join(
        self, comm: Any, patience: float, members: Membership, enter: Callable[[World], None]
    ) -> None:
        """Wait for the other ranks, then call ``enter``. Collective.

        :param patience: seconds; 0: no limit.
        """

    def before_end(self, leave: Callable[[], None]) -> None:
        """In a job over MPI: call the function before the script itself finalizes MPI."""
        return

    def has_others(self) -> bool:
        """Return True if other processes may wait for this process."""

    def rank(self) -> int:
        """Return this process's number among the processes that were started together."""

    def report_end(self) -> None:
        """Tell ranks that wait in init(), now or soon, that this process ends without calling
        init()."""

    def end_by(self, until: float, code: int, message: str) -> None:
        """Limit this process's last wait for other ranks: at ``until``, print a message and end."""
        return

    def end_all(self, code: int, patience: float) -> None:
        """End or notify the other ranks within ``patience`` seconds, and end this process."""

"""Bootstrap: how a process joins its job, and how the processes of the job end together."""

from typing import Any, Callable, Protocol

from hvdlite.core.membership import Membership
from hvdlite.core.world import World


class Bootstrap(Protocol):
    """What the ranks of a job meet by: MPI, or sockets. One object a process.

    The bodies here are for ranks that nothing but the job itself joins.
    """

    transport: str

    def begin(self, comm: Any) -> None:
        """Make ready to join, and watch what this process depends on.

        :param comm: the argument of init().
        :raises HvdliteError: this process can't be in a job, or is one of several and knows no
            others.
        """

    def join(
        self, comm: Any, patience: float, members: Membership, enter: Callable[[World], None]
    ) -> None:
        """Wait for the other ranks, then call ``enter``. Collective.

        :param patience: seconds; 0: no limit.
        """

    def before_end(self, leave: Callable[[], None]) -> None:
        """Call the function before the script itself ends what joins the processes, as MPI."""
        return

    def has_others(self) -> bool:
        """Tell whether other processes may wait for this one."""

    def rank(self) -> int:
        """Return this process's number among those that were started together."""

    def report_gone(self) -> None:
        """Tell those who wait for this process in init(), now or soon, that it ends without."""

    def end_by(self, until: float, code: int, words: str) -> None:
        """Let this process's end wait for other ranks until then; then print the words and end."""
        return

    def end_all(self, code: int, patience: float) -> None:
        """End this process at once; the others end, or are told so within these seconds."""

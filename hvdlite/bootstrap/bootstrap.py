"""Bootstrap: how a process joins its job, and how the processes of the job end together."""

from typing import Any, Callable, Protocol

from hvdlite.core.membership import Membership
from hvdlite.core.world import World


class Bootstrap(Protocol):
    """How the ranks of a job meet: by MPI, or by sockets. One object a process.

    The methods here are the defaults, for ranks that nothing but the job connects.
    """

    transport: str

    def begin(self, comm: Any) -> None:
        """Prepare to join, and watch the launcher on which this process depends.

        :param comm: the argument of init().
        :raises HvdliteError: this process can't be in a job; or it was started as one of several
            and knows none of the others.
        """

    def join(
        self, comm: Any, patience: float, members: Membership, enter: Callable[[World], None]
    ) -> None:
        """Wait for the other ranks, then call ``enter``. Collective.

        :param patience: seconds; 0: no limit.
        """

    def before_end(self, leave: Callable[[], None]) -> None:
        """Call the function before the script itself finalizes MPI, in a job over MPI."""
        return

    def has_others(self) -> bool:
        """Tell whether other processes may wait for this one."""

    def rank(self) -> int:
        """Return this process's number among those that were started together."""

    def report_end(self) -> None:
        """Tell ranks that wait in init(), now or soon, that this process ends without calling
        init()."""

    def end_by(self, until: float, code: int, words: str) -> None:
        """Let this process's end wait for other ranks until this time; then print and end."""
        return

    def end_all(self, code: int, patience: float) -> None:
        """End this process at once; end or notify the others within ``patience`` seconds."""

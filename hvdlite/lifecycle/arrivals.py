"""Who has come to init(): asked only after a long wait, because each rank then tells all others."""

import time
from typing import Set

from hvdlite.core.log import logger
from hvdlite.core.mpi import MPI
from hvdlite.core.native import HvdliteError

LIMIT = "HVDLITE_INIT_TIMEOUT_SECONDS"
WARN_SECONDS = 60.0
ANSWER_SECONDS = 2.0
_HERE = 32_766  # a tag: next to the highest of every MPI


class Arrivals:
    """The ranks of ``comm`` that this rank knows to be in init().

    :param limit: seconds; 0: none.
    """

    def __init__(self, comm: MPI.Intracomm, limit: float):
        self._comm, self._limit = comm, limit
        self._here: Set[int] = {comm.rank}
        self._began = time.monotonic()
        self._asks = self._began + min(limit or WARN_SECONDS, WARN_SECONDS)
        self._warns = self._asks + ANSWER_SECONDS
        self._asked = False

    def look(self) -> None:
        """Warn once about the ranks that are awaited.

        :raises HvdliteError: they are still awaited after the limit.
        """
        now = time.monotonic()
        if now < self._asks:
            return
        if not self._asked:
            self._asked = True
            for other in set(range(self._comm.size)) - {self._comm.rank}:
                self._comm.Isend([None, 0, MPI.BYTE], other, _HERE).Free()
        self.take()
        waited = now - self._began
        if self._limit and now >= max(self._warns, self._began + self._limit):
            raise HvdliteError(f"{self._text(waited)}. {LIMIT} sets how long init() waits")
        if now >= self._warns:
            self._warns = float("inf")
            logger.warning("%s", self._text(waited))

    def take(self) -> None:
        """Receive what others have told, so that no program finds it in its communicator."""
        status = MPI.Status()
        while self._comm.Iprobe(MPI.ANY_SOURCE, _HERE, status):
            self._comm.Recv([None, 0, MPI.BYTE], status.source, _HERE)
            self._here.add(status.source)

    def _text(self, waited: float) -> str:
        missing = sorted(set(range(self._comm.size)) - self._here)
        who = f"ranks {missing[0]} and {len(missing) - 1} more" if missing[1:] else "the others"
        who = f"rank {missing[0]}" if len(missing) == 1 else who
        return (
            f"rank {self._comm.rank} on host {MPI.Get_processor_name()} has waited {waited:.0f} s "
            f"in init() for {who}: not there yet, or a firewall drops what goes from host to host"
        )

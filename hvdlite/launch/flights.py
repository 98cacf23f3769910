"""Brings the contents of the ranks' flight recorders from the agents to the launcher.

Reading recorders needs NumPy, which is imported only after a failure.
"""

from __future__ import annotations

import contextlib
import os

LOOK_SECONDS = 1.0  # seconds in which the agents must answer
EVERY = 2.0  # seconds between two readings for --metrics-port; a reading costs a rank's host 12 ms
_MOST_OPS = 50  # a rank sends its last 50 operations, and at most 50 older ones in progress


class Held:
    """The recorder of an agent's rank, kept open so that it outlives the rank."""

    def __init__(self) -> None:
        self._file: int | None = None
        self.whole = False  # True: the agent sends all operations, even if the job ends well

    def hold(self, path: str) -> None:
        """Open this recorder; close the recorder of an earlier job of the same rank."""
        with contextlib.suppress(OSError):
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if self._file is not None:
                os.close(self._file)
            self._file = file

    def read(self, stacks: bool = True) -> bytes:
        """Return the recorder's contents, with the stacks of a living rank; empty: no recorder."""
        if self._file is None:
            return b""
        from hvdlite.monitor import memory, report

        with contextlib.suppress(OSError, memory.NoRecorder):
            with memory.Recorder(f"/proc/self/fd/{self._file}") as recorder:
                one = report.poll([recorder])[0] if stacks else recorder.snapshot()
            late = [op for op in one.ops[:-_MOST_OPS] if op["phase"] in memory.UNDER_WAY]
            ops = [*late[:_MOST_OPS], *one.ops[-_MOST_OPS:]]
            return memory.to_line([one if self.whole else one._replace(ops=ops)]).encode()
        return b""


# raised by reading what an agent has sent, if the recorder is damaged or the agent is broken
_DAMAGE = (ValueError, TypeError, KeyError)


class Flights:
    """The recorders that agents have sent, and the reports about them."""

    def __init__(self, job: str):
        self._job = job
        self._of: dict[int, bytes] = {}
        self._stalls = 0
        self._said: set[str] = set()

    def add(self, rank: int, data: bytes) -> None:
        self._of[rank] = data

    def report_stall(self) -> str | None:
        """Write a report about a stall; return a line for the user, or None."""
        from hvdlite.monitor import report

        self._stalls += 1
        if self._stalls > report.MOST_STALLS:
            return None
        line = self.report(f"stall-{self._stalls}")
        new = None if line in self._said else line
        self._said.update([line] if line else [])
        return new

    def summary(self) -> str:
        if not self._of:
            return "--summary: no rank has called hvd.init(), or HVDLITE_FLIGHT_RECORDER is 0"
        from hvdlite.monitor import why

        try:
            return why.of_snapshots(self._snapshots())
        except _DAMAGE as error:
            return f"--summary: the flight recorder of a rank can't be read: {error!r}"

    def metrics(self) -> str:
        """Return metrics as Prometheus reads them: the steps' lost time, each rank's counters."""
        from hvdlite.monitor import metrics

        return metrics.text(self._snapshots())

    def _snapshots(self) -> list:
        from hvdlite.monitor import memory

        lines = [data.decode() for _, data in sorted(self._of.items())]
        return [one for line in lines for one in memory.from_line(line)]

    def report(self, what: str, why: str = "") -> str | None:
        """Write a report; return a line for the user, or None.

        :param why: the launcher's own report about a failure.
        """
        if not self._of:
            return None
        from hvdlite.monitor import report

        with contextlib.suppress(OSError, *_DAMAGE):
            ranks = self._snapshots()
            troubles = [one.head["trouble"] for one in ranks if one.head["troubles"]]
            what = "failure" if any(one.head["failed"] for one in ranks) else what
            text = report.text(troubles[0] if troubles else "", ranks, why)
            with report.create(self._job, what) as out:
                out.write(text)
            return f"hvdliterun: what each rank did last is in {out.name}"
        return None

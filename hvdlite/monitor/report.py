"""Writes a report after a stall or failure: each rank's last operations, state and stacks."""

import contextlib
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import List, Sequence, TextIO

from hvdlite.core.native import lib
from hvdlite.machine import files
from hvdlite.monitor.memory import MESSAGES, UNDER_WAY, Op, Recorder, Snapshot, state_of, title

# The environment variable with the folder for reports; by default the folder for temporary files.
FOLDER = "HVDLITE_REPORTS"
# Processes ignore this signal by default, so a process without a handler lives on.
STACKS_SIGNAL = signal.SIGURG
PATIENCE = 2.0  # a rank leaves when its report is written, or after so many seconds
_STACKS_SECONDS = 1.0  # seconds to wait for a process's stacks; a stopped process writes none
_LAST_OPS = 8  # number of operations that the report shows of each rank
MOST_STALLS = 5  # later stalls get no report, only a text in the log


def write_for_host(job: str, recorders: Sequence[Recorder]) -> None:
    """Write a report about this host's ranks, unless another rank of the host has written it.

    Print the path on stderr. Raise nothing, because an error here would hide the failure itself.
    """
    own = next((r.head() for r in recorders if r.head()["pid"] == os.getpid()), None)
    if own is None or (not own["failed"] and own["troubles"] > MOST_STALLS):
        return
    what = "failure" if own["failed"] else f"stall-{own['troubles']}"
    try:
        out = create(job, f"{own['host']}-{what}")
    except OSError:  # another rank of this host has made the file, or the folder is missing
        return
    with contextlib.suppress(OSError), out:
        # Write once without stacks, because the launcher may kill this process during the wait.
        for snapshots in ([recorder.snapshot() for recorder in recorders], poll(recorders)):
            out.seek(0)
            out.write(text(own["trouble"], snapshots))
            out.truncate()
            out.flush()
    with contextlib.suppress(OSError, ValueError):
        print(f"hvdlite: what each rank did last is in {out.name}", file=sys.stderr, flush=True)


def create(job: str, what: str) -> TextIO:
    """Open a new file for a report, under another name if another user has a file of this name.

    :raises FileExistsError: a process of this user has already made the file.
    """
    folder = Path(os.environ.get(FOLDER) or tempfile.gettempdir())
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    where = folder / f"hvdlite-report-{job}-{what}.txt"
    try:
        files.refuse_strangers(where)
    except PermissionError:
        where = where.with_suffix(f".{os.urandom(4).hex()}.txt")
    return files.create(where)


def poll(recorders: Sequence[Recorder]) -> List[Snapshot]:
    """Ask all running processes for their stacks, wait for the stacks, and read the recorders."""
    asked = {recorder: -1 for recorder in recorders if _ask_for_stacks(recorder)}
    until = time.monotonic() + _STACKS_SECONDS
    while asked and time.monotonic() < until:
        time.sleep(0.02)
        for recorder, size in list(asked.items()):
            asked[recorder] = recorder.size()
            if asked[recorder] == size and recorder.stacks():  # the file does not grow any more
                del asked[recorder]
    return [recorder.snapshot(recorder.stacks()) for recorder in recorders]


# A process in one of these states handles the signal, at the latest when its I/O has ended.
_ANSWERING = "runs", "waits for I/O"


def _ask_for_stacks(recorder: Recorder) -> bool:
    head = recorder.head()
    recorder.forget_stacks()
    # A damaged recorder may contain any signal and any process id: send only STACKS_SIGNAL.
    if head["stacks"] != STACKS_SIGNAL or state_of(head["pid"]) not in _ANSWERING:
        return False
    try:
        os.kill(head["pid"], STACKS_SIGNAL)
    except OSError:
        return False
    return True


# ------------------------------------------------------------------------------------- the text
def text(why: str, ranks: Sequence[Snapshot], of: str = "") -> str:
    """Return the text of a report.

    :param why: the error text of the stall or failure.
    :param of: the launcher's text about the failure, if there is one.
    """
    ranks = sorted(ranks, key=lambda one: one.rank)
    job = ranks[0].head["job"] if ranks else "?"
    size = ranks[0].head["size"] if ranks else 0
    carrier = ranks[0].head["transport"] if ranks else "?"
    lines = [f"hvdlite: job {job}, {time.strftime('%Y-%m-%d %H:%M:%S')}", *of.splitlines(), why]
    lines += ["", f"{len(ranks)} of {size} ranks, transport {carrier}:"] + [
        summary(one, ranks) for one in ranks
    ]
    for one in ranks:
        lines += ["", f"---- {_who(one)}, {one.state}", *operations(one), *_stacks(one)]
    return "\n".join(lines) + "\n"


def _who(one: Snapshot) -> str:
    return f"rank {one.rank} (process {one.head['pid']} on host {one.head['host']})"


def summary(one: Snapshot, ranks: Sequence[Snapshot]) -> str:
    """Return a line about a rank: its state, its wait for other ranks, and its last operation."""
    # Imported here: at the top of the module the import would add 10 ms to each rank's init().
    from hvdlite.monitor import live

    wait = live.wait_of(one, ranks)
    parts = [f"{_who(one)} {one.state}"]
    if wait and one.state == "runs":
        whom = f" for {live.ranks_text(wait.ranks)}" if wait.ranks else ""
        parts.append(f"has waited{whom} for {wait.seconds:.1f} s")
    done = [op for op in one.ops if op["phase"] in ("done", "failed")]
    under_way = [op for op in one.ops if op["phase"] in UNDER_WAY]
    if under_way:
        more = f" and {len(under_way) - 1} more" if under_way[1:] else ""
        parts.append(f"under way: {_brief(under_way[0])}{more}")
    if done:
        last = max(done, key=lambda op: op["ended"])
        ago = one.now - last["ended"]
        parts.append(f"last done: {_brief(last)}, {ago:.3f} s ago")
    if not one.ops:
        parts.append("has submitted nothing")
    return "; ".join(parts)


def _brief(op: Op) -> str:
    from hvdlite.monitor import live

    batch = f", batch {_batch(op)}" if op["batch"] else ""
    phase = {"waits": ", not submitted by all ranks", "agreed": ", agreed on", "moves": ", moving"}
    if op["kind"] in MESSAGES:
        phase = {"waits": f", a {op['kind']} that has not ended"}
    return f"'{title(op)}' ({live.size_text(op['bytes'])}{batch}{phase.get(op['phase'], '')})"


def _batch(op: Op) -> str:
    """Return the batch's number as text; "f3": number 3 of those without a negotiation."""
    fast, number = divmod(op["batch"], lib.HVD_FAST_BATCHES)
    return "f" * bool(fast) + str(number) if op["batch"] else "-"


def operations(one: Snapshot) -> List[str]:
    """Return a table of the last operations, the newest last; 0 is the time of the report."""
    from hvdlite.monitor import live

    lines = [" submitted    agreed   started     ended  phase   batch     bytes  name"]
    for op in one.ops[-_LAST_OPS:]:
        times = " ".join(
            f"{_before(one.now, op[name]):>{width}}"
            for name, width in (("submitted", 10), ("agreed", 9), ("started", 9), ("ended", 9))
        )
        size = live.size_text(op["bytes"])
        lines.append(f"{times}  {op['phase']:<7} {_batch(op):>5} {size:>9}  {title(op)}")
    return lines


def _before(now: float, moment: float) -> str:
    return f"{moment - now:.4f}" if moment else "-"


def _stacks(one: Snapshot) -> List[str]:
    if one.stacks:
        return one.stacks.rstrip().splitlines()
    why = one.state
    if one.state == "runs":
        why = "did not answer" if one.head["stacks"] else "can't write its stacks"
    return [f"no stacks: the process {why}"]


class Reporter:
    """Writes a report after each stall or failure, in a thread that otherwise sleeps."""

    def __init__(self, job: str, neighbors: List[Recorder]):
        self._job, self._neighbors = job, neighbors
        self._reader, self.bell = os.pipe()
        os.set_blocking(self.bell, False)
        self._pid = os.getpid()
        self._lock, self._one_has_ended = threading.Lock(), False
        self._thread = threading.Thread(target=self._run, name="hvdlite-report", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                signals = os.read(self._reader, 64)
                if b"!" in signals:
                    write_for_host(self._job, self._neighbors)
                if b"." in signals or not signals:
                    return
        finally:
            self._end()

    def finish(self) -> None:
        """Wait until the thread has written its reports; then the thread ends."""
        if os.getpid() == self._pid and self._thread.is_alive():
            with contextlib.suppress(OSError):
                os.write(self.bell, b".")
            self._thread.join(PATIENCE)

    def close(self) -> None:
        self.finish()
        self._end()

    def _end(self) -> None:
        """Close the pipe if both close() and the thread, which a report may delay, have ended."""
        with self._lock:
            both, self._one_has_ended = self._one_has_ended, True
        if both or os.getpid() != self._pid:
            os.close(self.bell)
            os.close(self._reader)

"""Reads the recorders of a job's ranks repeatedly, on this host and through ssh on other hosts."""

import argparse
import contextlib
import os
import pwd
import shlex
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple, Union

from hvdlite.machine import nodes
from hvdlite.machine.hosts import parse_list, users_ssh
from hvdlite.monitor import memory
from hvdlite.monitor.memory import Recorder, Snapshot

_SEARCH_SECONDS = 5.0  # seconds between two searches for new ranks
_MOST_JOBS_NAMED = 5
_PATIENCE = 10.0  # seconds to wait for the first data from another host


def job_of(which: Optional[str]) -> str:
    """Return the number of the job that the user has named.

    :param which: a process id, the beginning of the number, or None for the only job on this host.
    :raises memory.NoRecorder: no job, or more than one job, fits.
    """
    if which and which.isdigit() and len(which) < 16:
        for path in memory.files_of(int(which)):
            with contextlib.suppress(OSError, memory.NoRecorder), Recorder(path) as recorder:
                return recorder.head()["job"]
        raise memory.NoRecorder(
            f"process {which} has no flight recorder: give the process id of a rank that has "
            "called hvd.init()"
        )
    jobs = _jobs()
    fit = [job for job in jobs if job.startswith(which or "")]
    if len(fit) == 1:
        return fit[0]
    if fit:
        lines = [f"  {job}  {_described(*jobs[job])}" for job in fit[:_MOST_JOBS_NAMED]]
        more = [f"  and {len(fit) - len(lines)} more"] if len(fit) > len(lines) else []
        what = "several jobs run on this host: name one by its number or by a process id"
        raise memory.NoRecorder("\n".join([what, *lines, *more]))
    what = f"no job {which} runs" if which else "no job of hvdlite runs"
    raise memory.NoRecorder(f"{what} on this host; only root can look at the jobs of other users")


def _jobs() -> Dict[str, Tuple[int, int, float]]:
    """Return, by job: the number of ranks here, the lowest rank's process id and start time."""
    heads: Dict[str, List[dict]] = {}
    for recorder in memory.find():
        with recorder:
            head = recorder.head()
            heads.setdefault(head["job"], []).append(head)
    lowest = {job: min(those, key=lambda head: head["rank"]) for job, those in heads.items()}
    return {job: (len(heads[job]), head["pid"], head["began"]) for job, head in lowest.items()}


def _described(ranks: int, pid: int, began: float) -> str:
    """Return a text with a job's command, number of ranks, user, process id and age."""
    command, user = "a process that has ended", "?"
    with contextlib.suppress(OSError, KeyError):
        user = pwd.getpwuid(os.stat(f"/proc/{pid}").st_uid).pw_name
        argv = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").rstrip("\0").split("\0")
        command = textwrap.shorten(" ".join(argv), 60, placeholder=" ...")
    minutes, seconds = divmod(int(time.monotonic() - began), 60)
    return f"{command} ({ranks} ranks, user {user}, pid {pid}, for {minutes} min {seconds} s)"


def add_hosts(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--hosts``, with which the user names the other hosts of a job."""
    what = "other hosts of the job: node1,node2"
    parser.add_argument("-H", "--hosts", type=_names, default=[], help=what)


def _names(hosts: str) -> List[str]:
    try:
        return [host.name for host in parse_list(hosts)]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


@contextlib.contextmanager
def sources(job: str, hosts: Sequence[str], every: float) -> Iterator[List["Source"]]:
    """Yield readers of the ranks' state: one for this host, and one for each other host."""
    found: List[Source] = [Here(job)]
    try:
        for host in hosts:
            found.append(There(host, job, every))
        yield found
    finally:
        for source in found:
            source.close()


def all_now(sources: Sequence["Source"]) -> List[Snapshot]:
    """Return the last snapshot of each rank, without waiting for other hosts."""
    return sorted((one for source in sources for one in source.poll()), key=lambda one: one.rank)


def all_anew(sources: Sequence["Source"]) -> List[Snapshot]:
    """Wait for new reports of the other hosts; return the last snapshot of each rank."""
    end = time.monotonic() + _PATIENCE
    for source in sources[1:]:
        source.wait(max(end - time.monotonic(), 0))
    return all_now(sources)


class Here:
    """Reads the ranks of a job on this host, including ranks that have died since."""

    def __init__(self, job: str):
        self._job = job
        self._recorders: Dict[int, Recorder] = {}
        self._misplaced: Dict[int, str] = {}  # texts by process id
        self._searched = float("-inf")

    def poll(self) -> List[Snapshot]:
        if time.monotonic() - self._searched > _SEARCH_SECONDS:
            self._search()
        return [
            recorder.snapshot()._replace(misplaced=self._misplaced.get(process, ""))
            for process, recorder in self._recorders.items()
        ]

    def _search(self) -> None:
        self._searched = time.monotonic()
        for recorder in memory.find(self._job):
            known = self._recorders.setdefault(recorder.head()["pid"], recorder)
            if known is not recorder:
                recorder.close()
        for process in self._recorders.keys() - self._misplaced.keys():
            self._misplaced[process] = nodes.misplaced(process)

    def wait(self, seconds: float) -> None:
        """Do nothing: :meth:`poll` always reads the recorders again."""

    def close(self) -> None:
        for recorder in self._recorders.values():
            recorder.close()


class There:
    """Reads the ranks of a job on another host: runs hvdlite-top there, through ssh."""

    def __init__(self, host: str, job: str, every: float):
        own = [sys.executable, "-m", "hvdlite.monitor.top", "--json", f"--every={every}", job]
        self.host, self._most = host, _PATIENCE + every
        self._heard, self._end = time.monotonic(), ""
        self._last: List[Snapshot] = []
        self._news = threading.Event()
        line, pipe = [*users_ssh().command(), host, shlex.join(own)], subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                line, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, errors="replace"
            )
        except OSError as error:
            raise memory.NoRecorder(f"{host}: {line[0]}: {error.strerror}") from error
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout and self._process.stderr
        for line in self._process.stdout:
            with contextlib.suppress(ValueError, TypeError):
                self._last, self._heard = memory.from_line(line), time.monotonic()
                self._news.set()
        lines = self._process.stderr.read().strip().splitlines()
        self._end = lines[-1] if lines else "ssh has ended"
        self._news.set()

    @property
    def problem(self) -> str:
        """The reason why the last report may be too old, or "" if it is not."""
        silence = time.monotonic() - self._heard
        return self._end or f"no answer for {silence:.0f} s" * (silence > self._most)

    def poll(self) -> List[Snapshot]:
        self._news.clear()
        return self._last

    def wait(self, seconds: float) -> None:
        """Wait until the host reports again; return immediately if the host has a problem."""
        self._news.wait(0 if self.problem else seconds)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


Source = Union[Here, There]

"""Runs the command of a backend (mpirun, srun, ...)."""

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from glob import iglob
from typing import IO, Dict, List, Set, Tuple

from hvdlite.launch import environment
from hvdlite.launch.job import Command, LaunchError
from hvdlite.launch.output import Lines

# The backend's lines are printed after these seconds, or never: a failure's report replaces them.
HOLD_BACK = 0.5
HEIRS = 1.0  # processes that hold an ended backend's pipes are killed after so many seconds
# lines of Open MPI 5 about a harmless race of parent and child
_NOISE = ("plm:ssh: Warning: setpgid",)

# Variables that name the folder of mpirun's files (Open MPI 5 and 4). A killed mpirun leaves the
# files behind, so hvdliterun removes the folder.
_SESSION_FOLDER = ("PRTE_MCA_prte_local_tmpdir_base", "OMPI_MCA_orte_local_tmpdir_base")


class BackendProcess:
    """The backend's process, in its own process group, so that Ctrl-C does not reach it."""

    def __init__(self, command: Command, extra_env: Dict[str, str]):
        try:
            users = [os.environ[name] for name in _SESSION_FOLDER if os.environ.get(name)]
            self._folder = tempfile.TemporaryDirectory(prefix="hvdlite-", dir=(*users, None)[0])
        except OSError as error:
            why = f"temporary files can't be written: {error.strerror}"
            raise LaunchError(f"{why}: set TMPDIR to a folder with free space") from error
        env = {**command.env, **extra_env, **dict.fromkeys(_SESSION_FOLDER, self._folder.name)}
        try:
            with _as_input(command.script or "") as script:
                self._process = subprocess.Popen(
                    command.argv,
                    env=environment.for_backend(env),
                    stdin=script,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    preexec_fn=os.setpgrp,
                )
        except OSError as error:
            raise LaunchError(f"cannot run {command.argv[0]}: {error.strerror}") from error
        self._pipes: Dict[IO[bytes], Lines] = {pipe: Lines() for pipe in self.pipes}
        self._heirs_end = float("inf")
        self._held: List[Tuple[float, str]] = []

    @property
    def sign(self) -> str:
        """A text that is in the command line of each of the backend's daemons on all hosts."""
        return os.path.basename(self._folder.name)

    @property
    def pipes(self) -> List[IO[bytes]]:
        return [pipe for pipe in (self._process.stdout, self._process.stderr) if pipe]

    def read(self, pipe: IO[bytes]) -> bool:
        """Read from a pipe without waiting; return False at its end."""
        data = os.read(pipe.fileno(), 1 << 16)
        lines = self._pipes[pipe].feed(data) if data else self._pipes.pop(pipe).end()
        now = time.monotonic()
        self._held += [(now, line) for line in lines if not any(n in line for n in _NOISE)]
        return bool(data)

    def read_all(self) -> None:
        """Read from both pipes what has arrived, without waiting; for use without a selector."""
        for pipe in select.select(list(self._pipes), [], [], 0)[0]:
            self.read(pipe)

    def take_lines(self, hold_back: float = HOLD_BACK) -> List[str]:
        """Return the backend's lines of at least ``hold_back`` seconds ago, and forget them."""
        until = time.monotonic() - hold_back
        due = [line for when, line in self._held if when <= until]
        del self._held[: len(due)]
        return due

    def exit_code(self) -> int:
        """Wait for the end; return the exit code."""
        code = self._process.wait()
        return code if code >= 0 else 128 - code

    def running(self) -> bool:
        return self._process.poll() is None

    def over(self) -> bool:
        return not self.running() and not self._pipes

    def end_heirs(self) -> None:
        """HEIRS seconds after the backend's end, kill processes that hold its pipes (ssh, ...)."""
        now = time.monotonic()
        self._heirs_end = min(self._heirs_end, now + HEIRS)
        if now < self._heirs_end:
            return
        ends = {f"pipe:[{os.fstat(pipe.fileno()).st_ino}]" for pipe in self._pipes}
        for pid in _holders(ends):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self.running():
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait()
        for pipe in self.pipes:
            pipe.close()
        self._folder.cleanup()


def _as_input(text: str) -> IO[bytes]:
    """Return a file from which a process reads this text and then the end."""
    memory = os.fdopen(os.memfd_create("hvdliterun", os.MFD_CLOEXEC), "w+b")
    memory.write(text.encode(errors="surrogateescape"))
    memory.seek(0)
    return memory


def _holders(pipes: Set[str]) -> List[int]:
    """Return the other processes that have a pipe open whose name in /proc is one of these."""
    found = []
    for folder in iglob("/proc/[0-9]*/fd"):
        with contextlib.suppress(OSError):  # the process is another user's, or has ended
            if pipes & {os.readlink(file) for file in os.scandir(folder)}:
                found.append(int(folder.split("/")[2]))
    return [pid for pid in found if pid != os.getpid()]

"""Prints which ranks are missing while MPI_Init waits for all ranks.

MPI_Init holds Python's global lock, so no thread of this process can print. Therefore this module
starts a shell, which runs this file if MPI_Init takes longer than SECONDS. The shell ends with this
process. A rank in MPI_Init shows its arrival by a socket whose name contains the rank.
"""

import contextlib
import os
import re
import socket
import sys
from pathlib import Path
from typing import Iterator, Set

SECONDS = "5"  # chosen: longer than a usual MPI_Init, so a usual start prints nothing
JOB, RANK = "PMIX_NAMESPACE", "PMIX_RANK"  # set by Open MPI's mpirun and by srun --mpi=pmix
_LOCAL = "OMPI_COMM_WORLD_LOCAL_RANK"
# cat reads from a pipe that this process holds: when the process ends in any way, cat ends, too.
_SHELL = 'timeout "$0" cat 2>/dev/null; [ $? != 124 ] || exec "$@"'


@contextlib.contextmanager
def reporting() -> Iterator[None]:
    """If the block takes SECONDS, two ranks of each host print which ranks are missing."""
    job, rank = os.environ.get(JOB), os.environ.get(RANK)
    if not job or not rank or os.environ.get("OMPI_COMM_WORLD_SIZE") == "1":
        yield
        return
    with socket.socket(socket.AF_UNIX) as sign:
        with contextlib.suppress(OSError):  # without the socket, a report calls this rank missing
            sign.bind(_name(job, rank))
        with _shell() if os.environ.get(_LOCAL, "0") in "01" else contextlib.nullcontext():
            yield


@contextlib.contextmanager
def _shell() -> Iterator[None]:
    read, write = os.pipe()
    command = ["sh", "-c", _SHELL, SECONDS, sys.executable, "-S", __file__]
    from_pipe = [(os.POSIX_SPAWN_DUP2, read, 0)]
    pid = 0
    with contextlib.suppress(OSError):  # some containers have no shell
        pid = os.posix_spawn("/bin/sh", command, os.environ, file_actions=from_pipe)
    os.close(read)
    try:
        yield
    finally:
        os.close(write)
        with contextlib.suppress(ChildProcessError):  # SIGCHLD is ignored
            if pid:
                os.waitpid(pid, 0)


def _name(job: str, rank: str) -> str:
    return f"\0hvdlite-{job}-{rank}"


def text(own: str, arrived: Set[str], begun: Set[str], count: int) -> str:
    """Return a line about the ranks for which MPI_Init waits; "": another rank prints the line.

    :param own: this rank.
    :param arrived: the ranks of this host that are in MPI_Init.
    :param begun: the ranks of this host whose processes run.
    :param count: how many ranks this host should have.
    """
    if own != min(arrived, key=int, default=own):
        return ""
    late = sorted(begun - arrived, key=int)
    whom = [f"rank {', '.join(late[:8])}{', ...' * (len(late) > 8)}"] if late else []
    whom += [f"{count - len(begun)} ranks that have not started"] if count > len(begun) else []
    if not whom:
        whom = ["the ranks of other hosts"] if own == "0" else []
    where = f"rank {own} on host {socket.gethostname()}"
    return f"hvdlite: {where} waits in MPI_Init for {' and '.join(whom)}" if whom else ""


def _entry(process: Path, name: str) -> str:
    entry = re.search(
        rf"(?:^|\0){name}=([^\0]*)", (process / "environ").read_text(errors="replace")
    )
    return entry[1] if entry else ""


def main() -> None:
    """Look at the processes of this host, and print the line about missing ranks."""
    job, begun = os.environ[JOB], set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process is another user's, or has ended
            if _entry(process, JOB) == job:
                begun.add(_entry(process, RANK))
    sockets = Path("/proc/net/unix").read_text(errors="replace")
    arrived = {
        rank for rank in begun if re.search(f"@{re.escape(_name(job, rank)[1:])}$", sockets, re.M)
    }
    count = int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 0))
    line = text(os.environ[RANK], arrived, begun, count)
    print(line, file=sys.stderr, end="\n" * bool(line))


if __name__ == "__main__":
    main()

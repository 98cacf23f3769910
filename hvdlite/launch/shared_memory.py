"""Removes what killed ranks leave in /dev/shm, where it would take memory until a reboot.

hvdlite's own memory has no name. Open MPI's segments have names, and a killed rank can't remove
them. So each job gives Open MPI a folder with the job's unique number in its name. If /dev/shm has
no room, as in a container, the folder is among the temporary files: without room, Open MPI would
end without a message.

A backend may kill the agents, too, before they have removed the folder. So each agent holds a lock
on the folder, and forks a process, unknown to the backend, that removes the unlocked folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
from collections.abc import Mapping

from hvdlite.core import listening
from hvdlite.core.agent_protocol import JOB
from hvdlite.machine import files

FOLDER = "/dev/shm"
# bytes; Open MPI 5 demands a little more than 16 MiB, then takes 76 KiB for each rank
_ROOM = 20 << 20

# Where Open MPI 5 and 4 put their segments: for each component, the names of one variable.
_OPEN_MPI = tuple(
    {f"OMPI_MCA_{name}_backing_directory" for name in names}
    for names in (("btl_sm", "btl_vader"), ("osc_sm",), ("osc_rdma",))
)


class SharedMemory:
    """The folder of one job on this host, in /dev/shm if possible; job None has no folder."""

    def __init__(self, job: str | None):
        self._job = job
        self._name = f"hvdlite-{job}"
        self._folder = os.path.join(FOLDER, self._name)
        self._remover = 0  # process id of the process that removes the folder; 0: none

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Make Open MPI's folder; return the variables that name it, unless the user set them."""
        try:
            if not _has_room(FOLDER):
                self._folder = os.path.join(_temporary(), self._name)
            is_first = not os.path.isdir(self._folder)
            files.make_private_folder(self._folder)
            # kept open, and so locked, until this process ends
            fcntl.flock(os.open(self._folder, os.O_RDONLY), fcntl.LOCK_SH)
            self._remover = _remove_after_all(self._folder) if is_first else 0
        except OSError:  # there is no /dev/shm or no room, or the folder is another user's
            return {}
        settings = listening.with_files(environ)
        unset = [names for names in _OPEN_MPI if names.isdisjoint(settings)]
        return {name: self._folder for names in unset for name in names}

    def remove(self, all_of_it: bool) -> None:
        """Remove the job's folder and its files; without ``all_of_it``, only an empty folder."""
        if not self._job:
            return
        if not all_of_it:
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)
            return self._end_remover()
        import shutil  # not at the top, where it would take 3 ms of each agent's start

        shutil.rmtree(os.path.join(FOLDER, self._name), ignore_errors=True)
        with contextlib.suppress(OSError):
            shutil.rmtree(os.path.join(_temporary(), self._name), ignore_errors=True)
        self._end_remover()

    def _end_remover(self) -> None:
        if self._remover and not os.path.exists(self._folder):
            os.kill(self._remover, signal.SIGKILL)
            # waits, because a container may end all processes when this process ends
            os.waitpid(self._remover, 0)
            self._remover = 0


def _remove_after_all(folder: str) -> int:
    """Fork a process that removes the folder when no agent uses it any more; return its process id.

    No backend ends the process, because it has its own session. It closes all other files.
    """
    if number := os.fork():
        return number
    try:
        os.setsid()
        os.chdir("/")
        for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(each, signal.SIG_IGN)
        # opened again, because a lock on the inherited descriptor would replace the agent's lock
        own = os.open(folder, os.O_RDONLY)
        for file in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                os.close(file if file != own else -1)
        fcntl.flock(own, fcntl.LOCK_EX)
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os._exit(0)


def _temporary() -> str:
    """Return the folder for temporary files; OSError if the disk is full."""
    import tempfile

    return tempfile.gettempdir()


def _has_room(folder: str) -> bool:
    with contextlib.suppress(OSError):
        memory = os.statvfs(folder)
        return memory.f_bavail * memory.f_frsize >= _ROOM
    return True  # unknown; the caller finds out when it makes its folder


NOTHING = SharedMemory(None)


def of_job(number: str) -> SharedMemory:
    """Return the files of the job with this number.

    :raises ValueError: the text is not the number of a job.
    """
    if not re.fullmatch("[0-9a-f]{16}", number):
        raise ValueError(f"{JOB} is '{number}': expected 16 hexadecimal digits")
    return SharedMemory(number)

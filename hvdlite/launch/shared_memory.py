"""Removes what killed ranks leave in /dev/shm, where it would take memory until a reboot.

hvdlite's own memory has no name. Open MPI's segments have, and a killed rank can't remove them: so
Open MPI gets a folder for each job, with the job's unique number in its name. Where /dev/shm has no
room, as in a container, the folder is among the temporary files: Open MPI would end without a word.
"""

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Dict, Mapping, Optional

FOLDER = Path("/dev/shm")
_ROOM = 20 << 20  # bytes: Open MPI 5 wants 16 MiB and a little more, and then takes 76 KiB a rank
VARIABLE = "HVDLITE_JOB"  # the number
_NUMBER = re.compile(r"[0-9a-f]{16}")

# Where Open MPI 5 and 4 put their segments: for each component, the names of one variable.
_OPEN_MPI = tuple(
    {f"OMPI_MCA_{name}_backing_directory" for name in names}
    for names in (("btl_sm", "btl_vader"), ("osc_sm",), ("osc_rdma",))
)


def new_job() -> str:
    """Return a number that no other job has."""
    return os.urandom(8).hex()


class SharedMemory:
    """The folder of one job on this host, in /dev/shm if it can be; job None has none."""

    def __init__(self, job: Optional[str]):
        self._job = job
        self._folders = [f / f"hvdlite-{job}" for f in (FOLDER, Path(tempfile.gettempdir()))]
        self._folder = self._folders[0]
        self._hold: Optional[int] = None  # a descriptor

    def environment(self, environ: Mapping[str, str]) -> Dict[str, str]:
        """Make Open MPI's folder; return the variables that name it, unless the user set them."""
        if not _has_room(FOLDER):
            self._folder = self._folders[1]
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:  # there is no /dev/shm
            return {}
        unset = [names for names in _OPEN_MPI if names.isdisjoint(environ)]
        return {name: str(self._folder) for names in unset for name in names}

    def hold(self) -> None:
        """Keep :meth:`remove_if_last` of other processes from removing anything."""
        with contextlib.suppress(OSError):
            self._hold = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._hold, fcntl.LOCK_SH)

    def remove_if_last(self) -> None:
        """Remove the files of the job, if no other process of this host holds them."""
        if self._hold is not None:
            with contextlib.suppress(OSError):  # somebody does
                fcntl.flock(self._hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self.remove(all_of_it=True)
            os.close(self._hold)
            self._hold = None

    def remove(self, all_of_it: bool) -> None:
        """Remove the folder of the job; if not ``all_of_it``, only if it is empty."""
        for folder in self._folders if self._job else ():
            if all_of_it:
                shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.rmdir()


def _has_room(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        memory = os.statvfs(folder)
        return memory.f_bavail * memory.f_frsize >= _ROOM
    return True  # who makes the folder finds out


NOTHING = SharedMemory(None)


def of_job(number: str) -> SharedMemory:
    """Return the files of the job with that number.

    :raises ValueError: it is not the number of a job.
    """
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"{VARIABLE} is '{number}': expected 16 hexadecimal digits")
    return SharedMemory(number)

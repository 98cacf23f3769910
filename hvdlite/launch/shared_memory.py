"""Removes what killed ranks leave in /dev/shm, where it would take memory until a reboot.

hvdlite's own memory has no name. Open MPI's segments have, and a killed rank can't remove them: so
Open MPI gets a folder for each job, with the job's unique number in its name.
"""

import contextlib
import fcntl
import os
import re
import shutil
from pathlib import Path
from typing import Dict, Mapping, Optional

FOLDER = Path("/dev/shm")
VARIABLE = "HVDLITE_JOB"  # the number
_NUMBER = re.compile(r"[0-9a-f]{16}")

# Where Open MPI 5 and 4 put their segments.
_OPEN_MPI = tuple(
    f"OMPI_MCA_{component}_backing_directory"
    for component in ("btl_sm", "btl_vader", "osc_sm", "osc_rdma")
)


def new_job() -> str:
    """Return a number that no other job has."""
    return os.urandom(8).hex()


class SharedMemory:
    """The folder of one job in /dev/shm of this host; job None has none."""

    def __init__(self, job: Optional[str]):
        self._job = job
        self._folder = FOLDER / f"hvdlite-{job}"
        self._hold: Optional[int] = None  # a descriptor

    def environment(self, environ: Mapping[str, str]) -> Dict[str, str]:
        """Make Open MPI's folder; return the variables that name it, unless the user set them."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:  # there is no /dev/shm
            return {}
        return {name: str(self._folder) for name in _OPEN_MPI if name not in environ}

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
        if not self._job:
            return
        if all_of_it:
            shutil.rmtree(self._folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            self._folder.rmdir()


NOTHING = SharedMemory(None)


def of_job(number: str) -> SharedMemory:
    """Return the files of the job with that number.

    :raises ValueError: it is not the number of a job.
    """
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"{VARIABLE} is '{number}': expected 16 hexadecimal digits")
    return SharedMemory(number)

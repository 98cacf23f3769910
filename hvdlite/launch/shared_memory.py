"""Removes what killed ranks have left in /dev/shm: it would take up memory until the next boot.

MPI libraries and hvdlite unlink their segments in time if they can; a rank that is killed can't.
Names tell what is this job's: hvdlite puts the job's number, which no other job has, into its own,
and Open MPI is given a folder for its segments. Nothing else is touched, whoever shares /dev/shm.
"""

import contextlib
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
    """What one job has in /dev/shm of this host; None: no job, nothing."""

    def __init__(self, job: Optional[str]):
        self._job = job
        self._folder = FOLDER / f"hvdlite-{job}"

    def environment(self, environ: Mapping[str, str]) -> Dict[str, str]:
        """Make Open MPI's folder; return how Open MPI is told, unless the user has told it."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:  # there is no /dev/shm
            return {}
        return {name: str(self._folder) for name in _OPEN_MPI if name not in environ}

    def remove(self, all_of_it: bool) -> None:
        """Remove it; if not all of it, no more than the folder when nothing is in it any more."""
        if not self._job:
            return
        if not all_of_it:
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        own = re.compile(rf"hvdlite-{self._job}-[0-9]+-[0-9]+\.[0-9]+")
        with contextlib.suppress(OSError):
            for path in [path for path in FOLDER.iterdir() if own.fullmatch(path.name)]:
                with contextlib.suppress(OSError):
                    path.unlink()


NOTHING = SharedMemory(None)


def of_job(number: str) -> SharedMemory:
    """Return what a job has, by its number.

    :raises ValueError: that is none.
    """
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"{VARIABLE} is '{number}': expected 16 hexadecimal digits")
    return SharedMemory(number)

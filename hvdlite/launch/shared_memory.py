"""Removes the files of killed ranks from /dev/shm, where they would take memory until a reboot.

MPI libraries and hvdlite unlink their segments early, but a killed rank can't. The job's files are
known by name: hvdlite puts the job's unique number into its names, and Open MPI gets a folder of
the job for its segments. Files of others in /dev/shm are not touched.
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
    """The files of one job in /dev/shm of this host; job None has no files."""

    def __init__(self, job: Optional[str]):
        self._job = job
        self._folder = FOLDER / f"hvdlite-{job}"

    def environment(self, environ: Mapping[str, str]) -> Dict[str, str]:
        """Make Open MPI's folder; return the variables that name it, unless the user set them."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
        except OSError:  # there is no /dev/shm
            return {}
        return {name: str(self._folder) for name in _OPEN_MPI if name not in environ}

    def remove(self, all_of_it: bool) -> None:
        """Remove the files of the job; if not ``all_of_it``, only its folder if that is empty."""
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
    """Return the files of the job with that number.

    :raises ValueError: it is not the number of a job.
    """
    if not _NUMBER.fullmatch(number):
        raise ValueError(f"{VARIABLE} is '{number}': expected 16 hexadecimal digits")
    return SharedMemory(number)

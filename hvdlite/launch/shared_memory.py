"""Removes what killed ranks leave in /dev/shm, where it would take memory until a reboot.

hvdlite's own memory has no name. Open MPI's segments have names, and a killed rank can't remove
them. So each job gives Open MPI a folder with the job's unique number in its name. If /dev/shm has
no room, as in a container, the folder is among the temporary files, because Open MPI would end
without a message.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping

from hvdlite.core import files, listening

FOLDER = "/dev/shm"
_ROOM = 20 << 20  # bytes: Open MPI 5 wants 16 MiB and a little more, and then takes 76 KiB a rank
VARIABLE = "HVDLITE_JOB"  # the number

# Where Open MPI 5 and 4 put their segments: for each component, the names of one variable.
_OPEN_MPI = tuple(
    {f"OMPI_MCA_{name}_backing_directory" for name in names}
    for names in (("btl_sm", "btl_vader"), ("osc_sm",), ("osc_rdma",))
)


class SharedMemory:
    """The folder of one job on this host, in /dev/shm if it can be; job None has none."""

    def __init__(self, job: str | None):
        self._job = job
        self._name = f"hvdlite-{job}"
        self._folder = os.path.join(FOLDER, self._name)

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Make Open MPI's folder; return the variables that name it, unless the user set them."""
        try:
            if not _has_room(FOLDER):
                self._folder = os.path.join(_temporary(), self._name)
            files.make_private_folder(self._folder)
        except OSError:  # there is no /dev/shm, no room anywhere, or it is another user's
            return {}
        given = listening.with_files(environ)
        unset = [names for names in _OPEN_MPI if names.isdisjoint(given)]
        return {name: self._folder for names in unset for name in names}

    def remove(self, all_of_it: bool) -> None:
        """Remove the folder of the job; if not ``all_of_it``, only if it is empty."""
        if not self._job:
            return
        if not all_of_it:
            with contextlib.suppress(OSError):
                os.rmdir(self._folder)
            return
        import shutil  # it takes 3 ms with tempfile, of each agent's start

        shutil.rmtree(os.path.join(FOLDER, self._name), ignore_errors=True)
        with contextlib.suppress(OSError):
            shutil.rmtree(os.path.join(_temporary(), self._name), ignore_errors=True)


def _temporary() -> str:
    """Return the folder for temporary files; OSError: the disk is full, so there is none."""
    import tempfile

    return tempfile.gettempdir()


def _has_room(folder: str) -> bool:
    with contextlib.suppress(OSError):
        memory = os.statvfs(folder)
        return memory.f_bavail * memory.f_frsize >= _ROOM
    return True  # making the folder will show it


NOTHING = SharedMemory(None)


def of_job(number: str) -> SharedMemory:
    """Return the files of the job with that number.

    :raises ValueError: it is not the number of a job.
    """
    if not re.fullmatch("[0-9a-f]{16}", number):
        raise ValueError(f"{VARIABLE} is '{number}': expected 16 hexadecimal digits")
    return SharedMemory(number)

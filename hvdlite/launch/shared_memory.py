"""Removes what killed ranks have left in /dev/shm: it would take up memory until the next boot.

MPI libraries and hvdlite unlink their segments in time if they can; a rank that is killed can't.
The last agent of a job on its host finds what nobody maps any more.
"""

import contextlib
import os
from pathlib import Path
from typing import Set

FOLDER = Path("/dev/shm")
_NAMES = ("mpich_shm", "sm_segment.", "vader_segment.", "osc_rdma.", "hvdlite")


def remove_leftovers(since: float) -> None:
    """Remove segments of MPI and hvdlite that are this user's, newer than ``since``, and unmapped.

    :param since: seconds since the epoch. An older segment is of another job, which may be alive
        where this user cannot look.
    """
    found = {path for path in FOLDER.iterdir() if _may_be_ours(path, since)}
    for path in found - _mapped() if found else ():
        with contextlib.suppress(OSError):
            path.unlink()


def _may_be_ours(path: Path, since: float) -> bool:
    if not path.name.startswith(_NAMES):
        return False
    try:
        status = path.stat()
    except OSError:
        return False
    return status.st_uid == os.getuid() and status.st_mtime >= since


def _mapped() -> Set[Path]:
    """Return the files of /dev/shm that a process has mapped."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            lines = maps.read_text(errors="replace").splitlines()
        except OSError:
            continue
        names = (line.split(None, 5)[-1] for line in lines if "/dev/shm/" in line)
        found.update(Path(name) for name in names)
    return found

"""Compiles C++ libraries that depend on the installed version of a framework, once per version.

A file's name contains the version of the framework and a hash of the sources, flags and ABIs.
hvdlite's wheel contains the files for some versions. For other versions, the first use compiles a
file into ``$HVDLITE_CACHE``, by default ``~/.cache/hvdlite``. If this folder is read-only, the file
is in a temporary folder.
"""

import contextlib
import fcntl
import functools
import hashlib
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Callable, Iterator, List, Sequence

from hvdlite.machine import files
from hvdlite.machine.probe import CACHE, cache_folders, shipped_folder

CSRC = Path(__file__).parents[1] / "csrc"
# Every source includes these headers, which declare the core's functions.
CORE_HEADERS = [CSRC / name for name in ("functions.h", "hvd.h", "base/error.h", "base/types.h")]
# flags for all libraries; callers add the option for the standard of C++
FLAGS = (*(CSRC / "flags.txt").read_text().split(), "-O2", "-shared", "-fPIC")
PATIENCE = 600.0  # a rank waits at least so many seconds while another rank compiles


def build(
    what: str, stem: str, about: Sequence[str], sources: Sequence[Path],
    command: Callable[[], List[str]], patience: float = PATIENCE,
) -> Path:  # fmt: skip
    """Compile a library if no folder has it yet, and return the library's path.

    If several processes need the library at once, one process compiles and the others wait.

    :param what: the library's name in errors, such as "PyTorch's backend", with its module.
    :param stem: the first part of the file's name, with the framework's version.
    :param about: the flags and ABIs on which the file depends, besides the sources.
    :param command: returns the compiler's command, without the output.
    :param patience: how many seconds to wait while another process compiles.
    :raises RuntimeError: compiling failed, or another process compiles for too long.
    """
    texts = [file.read_bytes() for file in sources]
    found = hashlib.sha256(b"\0".join([*texts, *map(str.encode, about)])).hexdigest()[:16]
    name, refused = f"{stem}-{found}.so", []
    shipped = Path(shipped_folder(), name)
    if shipped.exists():
        return shipped
    folders = [Path(folder) for folder in cache_folders()]
    for step in _find, functools.partial(_compile_once, what, command, patience):
        for folder in folders:
            try:
                if step(folder / name):
                    return folder / name
            except OSError as error:
                refused.append(str(error))
    raise RuntimeError(
        f"hvdlite: no folder for the libraries that it compiles ({'; '.join(refused)}): set "
        f"{CACHE} to a folder that this user can write to"
    )


def _find(path: Path) -> bool:
    """Return True if the file exists and no other user can have written it."""
    if not path.exists():
        return False
    files.refuse_strangers(path.parent)
    return bool(files.refuse_strangers(path))


def _compile_once(what: str, command: Callable[[], List[str]], patience: float, path: Path) -> bool:
    """Compile the file unless it exists. An OSError means that the folder can't be used."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.refuse_strangers(path.parent)  # raises if other users could write a library there
    with _lock(path.with_suffix(".lock"), patience, what):
        if not path.exists():
            _compile(what, command(), path)
    return True


@contextlib.contextmanager
def _lock(path: Path, patience: float, what: str) -> Iterator[None]:
    """Hold a lock on this file. The kernel releases the lock even if the process is killed."""
    until = time.monotonic() + patience
    with files.open_named(path) as file:
        while not _try_lock(file):
            if time.monotonic() > until:
                raise RuntimeError(
                    f"hvdlite: another process has been compiling {what} for {patience:.0f} "
                    f"seconds: end the process that holds {path} (`fuser` finds it)"
                )
            time.sleep(0.1)
        yield


def _try_lock(file) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _compile(what: str, command: List[str], path: Path) -> None:
    if shutil.which(command[0]) is None:
        raise RuntimeError(
            f"hvdlite: no compiler ({command[0]}) for {what}, which must be compiled once for each "
            "version of the framework. Install a compiler (`apt-get install g++`) or name one in "
            "CXX; or compile on a machine with a compiler and this version of the framework, and "
            f"set {CACHE} to a folder that both machines can read"
        )
    # Compile in a temporary folder and rename, so that a crash leaves no partly written library.
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch, path.name)
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"hvdlite: {what} can't be compiled: `{shlex.join(command)}` failed:\n"
                f"{done.stderr[-4000:]}"
            )
        made.replace(path)

"""Compiles a library that depends on the installed version of a framework, once, into a folder.

A file is named by the version of the framework and a hash of the sources and of what it depends on.
hvdlite's wheel has the files for some versions; the others are compiled into ``$HVDLITE_CACHE``, by
default ``~/.cache/hvdlite``, or, if nothing can be written there, into the temporary folder.
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
# the headers with the core's functions, which every source includes
CORE_HEADERS = [CSRC / name for name in ("functions.h", "hvd.h", "base/error.h", "base/types.h")]
PATIENCE = 600.0  # least seconds that a rank waits for the rank that compiles


def build(
    what: str, stem: str, about: Sequence[str], sources: Sequence[Path],
    command: Callable[[], List[str]], patience: float = PATIENCE,
) -> Path:  # fmt: skip
    """Return the compiled file; of all processes that ask at once, one compiles.

    :param what: what is compiled, for errors, such as "PyTorch's backend", and the module that
        compiles it.
    :param stem: the first part of the file's name, with the framework's version.
    :param about: what the file depends on beside the sources: flags and ABIs.
    :param command: returns the compiler's command, without the output.
    :param patience: seconds to wait while another process compiles.
    :raises RuntimeError: it can't be compiled, or another process has compiled it for too long.
    """
    texts = [file.read_bytes() for file in sources]
    found = hashlib.sha256(b"\0".join([*texts, *map(str.encode, about)])).hexdigest()[:16]
    name, refused = f"{stem}-{found}.so", []
    shipped = Path(shipped_folder(), name)
    if shipped.exists():
        return shipped
    folders = [Path(folder) for folder in cache_folders()]
    for step in _existing, functools.partial(_made, what, command, patience):
        for folder in folders:
            try:
                if step(folder / name):
                    return folder / name
            except OSError as error:
                refused.append(str(error))
    raise RuntimeError(
        f"hvdlite: no folder for the libraries that it compiles ({'; '.join(refused)}): set "
        f"{CACHE} to a folder that can be written to"
    )


def _existing(path: Path) -> bool:
    """Tell whether the file is there, and no other user can have put it there."""
    if not path.exists():
        return False
    files.refuse_strangers(path.parent)
    return bool(files.refuse_strangers(path))


def _made(what: str, command: Callable[[], List[str]], patience: float, path: Path) -> bool:
    """Compile the file unless another process has; an OSError says why the folder is unfit."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.refuse_strangers(path.parent)  # raises, because other users could put their code there
    with _locked(path.with_suffix(".lock"), patience, what):
        if not path.exists():
            _compile(what, command(), path)
    return True


@contextlib.contextmanager
def _locked(path: Path, patience: float, what: str) -> Iterator[None]:
    """Hold the lock of this file; the end of the process releases the lock, however it ends."""
    until = time.monotonic() + patience
    with files.open_named(path) as file:
        while not _try_lock(file):
            if time.monotonic() > until:
                raise RuntimeError(
                    f"hvdlite: another process has been compiling {what} for {patience:.0f} "
                    f"seconds; it holds {path}"
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
            f"hvdlite: no compiler ({command[0]}) for {what}: it is compiled once for each version "
            "of the framework. Install one (`apt-get install g++`) or name it by CXX; or compile "
            f"where there is one, with this version, and set {CACHE} to a folder that both can read"
        )
    # in a folder of its own, so that a crash leaves no half-written file
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        made = Path(scratch, path.name)
        done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(
                f"hvdlite: {what} can't be compiled: `{shlex.join(command)}` failed:\n"
                f"{done.stderr[-4000:]}"
            )
        made.replace(path)

"""Opens the files that hvdlite writes outside of its own folders, safely.

In a folder such as /tmp another user may already have made a file or a link with the same name.
``writing`` adds the file's path to errors, because Python's error for a full disk has no path.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes 2 ms
    from typing import Any


class NotWritten(Exception):
    """A file can't be written; the text has its path and the reason."""


def text_of(path: str) -> str:
    """Return the file's text without the byte-order mark that some editors put in front.

    This module avoids pathlib, because importing pathlib takes 3 ms.
    """
    with open(path, encoding="utf-8-sig") as file:
        return file.read()


def fill_standard_descriptors() -> None:
    """Open /dev/null as each of the descriptors 0 to 2 that is closed.

    Otherwise a socket or shared memory could get a descriptor to which some library prints.
    """
    file = 0
    while file < 3:
        file = os.open(os.devnull, os.O_RDWR)
    os.close(file)


@contextlib.contextmanager
def writing(path) -> Iterator[None]:
    """Turn an OSError of the block, which writes ``path``, into NotWritten."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"{path} can't be written: {error.strerror}") from error


def create(path, mode: str = "x") -> Any:
    """Create and open a file whose name hvdlite has chosen; only this user may read it.

    :raises FileExistsError: there is a file or a link with this name.
    """

    def new(name: str, flags: int) -> int:
        return os.open(name, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)

    return open(path, mode, opener=new)  # noqa: SIM115 - the caller closes it


def open_named(path, mode: str = "w", **options) -> Any:
    """Like ``open``, for a file that the user has named, but refuse another user's file.

    :raises PermissionError: any user may write to the folder, and another user owns the file.
    """

    def own(name: str, flags: int) -> int:
        while True:
            exclusive = 0 if refuse_strangers(name) else os.O_EXCL
            try:
                return os.open(name, flags | exclusive, 0o666)
            except FileExistsError:  # another process has just made the file: check who owns it
                if not exclusive:
                    raise

    return open(path, mode, opener=own, **options)  # noqa: SIM115 - the caller closes it


def refuse_strangers(path) -> os.stat_result | None:
    """Raise PermissionError for another user's file in a folder where any user may write.

    Return lstat() of the file, or None if there is no such file.
    """
    folder = os.stat(os.path.dirname(os.path.abspath(path)))
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if not folder.st_mode & stat.S_IWOTH:
        return found
    text = ""
    if found.st_uid not in (os.geteuid(), folder.st_uid):
        kinds = (stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a folder")
        what = next((name for is_it, name in kinds if is_it(found.st_mode)), "a file")
        text = f"{what} of another user has this name"
    elif stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        text = "this file has another name, too, which another user may have given it"
    if text:
        text += ", in a folder where anybody may write: choose another name"
        raise PermissionError(errno.EACCES, text, str(path))
    return found


def make_named_folder(path) -> None:
    """Make a folder that the user has named, unless it exists.

    :raises PermissionError: as for ``open_named``.
    """
    os.makedirs(path, exist_ok=True)
    refuse_strangers(path)


def make_private_folder(path) -> None:
    """Make a folder that only this user may use, unless this user has made it before.

    :raises PermissionError: another user owns the folder, or others may write to it.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.lstat(path)
    mine = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not mine or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        text = "other users own this folder or may write to it"
        raise PermissionError(errno.EACCES, text, str(path))


def shipped(stem: str) -> str | None:
    """Return the path of the library with this name in hvdlite's installation, or None."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    names = sorted(name for name in os.listdir(folder) if name.startswith(f"{stem}."))
    return os.path.join(folder, names[0]) if names else None

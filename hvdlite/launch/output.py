"""Delivers the ranks' output: to the terminal, with labels, or to files."""

import contextlib
import os
import sys
import time
from collections import deque
from typing import BinaryIO, Deque, Dict, List, Optional, TextIO

from hvdlite.launch.job import LaunchError
from hvdlite.machine import files

LAST_LINES = 20  # lines of a failed rank that the report repeats; chosen: fits a screen
STDOUT, STDERR = 0, 1
_COLORS = (36, 33, 32, 35, 34, 91, 96, 93, 92, 95)  # ANSI codes; ranks get them in turn


class Lines:
    """Cuts bytes into lines. A line that was redrawn (\\r) is shown in its last state."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> List[str]:
        *lines, last = data.split(b"\n")
        if lines:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        # search only from the last old byte on, because a line may be very long
        new = max(len(self._rest) - 1, 0)
        self._rest += last
        redrawn = self._rest[new:].rstrip(b"\r").rfind(b"\r") + 1
        del self._rest[: redrawn and new + redrawn]
        return [_shown(line) for line in lines]

    def end(self) -> List[str]:
        rest, self._rest = self._rest, bytearray()
        return [_shown(bytes(rest))] if rest else []


def _shown(line: bytes) -> str:
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode(errors="replace")


class Console:
    """Prints lines with the label of their rank in front.

    If nobody reads stdout or stderr any more, the first line raises BrokenPipeError and later lines
    are dropped. If a disk is full, the user is told, and lines for this disk are dropped.
    """

    def __init__(self, out: TextIO, err: TextIO, timestamps: bool = False):
        self._streams = (out, err)
        self._timestamps = timestamps
        self._colors = [wants_color(stream) for stream in self._streams]

    def write(self, rank: int, label: str, stream: int, line: str) -> None:
        prefix = time.strftime(f"%H:%M:%S [{label}]") if self._timestamps else f"[{label}]"
        if self._colors[stream]:
            prefix = f"\x1b[{_COLORS[rank % len(_COLORS)]}m{prefix}\x1b[0m"
        try:
            out = self._streams[stream]
            # replace characters that the terminal's encoding lacks
            encoding = out.encoding or "utf-8"
            line = line.encode(encoding, "replace").decode(encoding)
            print(prefix, line, file=out, flush=True)
        except OSError as error:
            silence(self._streams[stream])
            if isinstance(error, BrokenPipeError):
                raise
            name = ("stdout", "stderr")[stream]
            why = f"{name} can't be written: {error.strerror}"
            tell(f"hvdliterun: {why}: the job goes on without it")


def silence(stream: TextIO) -> None:
    """Send all further output to /dev/null, also what Python flushes at its exit."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def wants_color(stream: TextIO) -> bool:
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def tell(*lines: str) -> None:
    """Print the launcher's own lines to stderr; drop lines that can't be written."""
    try:
        for line in lines:
            print(line, file=sys.stderr, flush=True)
    except OSError:  # the disk is full, or the terminal is gone
        silence(sys.stderr)


class Files:
    """Writes FOLDER/rank.N/stdout and stderr, as Horovod does, without any change to the bytes.

    :param again: append to the files of a job that starts again.
    :raises LaunchError: the folder can't be made.
    """

    def __init__(self, folder: str, again: bool = False):
        self._folder, self._mode = folder, "ab" if again else "wb"
        self._open: Dict[str, BinaryIO] = {}
        try:
            files.make_named_folder(folder)
        except OSError as error:
            raise LaunchError(f"--output-filename {folder}: {error.strerror}") from error

    def write(self, label: str, stream: int, data: bytes) -> None:
        """Append to a rank's file; an OSError has the file's path."""
        path = os.path.join(self._folder, file_label(label), ("stdout", "stderr")[stream])
        try:
            self._append(path, data)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from error

    def _append(self, path: str, data: bytes) -> None:
        if path not in self._open:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._open[path] = files.open_named(path, self._mode, buffering=0)
        while data:  # repeated, because a nearly full disk takes only a part of the data
            data = data[self._open[path].write(data) :]

    def close(self) -> None:
        for file in self._open.values():
            with contextlib.suppress(OSError):
                file.close()


def file_label(label: str) -> str:
    """Return "rank.3" for "3" and "server.0" for "server 0"."""
    return f"rank.{label}" if label.isdigit() else label.replace(" ", ".")


class Output:
    """Writes all ranks' output to files, or to the console if there are no files or one fails."""

    def __init__(self, console: Console, files: Optional[Files] = None):
        self.console = console
        self._files = files
        self._lines: Dict[tuple, Lines] = {}
        self._last: Dict[int, Deque[str]] = {}

    def write(self, rank: int, label: str, stream: int, data: bytes) -> None:
        lines = self._lines.setdefault((rank, stream), Lines()).feed(data)
        try:
            if self._files:
                self._files.write(label, stream, data)
        except OSError as error:
            why = f"{error.filename} can't be written: {error.strerror}"
            tell(f"hvdliterun: {why}: all output comes here now")
            self.close()
        self._show(rank, label, stream, lines)

    def end(self, rank: int, label: str) -> None:
        """Print the rest of a rank's output, after the last newline."""
        for stream in (STDOUT, STDERR):
            if (rank, stream) in self._lines:
                self._show(rank, label, stream, self._lines[rank, stream].end())

    def last_lines(self, rank: int) -> List[str]:
        return list(self._last.get(rank, ()))

    def close(self) -> None:
        if self._files:
            self._files.close()
            self._files = None

    def _show(self, rank: int, label: str, stream: int, lines: List[str]) -> None:
        self._last.setdefault(rank, deque(maxlen=LAST_LINES)).extend(lines)
        for line in lines if not self._files else ():
            self.console.write(rank, label, stream, line)

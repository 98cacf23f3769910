"""Reads the flight recorders of this user's processes, which are memfd files.

``csrc/shm/flight.h`` describes the contents. A text at the beginning gives the offset of each
field, so this module can also read recorders of other versions of hvdlite.
"""

import contextlib
import json
import os
import re
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence

import numpy

from hvdlite.core.native import ffi, lib
from hvdlite.machine.processes import stat_of

_FORMAT = ffi.string(lib.hvd_flight_format).decode() + ";"
# Phases and kinds of operations that need special treatment; the layout text names all of them.
UNDER_WAY = ("waits", "agreed", "moves")
ALONE = "alone"  # the kind of local work of a rank, such as an update
MESSAGES = ("send", "recv")  # kinds of operations between two ranks
_MOST_LAYOUT = 1 << 16  # bytes to read of the layout text, which ends with a NUL
_LINK = "/memfd:hvdlite"
_MOST_STACKS = 1 << 20  # the largest number of bytes to read of a process's stacks
_ATTEMPTS = 5  # how often to read operations again while the process writes them
_HEAD = {  # the fields that readers need, by type: integers, times, texts
    "iu": "pid rank size stacks bytes_sent_network bytes_sent_window waited waits_since waits_for "
    "steps troubles failed",
    "f": "began clock_offset",
    "S": "host job transport trouble",
}
_OP = {
    "iu": "version number bytes batch group phase kind",
    "f": "submitted agreed started ended",
    "S": "name",
}

Op = Dict[str, Any]


class NoRecorder(Exception):
    """No flight recorder was found. The text says where this module searched and what to do."""


class Snapshot(NamedTuple):
    """The contents of one rank's recorder. Times are seconds of the host's monotonic clock."""

    head: Dict[str, Any]  # the fields of struct flight_memory
    ops: List[Op]  # the last operations, the oldest first
    state: str  # the process's state: "runs", "is stopped", "has ended", ...
    now: float  # the time of the reading
    stacks: str = ""
    misplaced: str = ""  # a text if the process's threads or memory are on several NUMA nodes

    @property
    def rank(self) -> int:
        return self.head["rank"]


def title(op: Op) -> str:
    """Return "kind name" of an operation, or only the name if it begins with the kind."""
    kind, name = op["kind"], op["name"]
    return name if name.startswith(f"{kind}.") else f"{kind} {name}"


def to_line(ranks: Sequence[Snapshot]) -> str:
    return json.dumps([one._asdict() for one in ranks])


def from_line(line: str) -> List[Snapshot]:
    """Return the snapshots in a line that :func:`to_line` has written."""
    return [Snapshot(**one) for one in json.loads(line)]


# ------------------------------------------------------------------------------------- finding
def files_of(pid: int) -> List[str]:
    """Return the paths of the recorders that a process has open; its own recorder comes first."""
    own: List[str] = []
    others: List[str] = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError, NoRecorder):
                if os.readlink(entry.path).startswith(_LINK):
                    with Recorder(entry.path) as recorder:
                        is_own = recorder.head()["pid"] == pid
                    (own if is_own else others).append(entry.path)
    return own + others


def processes() -> Iterator[int]:
    """Yield the ids of the processes whose files this user may read."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if entry.stat().st_uid == os.geteuid() or os.geteuid() == 0:
                    yield int(entry.name)


def find(job: Optional[str] = None) -> List["Recorder"]:
    """Open the recorders of all ranks on this host, of one job or of all jobs.

    The recorder of a dead rank is also found, if another process has the recorder open.
    """
    found: Dict[int, Recorder] = {}
    for pid in processes():
        for path in files_of(pid):
            with contextlib.suppress(OSError, NoRecorder):
                recorder = Recorder(path)
                head = recorder.head()
                if head["pid"] in found or (job is not None and head["job"] != job):
                    recorder.close()
                else:
                    found[head["pid"]] = recorder
    return list(found.values())


# ------------------------------------------------------------------------------------- reading
class Recorder:
    """An open recorder, which can be read even after its process has died.

    :raises NoRecorder: the file is not a recorder.
    """

    def __init__(self, path: str):
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.pread(self._file, _MOST_LAYOUT, 0)
            self._layout = _parse(text, path, os.fstat(self._file).st_size)
        except BaseException:
            os.close(self._file)
            raise

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._file)

    def head(self) -> Dict[str, Any]:
        """Return the fields about the rank and the job, without the operations."""
        layout = self._layout
        data = os.pread(self._file, layout.ring, 0)
        return _plain(layout.head, numpy.frombuffer(data, layout.head, 1).tolist()[0])

    def ops(self) -> List[Op]:
        """Return the operations in order, without operations that the process is writing now."""
        layout = self._layout
        found: Dict[int, tuple] = {}
        for _ in range(_ATTEMPTS):
            before, ops, after = (self._ring() for _ in range(3))
            whole = (before["version"] % 2 == 0) & (before["version"] == after["version"])
            fit = whole & (ops["number"] > 0)
            found.update(zip(ops["number"][fit].tolist(), ops[fit].tolist()))
            if whole.all():
                break
        newest = max(found, default=0)
        numbers = [n for n in sorted(found) if n > newest - layout.slots]
        readable = [_plain(layout.op, found[n]) for n in numbers]
        for op in readable:
            del op["version"]
            for field, of_number in layout.names.items():
                op[field] = of_number.get(op[field], "?")
        return readable

    def _ring(self):
        layout = self._layout
        size = layout.slots * layout.op.itemsize
        return numpy.frombuffer(os.pread(self._file, size, layout.ring), layout.op)

    def stacks(self) -> str:
        """Return the stacks that the process appended to its recorder at the last signal."""
        return os.pread(self._file, _MOST_STACKS, self._layout.bytes).decode(errors="replace")

    def forget_stacks(self) -> None:
        with contextlib.suppress(OSError):
            os.truncate(f"/proc/self/fd/{self._file}", self._layout.bytes)

    def size(self) -> int:
        return os.fstat(self._file).st_size

    def snapshot(self, stacks: str = "") -> Snapshot:
        head = self.head()
        return Snapshot(head, self.ops(), state_of(head["pid"]), time.monotonic(), stacks)


class _Layout(NamedTuple):
    bytes: int  # size of the recorder; the stacks follow at this offset
    ring: int  # offset of the operations
    slots: int  # how many operations the recorder keeps
    head: numpy.dtype
    op: numpy.dtype
    names: Dict[str, Dict[int, str]]  # for "phase" and "kind", the name of each number


_FIELD = re.compile(r"(op\.)?([\w.]+) (S|[iuf][1248])@(\d+):(\d+)")
_NAME = re.compile(r";(phase|kind)\.(\d+) (\w+)")


def _parse(data: bytes, path: str, size: int) -> _Layout:
    """Parse the layout text at the beginning. Check everything: any process can write a memfd."""
    text = data.partition(b"\0")[0].decode(errors="replace")
    if not text.startswith(_FORMAT):
        raise NoRecorder(f"{path} is not a flight recorder of hvdlite, or has another format")
    try:
        layout = _layout_of(text)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise NoRecorder(f"{path} is a damaged flight recorder: {error!r}") from None
    end = layout.ring + layout.slots * layout.op.itemsize
    if not end <= layout.bytes <= size:
        raise NoRecorder(
            f"{path} is a damaged flight recorder: it has {size} bytes: expected {end}"
        )
    return layout


def _layout_of(text: str) -> _Layout:
    sizes = dict(re.findall(r"(?<![\w.])(bytes|ring|ops|op) (\d+);", text))
    fields: Dict[str, list] = {"": [], "op.": []}
    for prefix, name, kind, offset, size in _FIELD.findall(text):
        kind = f"S{size}" if kind == "S" else f"={kind}"
        fields[prefix].append((name.rpartition(".")[2], kind, int(offset)))
    head = _dtype(fields[""], int(sizes["ring"]))
    op = _dtype(fields["op."], int(sizes["op"]))
    _check(head, _HEAD)
    _check(op, _OP)
    names: Dict[str, Dict[int, str]] = {"phase": {}, "kind": {}}
    for field, number, name in _NAME.findall(text):
        names[field][int(number)] = name
    named = {*names["phase"].values(), *names["kind"].values()}
    missing = {*UNDER_WAY, ALONE, *MESSAGES} - named
    if missing:
        raise ValueError(f"its layout does not name {min(missing)}")
    return _Layout(int(sizes["bytes"]), int(sizes["ring"]), int(sizes["ops"]), head, op, names)


def _check(dtype: numpy.dtype, needed: Dict[str, str]) -> None:
    for kinds, names in needed.items():
        for name in names.split():
            if dtype[name].kind not in kinds:  # raises KeyError if the field is missing
                raise ValueError(f"the field {name} has the wrong type {dtype[name]}")


def _dtype(fields: list, size: int) -> numpy.dtype:
    names, formats, offsets = zip(*fields)
    return numpy.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": size})


def _plain(dtype: numpy.dtype, values: tuple) -> Dict[str, Any]:
    def value(item):  # a text ends at its NUL; bytes after the NUL belong to an older text
        whole = not isinstance(item, bytes)
        return item if whole else item.partition(b"\0")[0].decode(errors="replace")

    return {name: value(item) for name, item in zip(dtype.names or (), values)}


# ------------------------------------------------------------------------------------ processes
ENDED = "has ended"
_STATES = {"T": "is stopped", "t": "is stopped by a debugger", "D": "waits for I/O", "Z": ENDED}


def state_of(pid: int) -> str:
    """Return the state of a process of this host: "runs", "is stopped", "has ended", ..."""
    try:
        letter = stat_of(f"/proc/{pid}/stat")[0]
    except (OSError, IndexError):
        return ENDED
    return _STATES.get(letter, "runs")

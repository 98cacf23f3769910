"""Reads the timelines of all ranks as one trace, in the time of rank 0's clock."""

import json
from pathlib import Path
from typing import Any, Dict, Iterable, List, NamedTuple, Sequence


class BadTrace(Exception):
    """A file is not a timeline of hvdlite. The text names the file and says what to do."""


class Tensor(NamedTuple):
    """One submission of a tensor on one rank. Times are seconds since the trace began."""

    rank: int
    name: str
    kind: str
    bytes: int
    batch: int
    submitted: float
    agreed: float
    started: float
    ended: float
    waited: bool = False  # True: the submitting thread waited for the result

    @property
    def key(self) -> tuple:
        """A key that is equal on all ranks for the same tensor, and unique within the group."""
        return self.batch, self.name


class Note(NamedTuple):
    """A span of a rank's local work: ``what`` is "input" or "update"."""

    rank: int
    what: str
    begin: float
    end: float


class Trace(NamedTuple):
    """The merged timelines of several ranks."""

    events: List[Dict[str, Any]]  # Trace Event Format, in microseconds of rank 0's clock
    tensors: List[Tensor]
    notes: List[Note]
    error: float  # the largest error in seconds when times of two ranks are compared
    name: str  # a text with the job, its hosts, and the time when it began
    hosts: Dict[int, str]  # the host of each rank; empty for older timelines


def read(paths: Sequence[str]) -> Trace:
    """Read and merge timelines, one file per rank.

    :raises BadTrace: a file is not a timeline, or two files are of the same rank.
    """
    files = {path: _events_of(path) for path in paths}
    clocks = {path: _clock_of(path, events) for path, events in files.items()}
    begin = min(clock["origin"] + clock["offset"] for clock in clocks.values())
    merged: List[Dict[str, Any]] = []
    tensors: List[Tensor] = []
    notes: List[Note] = []
    seen: Dict[int, str] = {}
    for path, events in files.items():
        rank = clocks[path]["rank"]
        if rank in seen:
            raise BadTrace(
                f"{seen[rank]} and {path} are both of rank {rank}: give one file for each rank"
            )
        seen[rank] = path
        shift = (clocks[path]["origin"] + clocks[path]["offset"] - begin) * 1e6
        moved = [_moved(event, shift) for event in events]
        merged += moved
        spans = _spans_of(moved)
        tensors += _tensors_of(rank, spans)
        of_notes = [ends for ends in spans if [end["ph"] for end in ends] == ["b", "e"]]
        notes += [Note(rank, a["name"], a["ts"] / 1e6, b["ts"] / 1e6) for a, b in of_notes]
        order = {"name": "process_sort_index", "args": {"sort_index": rank}}
        merged.append({"ph": "M", "pid": rank, **order})
    errors = sorted(clock["error"] for clock in clocks.values())
    return Trace(
        merged,
        sorted(tensors, key=lambda t: t.submitted),
        notes,
        sum(errors[-2:]),
        _name(list(clocks.values())),
        {clock["rank"]: clock["host"] for clock in clocks.values() if "host" in clock},
    )


def _name(clocks: Sequence[Dict[str, Any]]) -> str:
    """Return "job ab12 on n1, n2, 2026-11-25 20:00:00", or "hvdlite" for older timelines."""
    known = [clock for clock in clocks if "job" in clock]
    if not known:
        return "hvdlite"
    hosts = sorted({clock["host"] for clock in known})
    where = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if hosts[4:] else "")
    return f"job {known[0]['job']} on {where}, {min(clock['began'] for clock in known)}"


def _events_of(path: str) -> List[Dict[str, Any]]:
    """Parse a file. A killed rank may have written only a part of the last line."""
    try:
        text = Path(path).read_text(errors="replace")
    except OSError as error:
        raise BadTrace(f"{path} can't be read: {error.strerror}") from None
    if not text.startswith("["):
        raise BadTrace(
            f"{path} is not a timeline: give files that a job with HVDLITE_TIMELINE has written"
        )
    if not text.rstrip().endswith("]"):
        text = text[: max(text.rfind("},\n"), 0) + 1] + "]"
    try:
        return [event for event in json.loads(text) if isinstance(event, dict)]
    except ValueError as error:
        raise BadTrace(f"{path} is not a timeline: {error}") from None


def _clock_of(path: str, events: Iterable[Dict[str, Any]]) -> Dict[str, Any]:
    """Return the file's last entry about the clock; earlier ones precede the clocks' comparison."""
    clock = None
    for event in events:
        if event.get("ph") == "M" and event.get("name") == "hvdlite_clock":
            clock = {"rank": event["pid"], **event["args"]}
    if clock is None:
        raise BadTrace(
            f"{path} has no clock: an older hvdlite has written it, or it is not a timeline"
        )
    return clock


def _moved(event: Dict[str, Any], shift: float) -> Dict[str, Any]:
    """Shift the event's time; prefix its id with the rank, because viewers join equal ids."""
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + shift, 3)
    if "id" in moved:
        moved["id"] = f"{moved['pid']}:{moved['id']}"
    return moved


def _spans_of(events: Iterable[Dict[str, Any]]) -> List[List[Dict[str, Any]]]:
    """Return, for each tensor and each note, a list of the events that begin and end its spans."""
    of: Dict[str, List[Dict[str, Any]]] = {}
    for event in events:
        if event.get("cat") == "tensor":
            of.setdefault(event["id"], []).append(event)
    return list(of.values())


def _tensors_of(rank: int, spans: Iterable[List[Dict[str, Any]]]) -> List[Tensor]:
    found: List[Tensor] = []
    for ends_of_spans in spans:
        if len(ends_of_spans) < 8:  # local work, or a tensor that has not ended
            continue
        whole, negotiate, _, queue, _, move, _, end = ends_of_spans
        args = move["args"]
        times = (each["ts"] / 1e6 for each in (negotiate, queue, move, end))
        batch, waited = args.get("batch", 0), args.get("waited", False)
        if args.get("later"):  # a later piece of a tensor: extend the entry of its first piece
            own = (i for i in reversed(range(len(found))) if found[i].name == whole["name"])
            first = next(own, None)
            if first is not None:
                found[first] = found[first]._replace(ended=end["ts"] / 1e6)
            continue
        found.append(
            Tensor(rank, whole["name"], move["name"], args["bytes"], batch, *times)._replace(
                waited=waited
            )
        )
    return found

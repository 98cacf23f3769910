"""Check traces in the Trace Event Format (ui.perfetto.dev); count this rank's recorded steps."""

from typing import Any, Callable, Dict, List, Tuple

import hvdlite
from hvdlite.core.native import lib
from hvdlite.monitor import memory

Spans = Dict[str, Tuple[float, float]]


def spans_of(events: List[Dict[str, Any]]) -> List[Tuple[str, Spans]]:
    """Check a trace; return the outermost name and the spans of each asynchronous track.

    A track is all events of one category and id. Its spans must be nested (the last to begin ends
    first), by time or, at equal times, by position in the file: viewers draw other spans wrong.
    """
    tracks: Dict[tuple, list] = {}
    for event in events:
        assert event["ph"] in ("b", "e", "i", "M"), event
        assert type(event["name"]) is str and type(event["pid"]) is int, event
        if event["ph"] == "M":
            assert type(event["args"]) is dict, event
            continue
        assert type(event["tid"]) is int and event["ts"] >= 0, event
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t"), event
        else:
            assert type(event["id"]) is str, event
            tracks.setdefault((event["cat"], event["id"]), []).append(event)
    return [
        _spans_of_track(sorted(track, key=lambda event: event["ts"])) for track in tracks.values()
    ]


def _spans_of_track(events: List[Dict[str, Any]]) -> Tuple[str, Spans]:
    found: Spans = {}
    opened: List[Dict[str, Any]] = []
    for event in events:
        if event["ph"] == "b":
            opened.append(event)
            continue
        begin = opened.pop()
        assert begin["name"] == event["name"], f"{event} ends, but {begin} is within it"
        assert event["name"] not in found, f"two spans {event['name']} in one track"
        found[event["name"]] = begin["ts"], event["ts"]
    assert not opened, f"no end: {opened}"
    return events[0]["name"], found


def counted(step: Callable[[], Any], steps: int) -> int:
    """Do the steps, with an allgather_object() after every 20; return how many were recorded."""
    with memory.Recorder(f"/proc/self/fd/{lib.hvd_flight_file()}") as recorder:
        before = recorder.head()["steps"]
        for number in range(steps):
            step()
            if number % 20 == 19:
                hvdlite.allgather_object(number)
        return recorder.head()["steps"] - before

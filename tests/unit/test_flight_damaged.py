"""Flight recorders with damaged bytes are refused if their layout is damaged.

If only numbers are damaged, reports and tables show wrong numbers but are still written.
"""

import random
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.launch.flights import Flights
from hvdlite.monitor import memory, report, rows
from hvdlite.monitor.memory import NoRecorder, Recorder

WRITES_ONE = """
import shutil, sys
import numpy as np
import hvdlite as hvd, hvdlite.numpy
from hvdlite.monitor.memory import files_of
import os
hvd.init()
for i in range(5):
    hvd.numpy.allreduce(np.ones(i + 1), name=f"tensor{i}")
shutil.copyfile(files_of(os.getpid())[0], sys.argv[1])
"""


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("flight") / "good"
    subprocess.run([sys.executable, "-c", WRITES_ONE, str(path)], check=True, timeout=120)
    return path.read_bytes()


def read(path: Path, data: bytes) -> bool:
    """Return whether the data can be read and shown; an error other than NoRecorder is raised."""
    path.write_bytes(data)
    try:
        with Recorder(str(path)) as recorder:
            show(*memory.from_line(memory.to_line([recorder.snapshot()])))
    except NoRecorder:
        return False
    return True


def show(one: memory.Snapshot) -> None:
    """Make a report and a table of this recorder and of the recorder of another rank."""
    other = one._replace(head={**one.head, "rank": 1, "size": 2}, ops=one.ops[:3])
    report.text("a rank has died", [one, other])
    [column.text(row) for row in rows.build([one, other], {1: one}) for column in rows.COLUMNS]


def test_an_undamaged_flight_recorder_is_read(good, tmp_path):
    assert read(tmp_path / "copy", good)


def test_a_flight_recorder_with_a_damaged_layout_raises_only_norecorder(good, tmp_path):
    rng = random.Random(3)
    length = good.index(b"\0")
    refused = 0
    for _ in range(400):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(length)] = rng.choice(b"0123456789@:;. Sfiop\0\xff")
        refused += not read(tmp_path / "damaged", bytes(data))
    assert refused > 100


INFINITY, NAN = (struct.pack("d", float(text)) for text in ("inf", "nan"))
EDGES = [b"\0" * 8, b"\xff" * 8, b"\xff" * 7 + b"\x7f", INFINITY, NAN]


def places(good: bytes) -> list:
    """Return the positions of the fields of the recorder's head and of the recorded operations."""
    fields = re.findall(rb"(op\.)?[\w.]+ [Siuf]\d?@(\d+):", good[: good.index(b"\0")])
    ring, size = (int(re.search(rb";%s (\d+);" % what, good)[1]) for what in (b"ring", b"op"))
    of_ops = [ring + int(at) for prefix, at in fields if prefix]
    return [int(at) for prefix, at in fields if not prefix] + [
        at + size * i for at in of_ops for i in range(5)
    ]


def test_damaged_numbers_of_a_flight_recorder_are_still_shown(good, tmp_path):
    """Random bytes change, or fields become 0, minimal, maximal, infinite or NaN."""
    rng = random.Random(4)
    begin, fields = good.index(b"\0"), places(good)
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rng.randint(1, 6)):
            edge = rng.choice([*EDGES, rng.getrandbits(64).to_bytes(8, "little")])[
                : rng.choice((1, 2, 4, 8))
            ]
            at = rng.choice(fields) if rng.random() < 0.8 else rng.randrange(begin, len(good) - 8)
            data[at : at + len(edge)] = edge
        assert read(tmp_path / "damaged", bytes(data)), "refused, though its layout is undamaged"


def with_head(good: bytes, path: Path, **values: int) -> Recorder:
    data = bytearray(good)
    for name, value in values.items():
        at, size = re.search(rb";%s i\d@(\d+):(\d);" % name.encode(), good).groups()
        data[int(at) : int(at) + int(size)] = value.to_bytes(int(size), sys.byteorder)
    path.write_bytes(data)
    return Recorder(str(path))


def test_a_report_with_a_damaged_number_of_ranks_is_written(good, tmp_path):
    with with_head(good, tmp_path / "damaged", size=2**31 - 1) as recorder:
        one = recorder.snapshot()
    one.ops[-1]["phase"] = "waits"
    assert "has waited for ranks 1-" in report.text("", [one._replace(state="runs")])


def test_a_report_about_damaged_memory_ends_no_process(good, tmp_path):
    """The damage: the signal that prints stacks is SIGKILL, and the process id is another's."""
    with subprocess.Popen(["sleep", "60"]) as victim:
        with with_head(good, tmp_path / "x", stacks=signal.SIGKILL, pid=victim.pid) as recorder:
            report.poll([recorder])
        assert victim.poll() is None
        victim.terminate()
        assert victim.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("part", [0, 1, 100, 2048, 10_000])
def test_a_truncated_flight_recorder_is_refused(part, good, tmp_path):
    assert not read(tmp_path / "cut", good[:part])


def test_the_launchers_summary_names_a_recorder_that_cannot_be_read():
    flights = Flights("job")
    flights.add(0, b'[{"head": 1}]')
    assert "the flight recorder of a rank can't be read" in flights.summary()
    assert flights.report("failure") is None

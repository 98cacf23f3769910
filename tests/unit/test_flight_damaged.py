"""A flight recorder whose bytes are damaged, or were never one, is told as such."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hvdlite.flight.memory import NoRecorder, Recorder

WRITES_ONE = """
import shutil, sys
import numpy as np
import hvdlite as hvd, hvdlite.numpy
from hvdlite.flight.memory import files_of
import os
hvd.init()
for i in range(5):
    hvd.numpy.allreduce(np.ones(i + 1), name=f"tensor{i}")
shutil.copyfile(files_of(os.getpid())[0], sys.argv[1])
"""


@pytest.fixture(scope="module")
def good(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("flight") / "good"
    subprocess.run([sys.executable, "-c", WRITES_ONE, str(path)], check=True, timeout=60)
    return path.read_bytes()


def read(path: Path, data: bytes) -> bool:
    """Whether it could be read; anything but NoRecorder is a failure."""
    path.write_bytes(data)
    try:
        with Recorder(str(path)) as recorder:
            recorder.snapshot().as_json()
    except NoRecorder:
        return False
    return True


def test_a_good_one_is_read(good, tmp_path):
    assert read(tmp_path / "copy", good)


def test_damaged_layouts(good, tmp_path):
    rng = random.Random(3)
    length = good.index(b"\0")
    refused = 0
    for _ in range(400):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(length)] = rng.choice(b"0123456789@:;. Sfiop\0\xff")
        refused += not read(tmp_path / "damaged", bytes(data))
    assert refused > 100


def test_damaged_memory(good, tmp_path):
    rng = random.Random(4)
    begin = good.index(b"\0")
    for _ in range(50):
        data = bytearray(good)
        at = rng.randrange(begin, len(data) - 64)
        data[at : at + 64] = os.urandom(64)
        read(tmp_path / "damaged", bytes(data))


@pytest.mark.parametrize("part", [0, 1, 100, 2048, 10_000])
def test_a_file_that_is_cut(part, good, tmp_path):
    assert not read(tmp_path / "cut", good[:part])

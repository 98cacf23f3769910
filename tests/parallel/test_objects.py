"""broadcast_object and allgather_object."""

import collections
import sys
import threading

import numpy as np
import pytest

import hvdlite as hvd

Point = collections.namedtuple("Point", "x y")

OBJECTS = [
    None,
    3,
    "text ä😀",
    b"",
    {"epoch": 3, "nested": [1, (2, {3})]},
    Point(1, [2]),
    np.arange(12.0).reshape(3, 4),
    "long" * 100_000,
]


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda o: type(o).__name__)
def test_objects_are_broadcast_from_each_root(obj, rank, size):
    for root in range(size):
        received = hvd.broadcast_object(obj if rank == root else object, root)
        assert type(received) is type(obj)
        assert np.array_equal(received, obj) if isinstance(obj, np.ndarray) else received == obj


def test_objects_of_other_types_are_gathered_by_rank(rank, size):
    """Of other lengths and types on each rank."""
    assert hvd.allgather_object("x" * (3 * rank)) == ["x" * (3 * r) for r in range(size)]
    objects = [None, "a", 2.5, {"k": [1]}]
    assert hvd.allgather_object(objects[rank % 4]) == [objects[r % 4] for r in range(size)]


def test_object_that_can_not_be_pickled():
    """Every rank has it, so every rank raises before anything is sent."""
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        hvd.allgather_object(threading.Lock())


def test_lambdas_that_only_cloudpickle_takes(rank, size):
    assert hvd.broadcast_object((lambda x: x + size) if rank == 0 else None)(1) == 1 + size
    assert [double(2) for double in hvd.allgather_object(lambda x: x * rank)] == [
        2 * r for r in range(size)
    ]


def test_without_cloudpickle_the_error_asks_for_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ValueError, match="to send it, run `pip install cloudpickle`"):
        hvd.allgather_object(lambda: None)


def test_a_class_stays_the_same_on_all_ranks():
    """Cloudpickle would make the script's own classes anew on the ranks that receive."""
    point = type(Point(1, 2))
    assert all(type(other) is point for other in hvd.allgather_object(Point(1, 2)))

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
def test_broadcast_object_from_each_root(obj, rank, size):
    for root in range(size):
        received = hvd.broadcast_object(obj if rank == root else object, root)
        assert type(received) is type(obj)
        assert np.array_equal(received, obj) if isinstance(obj, np.ndarray) else received == obj


def test_several_objects_of_one_type(rank, size):
    """Horovod names them by their type; here each call is on its own."""
    first, second = hvd.broadcast_object({"a": rank}), hvd.broadcast_object({"b": rank}, size - 1)
    assert (first, second) == ({"a": 0}, {"b": size - 1})
    assert hvd.broadcast_object({"c": rank}, name="mine") == {"c": 0}


def test_allgather_object(rank, size):
    assert hvd.allgather_object("x" * (3 * rank)) == ["x" * (3 * r) for r in range(size)]
    assert hvd.allgather_object([rank, None]) == [[r, None] for r in range(size)]


def test_allgather_object_of_other_type_on_each_rank(rank, size):
    objects = [None, "a", 2.5, {"k": [1]}]
    assert hvd.allgather_object(objects[rank % 4]) == [objects[r % 4] for r in range(size)]


def test_allgather_object_whose_sizes_change(rank, size):
    """Under one name, so that the cache has seen other sizes before."""
    for step in range(5):
        gathered = hvd.allgather_object("y" * (step * rank), name="grows")
        assert gathered == ["y" * (step * r) for r in range(size)]


def test_object_that_can_not_be_pickled():
    """Every rank has it, so every rank raises before anything is sent."""
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        hvd.allgather_object(threading.Lock())


def test_what_only_cloudpickle_takes(rank, size):
    assert hvd.broadcast_object((lambda x: x + size) if rank == 0 else None)(1) == 1 + size
    assert [double(2) for double in hvd.allgather_object(lambda x: x * rank)] == [
        2 * r for r in range(size)
    ]


def test_without_cloudpickle_it_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ValueError, match="to send it, run `pip install cloudpickle`"):
        hvd.allgather_object(lambda: None)


def test_a_class_stays_the_same_on_all_ranks():
    """Cloudpickle would make the script's own classes anew on the ranks that receive."""
    point = type(Point(1, 2))
    assert all(type(other) is point for other in hvd.allgather_object(Point(1, 2)))


def test_root_that_is_no_rank(size):
    with pytest.raises(ValueError, match=f"root_rank {size} is not a rank of this job"):
        hvd.broadcast_object(1, root_rank=size)

"""broadcast_object and allgather_object."""

import collections
import functools
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


def test_allgather_object_returns_the_objects_in_the_order_of_ranks(rank, size):
    """The objects of the ranks have different lengths and types."""
    assert hvd.allgather_object("x" * (3 * rank)) == ["x" * (3 * r) for r in range(size)]
    objects = [None, "a", 2.5, {"k": [1]}]
    assert hvd.allgather_object(objects[rank % 4]) == [objects[r % 4] for r in range(size)]


class Unreadable(Exception):
    def __str__(self) -> str:
        return self.text  # raises, because no caller has set the attribute


class Unsendable:
    def __reduce__(self):
        raise Unreadable


def test_an_error_of_pickle_without_a_text_reaches_all_ranks(rank, several):
    with pytest.raises(hvd.HvdliteError if rank else Unreadable) as raised:
        hvd.allgather_object(1 if rank else Unsendable(), name="unsendable")
    assert not rank or str(raised.value).endswith("rank 0 raised Unreadable")


def test_an_object_that_no_rank_can_pickle_is_an_error():
    with pytest.raises((TypeError, AttributeError), match="pickle"):
        hvd.allgather_object(threading.Lock())


@pytest.mark.parametrize("verb", ["allgather", "broadcast"])
@pytest.mark.parametrize("first", [0, 1])
def test_an_object_that_one_rank_cannot_pickle_is_an_error_on_all_ranks(verb, first, rank, size):
    """The root, the last rank, can't pickle the object: all ranks get an error, the job goes on."""
    if first >= size:
        pytest.skip("needs another rank")
    last = size - 1
    everyone = hvd.global_process_set
    process_set = hvd.add_process_set(range(first, size)) if first else everyone
    if rank >= first:
        obj = {"lock": threading.Lock()} if rank == last else 1
        call = functools.partial(hvd.broadcast_object, root_rank=last)
        call = call if verb == "broadcast" else hvd.allgather_object
        kinds = (TypeError, AttributeError) if rank == last else hvd.HvdliteError
        text = "cannot pickle" if rank == last else f"tensor 'object.it': rank {last} raised .*lock"
        with pytest.raises(kinds, match=text) as caught:
            call(obj, name="it", process_set=process_set)
        if rank != last:
            assert (caught.value.kind, caught.value.ranks) == ("failed", (last,))
        assert hvd.allgather_object(rank, "it", process_set) == list(process_set.ranks)
    if first:
        hvd.remove_process_set(process_set)


def test_lambdas_are_sent_with_cloudpickle(rank, size):
    assert hvd.broadcast_object((lambda x: x + size) if rank == 0 else None)(1) == 1 + size
    assert [double(2) for double in hvd.allgather_object(lambda x: x * rank)] == [
        2 * r for r in range(size)
    ]


def test_the_error_for_a_lambda_asks_to_install_cloudpickle(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ValueError, match="to send the object, run `pip install cloudpickle`"):
        hvd.allgather_object(lambda: None)


def test_a_received_object_has_the_class_of_the_receiving_rank():
    """Cloudpickle would create new classes on the receiving ranks, instead of the script's."""
    point = type(Point(1, 2))
    assert all(type(other) is point for other in hvd.allgather_object(Point(1, 2)))

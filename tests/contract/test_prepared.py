"""Prepared calls: Python describes and checks repeated collectives of one name only once."""

import gc
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from jobs import wait_until
from libraries import every_library, libraries_that
from threads import in_threads

import hvdlite as hvd
from hvdlite.core import names, prepared

COMES = 4  # after so many calls of one name, the next call is prepared
TRIES = 8  # calls that are measured; the call that runs the fewest Python functions counts
preparing = libraries_that(lambda lib: lib.prepares)


def forms_of(lib) -> list:
    """Return two functions that reduce an array, one to a new array, the other in place."""
    if lib.in_place:
        return [lib.hvd.allreduce, lib.hvd.allreduce_]
    return [lib.hvd.allreduce, lambda x, **how: lib.hvd.allreduce(x, out=x, **how)]


@every_library
def test_repeated_calls_use_the_present_values_and_arguments(lib, rank, size):
    results, n = [], size * (size - 1) // 2
    for i in range(1 if lib.graphs else COMES):
        for shape in ((3,), (2, 2), (3,)):
            x = np.full(shape, rank + i, "float32")
            results.append((lib.call("allreduce", x, name="of", op=hvd.Sum), n + size * i))
            results.append((lib.call("allreduce", x, name="of"), (n + size * i) / size))
            how = {"op": hvd.Max, "prescale_factor": 2.0, "postscale_factor": 0.5}
            results.append((lib.call("allreduce", x, name="of", **how), size - 1 + i))
        total = lib.call("allreduce", np.full(3, rank + i), name="of", op=hvd.Sum)
        results.append((total, n + size * i))
    # check at the end, so that the test fails if a call changes the result of an earlier call
    for got, expected in results:
        np.testing.assert_allclose(got, np.full(got.shape, expected), rtol=1e-6)


def watched(function, *arguments, **options) -> tuple:
    """Return a function's result, and a list of its calls of Python functions and of ffi.new.

    The list may be longer after a long wait or a garbage collection.
    """
    calls = []

    def profile(_frame, event, arg):
        if event == "call" or (event == "c_call" and arg.__name__ == "new"):
            calls.append(arg)

    sys.setprofile(profile)
    result = function(*arguments, **options)
    sys.setprofile(None)
    return result, calls


@preparing
@pytest.mark.parametrize("name, most", [("few", 4), (None, 7)])
def test_a_repeated_allreduce_makes_few_python_calls(lib, name, most, rank, size):
    for form in forms_of(lib):
        results, calls, uses = [], [], COMES if name else 2 * names._RECURRING + 2
        for i in range(uses + TRIES):
            x = lib.make(np.full(3, rank + i))
            y, made = watched(form, x, name=name, op=hvd.Sum)
            results.append(lib.read(y).tolist())
            calls.append(made)
        n = size * (size - 1) // 2
        assert results == [[n + size * i] * 3 for i in range(uses + TRIES)]
        fewest = min(calls[uses:], key=len)
        assert 0 < fewest.count(None) <= most and (not any(fewest) or not name)


@preparing
def test_a_repeated_call_keeps_no_reference_to_its_arrays(lib, size):
    for form in forms_of(lib):
        for _ in range(COMES):
            x = lib.make(np.ones(3))
            y = form(x, name="kept", op=hvd.Sum)
            gone = weakref.ref(x), weakref.ref(y)
            del x, y
            gc.collect()
            assert [each() for each in gone] == [None, None]


@preparing
def test_a_call_with_changed_arguments_is_checked_again(lib, rank, size):
    """The array has another memory order or is read-only, or an argument is wrong."""
    form = forms_of(lib)[0]
    own = np.arange(6.0).reshape(2, 3) * rank
    expected = np.arange(6.0).reshape(2, 3) * (size * (size - 1) // 2)
    for _ in range(COMES):
        assert (lib.read(form(lib.make(own), name="as", op=hvd.Sum)) == expected).all()
    other = lib.make(own.T.copy()).T
    assert (lib.read(form(other, name="as", op=hvd.Sum)) == expected).all()
    own.flags.writeable = False
    assert (hvd.numpy.allreduce(own, "as", hvd.Sum) == expected).all()
    for wrong in ({"op": "Sum"}, {"op": [hvd.Sum]}, {"prescale_factor": []}, {"name": {}}):
        with pytest.raises(ValueError, match="expected"):
            form(lib.make(own), **{"name": "as", "op": hvd.Sum, **wrong})
    with pytest.raises(ValueError, match="expected what .*, a ProcessSet"):
        form(lib.make(own), name="as", op=hvd.Sum, process_set=0)


@preparing
def test_ranks_that_disagree_on_a_prepared_call_get_one_error(lib, rank, size, several):
    for form in forms_of(lib):
        for _ in range(COMES):
            form(lib.make(np.ones(3)), name="dis", op=hvd.Sum)
            with pytest.raises(hvd.HvdliteError, match="'allreduce.dis': ranks disagree on the op"):
                form(lib.make(np.ones(3)), name="dis", op=hvd.Sum if rank else hvd.Max)
        y = form(lib.make(np.ones(3)), name="dis", op=hvd.Sum)
        assert (lib.read(y) == size).all()


def in_two_threads(right) -> None:
    """Call `right` 25 times in each of two threads; the only error may be that a name is in use."""

    def work(left=25):
        while left:
            try:
                assert right()
            except hvd.HvdliteError as error:
                assert "'allreduce.two' was submitted twice on this rank" in str(error)
                time.sleep(1e-3)  # give the other thread time to go on
            else:
                left -= 1

    in_threads([work, work])


@preparing
def test_concurrent_calls_of_one_name_in_two_threads_are_right_or_refused(lib, size):
    form = forms_of(lib)[1]
    in_two_threads(
        lambda: (lib.read(form(lib.make(np.ones(100)), name="two", op=hvd.Sum)) == size).all()
    )


@preparing
def test_a_repeated_call_notices_that_its_process_set_was_removed(lib, rank, size):
    form, ranks = forms_of(lib)[0], list(range(max(size - 1, 1)))
    for _ in range(3 if size > 1 else 0):
        some = hvd.add_process_set(ranks)
        for _ in range(COMES if some.included() else 0):
            y = form(lib.make(np.ones(3)), name="set", op=hvd.Sum, process_set=some)
            assert (lib.read(y) == size - 1).all()
        hvd.remove_process_set(some)
        with pytest.raises(ValueError, match="not registered"):
            form(lib.make(np.ones(3)), name="set", op=hvd.Sum, process_set=some)


def test_a_prepared_call_fills_its_output_array(rank, size):
    """The output may overlap the input, even on only one rank."""
    n = size * (size - 1) // 2
    for i in range(2 * COMES):
        memory = np.full(6, rank + i, "float64")
        x, out = memory[:4], memory[2:] if i % 2 and rank == 0 else np.empty(4)
        assert hvd.numpy.allreduce(x, "another", hvd.Sum, out=out) is out
        assert (out == n + size * i).all() and memory[0] == rank + i
    for wrong in (np.empty(3), np.empty(4, "float32"), [1.0] * 4):
        with pytest.raises(ValueError, match="tensor 'allreduce.another': out is "):
            hvd.numpy.allreduce(x, "another", hvd.Sum, out=wrong)


@preparing
def test_a_prepared_call_is_prepared_again_in_a_new_job(lib, rank, size):
    form = forms_of(lib)[0]
    for _ in range(2):
        for _ in range(COMES):
            assert (lib.read(form(lib.make(np.ones(3)), name="job", op=hvd.Sum)) == size).all()
        hvd.shutdown()
        with pytest.raises(ValueError, match="has not been initialized"):
            form(lib.make(np.ones(3)), name="job", op=hvd.Sum)
        hvd.init()


@preparing
def test_only_a_limited_number_of_calls_stays_prepared(lib, size):
    form = forms_of(lib)[1]
    for i in range(prepared._MOST + 10):
        for _ in range(2 if i % 50 == 0 else 1):
            form(lib.make(np.ones(1)), name=f"many{i}", op=hvd.Sum)
        assert len(prepared._calls.kept) <= prepared._MOST
    assert (lib.read(form(lib.make(np.ones(1)), name="many0", op=hvd.Sum)) == size).all()


def test_ctrl_c_ends_the_wait_of_a_repeated_call(rank, size, several):
    """The interrupted call still completes when other ranks make it; then the name is free."""
    x = np.full(3, 1.0)
    plan = hvd.numpy.allreduce_plan(x, "plan", hvd.Sum, out=x)

    def again():
        return hvd.numpy.allreduce(x, "again", hvd.Sum, out=x)

    for call in (plan, again):
        for _ in range(COMES):
            x[:] = 1
            call()
        x[:] = 1
        if rank == 0:
            alarm = threading.Timer(1, signal.raise_signal, [signal.SIGINT])
            with pytest.raises(KeyboardInterrupt):
                alarm.start()
                call()
            alarm.join()
        hvd.numpy.barrier()
        if rank > 0:
            assert (call() == size).all()
        # on rank 0 no thread waits for the call
        assert wait_until(lambda: (x == size).all(), 10)
        hvd.numpy.barrier()
        x[:] = 2
        assert (call() == 2 * size).all()


@preparing
def test_a_plan_reduces_the_current_values_of_its_array(lib, rank, size):
    n = size * (size - 1) // 2
    for dtype in ("float32", "int64", "float16"):
        x, out = lib.make(np.zeros((2, 3), dtype)), lib.make(np.zeros((2, 3), dtype))
        total = lib.hvd.allreduce_plan(x, name=f"to out {dtype}", op=hvd.Sum, out=out)
        new = lib.hvd.allreduce_plan(x, op=hvd.Sum, postscale_factor=2)
        seen = []
        for i in range(COMES):
            x[:] = rank + i
            assert total() is out and (lib.read(out) == n + size * i).all()
            seen.append(new())
            if i % 2:
                y = lib.hvd.allreduce(x, name=f"to out {dtype}", op=hvd.Sum)
                assert (y == out).all()
        for i, y in enumerate(seen):
            assert y.dtype == x.dtype and (lib.read(y) == 2 * (n + size * i)).all()


def test_a_plan_keeps_its_arrays_alive(size):
    x = np.ones(3)
    plan, gone = hvd.numpy.allreduce_plan(x, "keeps", hvd.Sum, out=x), weakref.ref(x)
    del x
    gc.collect()
    assert (plan() == size).all()
    del plan
    gc.collect()
    assert gone() is None


@preparing
def test_a_plan_of_arrays_with_gaps_or_overlap_is_refused(lib):
    whole = lib.make(np.ones((4, 4), "float32"))
    for array, out in ((whole[:, 1:], None), (whole[:2], whole[1:3]), (whole, whole[:1])):
        with pytest.raises(ValueError, match="tensor 'allreduce.x': "):
            lib.hvd.allreduce_plan(array, name="x", out=out)


def test_a_plan_of_unsuitable_numpy_arrays_is_refused():
    x = np.ones((4, 4))
    for wrong in (x.T[:, 1:], x.tolist(), x[::2]):
        with pytest.raises(ValueError, match="expected NumPy arrays in C order"):
            hvd.numpy.allreduce_plan(wrong, "x")
    for array, out in ((x[:2], x[1:3]), (np.ones(4), np.ones(8)[::2])):
        with pytest.raises(ValueError, match="'allreduce.x': expected NumPy arrays in C order"):
            hvd.numpy.allreduce_plan(array, "x", out=out)
    with pytest.raises(ValueError, match="out is float64 of shape"):
        hvd.numpy.allreduce_plan(x, "x", out=np.ones(3))
    with pytest.raises(ValueError, match="is bool, which can't be averaged"):
        hvd.numpy.allreduce_plan(np.ones(3, bool), "x")


def test_concurrent_calls_of_a_plan_in_two_threads_are_right_or_refused(size):
    plan = hvd.numpy.allreduce_plan(np.ones(100), "two", hvd.Sum)
    in_two_threads(lambda: (plan() == size).all())


def gathered(shapes, i: int) -> np.ndarray:
    return np.concatenate([np.full(shape, float(r + i)) for r, shape in enumerate(shapes)])


VERBS = {  # verb -> function of (input of this rank in call i, i, size): the expected result
    "allgather": lambda x, i, size: gathered([x.shape] * size, i),
    "broadcast": lambda x, i, size: np.full_like(x, i),
    "alltoall": lambda x, i, size: gathered([(len(x) // size, *x.shape[1:])] * size, i),
    "reducescatter": lambda x, i, size: np.full((len(x) // size, *x.shape[1:]), (size - 1) / 2 + i),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("rows", [1, 2000])
def test_repeated_collectives_of_other_kinds_make_few_python_calls(verb, rows, rank, size):
    results, calls = [], []
    for i in range(2 * COMES + 2 * TRIES):
        x = np.full((rows * size, 2), float(rank + i))
        expected = VERBS[verb](x, i, size)
        out = np.empty_like(expected) if i % 2 else None
        got, made = watched(getattr(hvd.numpy, verb), x, name=f"again{rows}", out=out)
        results.append((got, out, expected))
        calls.append(made)
    for got, out, expected in results:
        assert out is None or got is out
        np.testing.assert_array_equal(got, expected)
    for first in (2 * COMES, 2 * COMES + 1):
        fewest = min(calls[first::2], key=len)
        assert len(fewest) <= 5 and not any(fewest)


def test_a_repeated_allgather_notices_that_another_rank_has_other_rows(rank, size):
    """If one rank changes its rows, other ranks get more or fewer rows from an unchanged call."""
    for i in range(4 * COMES):
        shapes = [(3 + (i % COMES == 0 and r == size - 1), 2) for r in range(size)]
        for out in (None, np.empty(gathered(shapes, i).shape)):
            got = hvd.numpy.allgather(np.full(shapes[rank], float(rank + i)), name="rows", out=out)
            np.testing.assert_array_equal(got, gathered(shapes, i))


def test_ranks_that_disagree_on_the_root_of_a_repeated_call_get_an_error(rank, size, several):
    for i in range(3):
        for _ in range(COMES):
            assert hvd.numpy.broadcast(np.full(2, rank + i), 0, name="root")[0] == i
        with pytest.raises(hvd.HvdliteError, match="'broadcast.root': ranks disagree on the root"):
            hvd.numpy.broadcast(np.full(2, rank), rank % 2, name="root")

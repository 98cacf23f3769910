"""Wrong calls on one rank or several give the same error in each library; the job goes on."""

import numpy as np
import pytest
from libraries import differentiable, every_library, libraries_that, of_frameworks

import hvdlite as hvd

# Calls in which rank 0 differs from the other ranks. Name -> the function, rank 0's array, the
# others' array, rank 0's options, the others' options, what differs, and the values that the error
# reports, of rank 0 and of the others.
ONES = {shape: np.ones(shape, "float32") for shape in ((3,), (6,), (2, 3), (4, 3), (5, 3), (4, 4))}
SUM, AVERAGE = {"op": hvd.Sum}, {"op": hvd.Average}
SPLITS = {"splits": [1] + [0] * (hvd.size() - 1)}
DISAGREE = {
    "shape": ("allreduce", (4, 3), (5, 3), {}, {}, "shape", "(4, 3)", "(5, 3)"),
    "dimensions": (
        "broadcast", (6,), (2, 3), {"root_rank": 0}, {"root_rank": 0}, "shape", "(6,)", "(2, 3)"
    ),
    "columns": ("allgather", (4, 3), (4, 4), {}, {}, "shape", "(4, 3)", "(4, 4)"),
    "columns of an alltoall": ("alltoall", (4, 3), (4, 4), SPLITS, SPLITS, "shape", None, None),
    "rows": ("reducescatter", (4, 3), (5, 3), {}, {}, "shape", "(4, 3)", "(5, 3)"),
    "dtype": ("allreduce", (3,), "int32", {}, {}, "dtype", "float32", "int32"),
    "dtype of an allgather": ("allgather", (3,), "int32", {}, {}, "dtype", "float32", "int32"),
    "op": ("allreduce", (3,), (3,), SUM, AVERAGE, "op", "Sum", "Average"),
    "op of rows": ("reducescatter", (4, 3), (4, 3), SUM, AVERAGE, "op", "Sum", "Average"),
    "scales": (
        "allreduce", (3,), (3,), {"prescale_factor": 0.5}, {"prescale_factor": 2.0},
        "prescale_factor and postscale_factor", "0.5 and 1", "2 and 1"
    ),
    "root": ("broadcast", (3,), (3,), {"root_rank": 1}, {"root_rank": 0}, "root_rank", "1", "0"),
}  # fmt: skip


@every_library
@pytest.mark.parametrize("case", DISAGREE)
def test_ranks_that_disagree_all_get_one_error(lib, case, rank, size, several):
    """All ranks get the error even if they have cached the tensor from earlier calls."""
    verb, first, second, options, others, what, ours, theirs = DISAGREE[case]
    arrays = [np.ones((3,), x) if isinstance(x, str) else ONES[x] for x in (first, second)]
    for _ in range(0 if lib.graphs else 3):
        lib.call(verb, arrays[0], name="w", **options)
    with pytest.raises((hvd.HvdliteError, *lib.errors)) as caught:
        lib.call(verb, arrays[rank > 0], name="w", **(others if rank else options))
    rest = {2: "rank 1", 3: "ranks 1, 2"}.get(size, f"ranks 1-{size - 1}")
    text = f"'{verb}.w': ranks disagree on the {what}: "
    if ours:
        text += f"rank 0: {ours}; {rest}: {theirs}. Submit the same {what} on every rank."
    # names of grouped calls end in [0]: TensorFlow groups allgathers, and JAX groups every call
    assert text in str(caught.value).replace("w[0]'", "w'")
    if not lib.compiles:  # errors from a graph also list its nodes
        assert len(set(hvd.allgather_object(str(caught.value)))) == 1
    assert lib.call("allreduce", np.ones(1), name="w", op=hvd.Sum) == size  # the job goes on


# Calls that are wrong on all ranks: the error's text, the called function, an array, options.
TWO = np.ones(2, "float32")
NO_ROWS = (-1, 0.5, 2**62, 2**63, 2**200, float("inf"), float("nan"))
SIZE = hvd.size()
ROWS = np.ones((SIZE, 2), "float32")
REFUSED = [
    (r"x(\[0\])?' is bool, which can't be averaged", "allreduce", TWO.astype(bool), AVERAGE),
    ("averaged or scaled", "allreduce", TWO.astype(bool), {**SUM, "prescale_factor": 2.0}),
    ("longer than 255 bytes", "allreduce", TWO, {"name": "x" * 300}),
    ("longer than 255 bytes", "allreduce", TWO, {"name": "ä" * 200}),
    ("Min, hvdlite.Max, hvdlite.Prod", "allreduce", TWO, {"op": -1}),
    (f"expected .*0 to {SIZE - 1}", "broadcast", TWO, {"root_rank": -1}),
    *((r"x(\[0\])?' is 0-d", verb, np.float32(1), {}) for verb in ("reducescatter", "alltoall")),
    ("dtype that op=Adasum takes, .*float32", "allreduce", np.ones(2, "int32"), {"op": hvd.Adasum}),
    ("dtype that op=Adasum takes, .*float32", "allreduce", np.ones(2, bool), {"op": hvd.Adasum}),
    ("op=Adasum is only for an allreduce", "reducescatter", TWO, {"op": hvd.Adasum}),
    (rf"are of shape \({SIZE + 1},\): ex", "alltoall", ROWS, {"splits": [0] * (SIZE + 1)}),
    (
        f"add up to {SIZE + 1}: expected .* at most {SIZE}, ",
        "alltoall", ROWS, {"splits": [SIZE + 1] + [0] * (SIZE - 1)},
    ),
    *(("expected whole numbers", "alltoall", ROWS, {"splits": [no] * SIZE}) for no in NO_ROWS),
]  # fmt: skip


@every_library
@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_a_collective_with_wrong_arguments_is_refused(lib, number, size):
    text, verb, array, options = REFUSED[number]
    if not np.shape(array) and not lib.has_0d:
        pytest.skip("has no 0-d arrays")
    if lib.graphs and number % 5:
        pytest.skip("Eager tests the other calls")
    if lib.compiles and (text.endswith("0-d") or "splits" in options):
        text = None  # TensorFlow may raise its own error first
    with pytest.raises((ValueError, TypeError, *lib.errors), match=text):
        lib.call(verb, array, **{"name": "x", **options})
    assert lib.call("allreduce", np.ones(1), name="größe/😀", op=hvd.Sum) == size


@of_frameworks
def test_op_and_average_together_are_refused(lib):
    with pytest.raises(ValueError, match="give op or average, not both"):
        lib.call("allreduce", TWO, average=True, op=hvd.Sum)


@every_library
def test_rows_that_do_not_divide_among_the_ranks_are_refused(lib, size, several):
    errors = (ValueError, *lib.errors)
    with pytest.raises(errors, match=f"{size + 1} rows can't be divided .* {size} ranks"):
        lib.call("alltoall", np.ones((size + 1, 2), "float32"), name="x")


@every_library
def test_wrong_splits_on_one_rank_are_an_error_on_every_rank(lib, rank, size, several):
    """Other ranks do not wait for data of the rank with wrong splits; the job goes on."""
    last = rank == size - 1
    text = f"rank {size - 1}: tensor 'alltoall.x': splits .* up to {size + 1}: .* at most {size},"
    with pytest.raises((ValueError, *lib.errors), match=text):
        lib.call("alltoall", ROWS, splits=[1] * (size - 1) + [1 + last], name="x")
    assert len(lib.call("alltoall", ROWS, splits=[1] * size, name="x")[0]) == size


@differentiable
@pytest.mark.parametrize("op", ["Min", "Max", "Product"])
def test_backward_through_an_op_without_a_gradient_is_an_error(lib, op):
    text = f"op {op} has no gradient: expected Sum or Average"
    with pytest.raises((ValueError, *lib.errors), match=None if lib.hvd is hvd else text):
        lib.gradient("allreduce", np.ones(2), {"op": getattr(hvd, op)}, np.ones)


@libraries_that(lambda lib: hasattr(lib.hvd, "poll"))
def test_a_wrong_handle_is_refused(lib):
    for use in (lib.hvd.poll, lib.hvd.synchronize):
        for no_handle in (5, "x", None):
            with pytest.raises(ValueError, match="expected what an ..._async call has returned"):
                use(no_handle)

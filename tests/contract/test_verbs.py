"""Every collective gives the right result on the arrays of every installed library."""

import numpy as np
import pytest
from finite_differences import check_gradient, every_case
from libraries import (
    FLOATS,
    LIBRARIES,
    NumPy,
    differentiable,
    every_dtype_of,
    every_library,
    in_place,
    libraries_that,
    of_frameworks,
)
from numbers_of_ranks import (
    EPSILON,
    MODEL,
    SHAPES,
    adasum,
    check,
    close,
    host_dtype,
    model,
    numbers,
    part_of,
    same_everywhere,
)

import hvdlite as hvd

every_dtype = every_dtype_of()
every_float = every_dtype_of(FLOATS)
every_number = every_dtype_of({d for lib in LIBRARIES for d in lib.dtypes} - {"bool"})


def skip_if_slow(lib, op: str) -> None:
    if lib.graphs and op not in ("Average", "Sum"):
        pytest.skip("only eager calls of TensorFlow test this op")


def shapes_of(lib) -> list:
    return [shape for shape in SHAPES[:: 2 if lib.graphs else 1] if lib.has_0d or shape]


@every_dtype
@pytest.mark.parametrize("op", MODEL)
def test_an_allreduce_gives_all_ranks_the_result_of_its_op(lib, dtype, op, rank):
    skip_if_slow(lib, op)
    if dtype == "bool" and op == "Average":
        pytest.skip("refused: test_refusals.py")
    long = [(3_000_017,)] if op == "Sum" and dtype in ("float16", "float32") else []
    for shape in shapes_of(lib) + (long if lib.in_place else []):
        own, expected = numbers(dtype, shape, rank), model(dtype, shape, op)
        check(lib.call("allreduce", own, dtype=dtype, op=getattr(hvd, op)), expected, dtype, shape)
        if lib.in_place:
            x = lib.make(own, dtype)
            assert lib.hvd.allreduce_(x, op=getattr(hvd, op)) is x
            check(lib.read(x), expected, dtype, shape)


@every_number
@pytest.mark.parametrize("op", MODEL)
def test_prescale_and_postscale_multiply_before_and_after_the_sum(lib, dtype, op, rank, size):
    skip_if_slow(lib, op)
    factors = (2.0, 0.5), (2.0, 1.0), (1.0, 0.5), (0.5, 3.0)
    for before, after in factors[: 1 if lib.graphs else 4]:
        if dtype not in FLOATS and op == "Product":
            continue  # a product of integers overflows, so the scales have no defined result
        how = {"op": getattr(hvd, op), "prescale_factor": before, "postscale_factor": after}
        own, expected = numbers(dtype, (19,), rank), model(dtype, (19,), op, before, after)
        check(lib.call("allreduce", own, dtype=dtype, **how), expected, dtype)
        got = lib.call("reducescatter", own, dtype=dtype, **how)
        close(got, expected[part_of(19, rank, size)], dtype)


@every_float
def test_sums_of_random_numbers_have_the_same_bits_on_all_ranks(lib, dtype, rank, size):
    everyone = [np.random.RandomState(r).randn(5, 20_001).astype("float32") for r in range(size)]
    if dtype != "bfloat16":
        everyone = [each.astype(dtype) for each in everyone]
    # round the values to the dtype
    everyone = [lib.read(lib.make(each, dtype)) for each in everyone]
    got = lib.call("allreduce", everyone[rank], dtype=dtype, op=hvd.Sum)
    expected = np.sum(everyone, axis=0, dtype="float64")
    np.testing.assert_allclose(got, expected, EPSILON[dtype], 8 * EPSILON[dtype])
    assert same_everywhere(got)
    part = lib.call("reducescatter", everyone[rank], dtype=dtype, op=hvd.Sum)
    own = expected[part_of(5, rank, size)]
    np.testing.assert_allclose(part, own, EPSILON[dtype], 8 * EPSILON[dtype])


def reals(dtype: str, shape, rank: int) -> np.ndarray:
    return np.random.RandomState(rank + 7).randn(*shape).astype(host_dtype(dtype))


@every_float
def test_adasum_equals_the_formula_of_the_paper_in_python(lib, dtype, rank, size):
    for shape in ((1,), (17,), (3, 5, 7), (70_001,)):
        everyone = [lib.read(lib.make(reals(dtype, shape, r), dtype)) for r in range(size)]
        y = lib.call("allreduce", everyone[rank], dtype=dtype, op=hvd.Adasum)
        np.testing.assert_allclose(y, adasum(everyone), 4 * EPSILON[dtype], 8 * EPSILON[dtype])
        assert same_everywhere(y)


@every_library
def test_adasum_combines_each_tensor_of_a_batch_separately(lib, rank, size):
    """Adasum of the whole batch, as if it were one vector, would give another result."""
    vectors = [[reals("float32", (9,), r + 10 * i) for r in range(size)] for i in range(30)]
    results = lib.call("grouped_allreduce", *(v[rank] for v in vectors), op=hvd.Adasum)
    for y, v in zip(results, vectors):
        np.testing.assert_allclose(y, adasum(v), 1e-5, 1e-5)


@of_frameworks
def test_average_true_means_op_average_and_false_means_op_sum(lib, rank):
    x = np.array([rank, 1.0], "float32")
    for average, op in ((True, hvd.Average), (False, hvd.Sum)):
        old, new = (lib.call("allreduce", x, **how) for how in ({"average": average}, {"op": op}))
        np.testing.assert_array_equal(old, new)


@libraries_that(lambda lib: lib.compresses)
def test_a_compressed_call_rounds_to_16_bits(lib, rank, size):
    for kind in filter(None, (getattr(lib.hvd.Compression, c, None) for c in ("fp16", "bf16"))):
        x = np.linspace(-1, 1, 40, dtype="float32")
        got = lib.call("allreduce", x, compression=kind)
        np.testing.assert_allclose(got, x, atol=4e-3)
        assert (got != x).any() and got.dtype == "float32"


@every_library
@pytest.mark.parametrize("verb", ["allreduce", "allgather", "reducescatter"])
def test_a_grouped_call_equals_single_calls(lib, verb, rank, size):
    """The number of rows that allgather joins differs by rank and tensor."""
    options = {} if verb == "allgather" else {"op": hvd.Max, "prescale_factor": 2}
    rows = rank if verb == "allgather" else 0
    dtypes = ("float32", "float64", "int32", "float16")
    arrays = [numbers(d, (size + (i + 1) * rows, i + 1), rank) for i, d in enumerate(dtypes)]
    for got, array in zip(lib.call(f"grouped_{verb}", *arrays, **options), arrays):
        np.testing.assert_array_equal(got, lib.call(verb, array, **options))
    assert list(getattr(lib.hvd, f"grouped_{verb}")([])) == []


@in_place
def test_a_grouped_call_in_place_equals_single_calls(lib, rank, size):
    shapes = ((3,), (2, 2), (0,), (1000,))
    arrays = [lib.make(numbers("float32", shape, rank)) for shape in shapes]
    for x, result in zip(arrays, lib.hvd.grouped_allreduce_(arrays)):
        assert result is x
    for x, shape in zip(arrays, shapes):
        check(lib.read(x), model("float32", shape, "Average"), "float32")
    empty = []
    assert lib.hvd.grouped_allreduce_(empty) == empty


@every_dtype
def test_a_broadcast_gives_all_ranks_the_data_of_the_root(lib, dtype, rank, size):
    for root in range(size):
        for shape in shapes_of(lib):
            own, expected = numbers(dtype, shape, rank), numbers(dtype, shape, root)
            check(lib.call("broadcast", own, dtype=dtype, root_rank=root), expected, dtype)
            if lib.in_place:
                x = lib.make(own, dtype)
                assert lib.hvd.broadcast_(x, root) is x
                check(lib.read(x), expected, dtype)


@every_library
def test_a_broadcast_keeps_every_bit(lib, rank, size):
    """The bits of a NaN are kept, too."""
    bits = [np.random.RandomState(r).randint(0, 2**32, 1001, "uint32") for r in range(size)]
    got = lib.call("broadcast", bits[rank].view("float32"), root_rank=size - 1)
    assert np.asarray(got).view("uint32").tolist() == bits[-1].tolist()


@every_dtype
def test_an_allgather_joins_the_rows_of_all_ranks(lib, dtype, rank, size):
    """Repeated calls of one name have rows that change on no rank, on some, or on all."""
    more = list(range(size))
    last = [0] * (size - 1) + [4]
    for rows in ([3] * size, more, more, [0] * size, last, [4000 + r for r in more]):
        own = numbers(dtype, (rows[rank], 3), rank)
        got = lib.call("allgather", own, dtype=dtype, name="again")
        expected = [numbers(dtype, (n, 3), r) for r, n in enumerate(rows)]
        check(got, np.concatenate(expected), dtype, rows)
    for shape in shapes_of(lib):
        parts = [numbers(dtype, shape, r) for r in range(size)]
        got = lib.call("allgather", parts[rank], dtype=dtype)
        check(got, (np.concatenate if shape else np.stack)(parts), dtype, shape)


def rows_between(size: int) -> list:
    """Return tables of row counts, [sending rank, receiving rank]."""
    random = np.random.RandomState(3)
    uneven = random.randint(0, 5, (size, size))
    changed = uneven.copy()
    changed[:-1] += 1  # the last rank keeps its row counts
    return [
        np.full((size, size), 2),
        np.zeros((size, size), int),
        uneven,
        changed,
        np.tile([0] * (size - 1) + [3], (size, 1)),
        np.array([[4] * size] + [[0] * size] * (size - 1)),
        random.randint(0, 2, (size, size)) * 60_000,
    ]


@every_dtype
def test_an_alltoall_sends_each_rank_the_rows_that_splits_say(lib, dtype, rank, size):
    """All calls use one name. As in Horovod, rows beyond the sum of splits are not sent."""
    shapes = rows_between(size)
    for matrix in shapes if dtype in ("float32", "int8") else shapes[:-1]:

        def block(by: int, to: int, matrix=matrix):
            return numbers(dtype, (matrix[by, to], 3), 10 * by + to)

        unsent = np.zeros((2, 3), host_dtype(dtype))
        own = np.concatenate([*(block(rank, to) for to in range(size)), unsent])
        splits = matrix[rank].tolist()
        got, received = lib.call("alltoall", own, dtype=dtype, splits=splits, name="again")
        close(got, np.concatenate([block(by, rank) for by in range(size)]), dtype, matrix)
        assert received.tolist() == matrix[:, rank].tolist() and received.dtype == (
            int if isinstance(lib, NumPy) else "int32"
        )
    own = np.concatenate([numbers(dtype, (2, 3), 10 * rank + to) for to in range(size)])
    expected = np.concatenate([numbers(dtype, (2, 3), 10 * by + rank) for by in range(size)])
    close(lib.call("alltoall", own, dtype=dtype), expected, dtype)


@every_dtype
@pytest.mark.parametrize("op", MODEL)
def test_a_reducescatter_gives_each_rank_its_rows_of_the_result(lib, dtype, op, rank, size):
    skip_if_slow(lib, op)
    if dtype == "bool" and op == "Average":
        pytest.skip("refused: test_refusals.py")
    long = [(70_001,), (3, 2, 40_000)] if op == "Sum" else []
    for shape in [(0,), (1,), (2, 0, 3), (2 * size + 1, 3), (17,), *long]:
        expected = model(dtype, shape, op)[part_of(shape[0], rank, size)]
        own = numbers(dtype, shape, rank)
        got = lib.call("reducescatter", own, dtype=dtype, op=getattr(hvd, op))
        close(got, expected, dtype, shape)


@differentiable
@every_case
def test_gradients_equal_finite_differences(lib, verb, options, rank, size):
    check_gradient(lib, verb, options, rank, size)


@libraries_that(lambda lib: lib.gradient and lib.has_0d)
@pytest.mark.parametrize("verb", ["allreduce", "broadcast", "allgather"])
def test_the_gradient_of_a_0d_tensor_is_0d(lib, verb, rank, size):
    options = {"root_rank": 0} if verb == "broadcast" else {}
    shapes = []

    def weight(shape):
        shapes.append(tuple(shape))
        return np.ones(shape)

    _, got = lib.gradient(verb, np.array(rank + 1.0), options, weight)
    assert shapes == [(size,) if verb == "allgather" else ()]
    assert got.shape == () and got == (rank == 0 if verb == "broadcast" else 1)


@every_library
def test_only_ranks_of_the_process_set_take_part(lib, rank, size, several):
    some = hvd.add_process_set([0, size - 1] if size > 2 else [1])
    own = np.full((2, 1), rank)
    try:
        of_set = {"process_set": some}
        if some.included():
            got = lib.call("allreduce", own, op=hvd.Sum, **of_set)
            assert got.tolist() == [[size - 1]] * 2
            assert lib.call("allgather", own[:1], **of_set)[:, 0].tolist() == list(some.ranks)
            got = lib.call("broadcast", own, root_rank=size - 1, **of_set)
            assert got.tolist() == [[size - 1]] * 2
            part, _ = lib.call("alltoall", own[: some.size()], splits=[1] * some.size(), **of_set)
            assert part[:, 0].tolist() == list(some.ranks)
            got = lib.call("reducescatter", own[: some.size()], op=hvd.Sum, **of_set)
            assert got.tolist() == [[size - 1]]
        else:
            for verb in ("allreduce", "allgather", "alltoall"):
                with pytest.raises(
                    (ValueError, *lib.errors), match="only these ranks may make this call"
                ):
                    lib.call(verb, own, **of_set)
    finally:
        hvd.remove_process_set(some)


@every_library
def test_averages_count_only_ranks_that_have_not_joined(lib, rank, size):
    for step in range(rank):
        mean = lib.call("allreduce", np.full(1, float(rank)), name="mean")
        total = lib.call("allreduce", np.full(1, rank), name="total", op=hvd.Sum)
        assert mean == np.mean(range(step + 1, size)) and total == sum(range(step + 1, size))
    assert lib.hvd.join() == size - 1


@every_library
def test_unnamed_calls_match_again_after_all_ranks_have_joined(lib, rank, size):
    """Before join() ranks have made different numbers of calls, on which no name may depend."""
    for first in range(size):
        if rank != first:
            with pytest.raises(
                (hvd.HvdliteError, *lib.errors), match=f"rank {first} already joined"
            ):
                lib.call("allgather", np.ones(1))
            lib.call("allreduce", np.ones(1))
        lib.hvd.join()
        assert lib.call("allreduce", np.ones(1), op=hvd.Sum) == size
        assert hvd.allgather_object(rank) == list(range(size))


@of_frameworks
def test_objects_are_broadcast_and_gathered(lib, rank, size):
    assert lib.hvd.broadcast_object({"of": rank}, root_rank=size - 1) == {"of": size - 1}
    assert lib.hvd.allgather_object(rank) == list(range(size))
    lib.hvd.barrier()

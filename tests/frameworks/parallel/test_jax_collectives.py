"""JAX: hvdlite's collectives, inside and outside of jit, and XLA's collectives over hvdlite."""

import os
import threading

import hvdlite.jax as hvd

# isort: split
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from hvdlite.jax import ops
from hvdlite.monitor import live, report, rows, watching, why

hvd.init()
jax.config.update("jax_enable_x64", True)

DTYPES = [
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "bool"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
]
in_and_outside = pytest.mark.parametrize("how", [jax.jit, lambda f: f], ids=["jit", "eager"])


def numbers(dtype: str, rank: int, size: int) -> np.ndarray:
    random = np.random.default_rng(rank)
    return random.integers(0, 2 if dtype == "bool" else 20, (2 * size, 3)).astype(jnp.dtype(dtype))


def same(got, expected) -> None:
    got, expected = (np.asarray(each).astype("complex128") for each in (got, expected))
    np.testing.assert_array_equal(got, expected)


@in_and_outside
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_jax_collective_on_every_dtype_equals_numpy(how, dtype, rank, size):
    everyone = [numbers(dtype, r, size) for r in range(size)]
    x = jnp.asarray(everyone[rank])
    own = slice(2 * rank, 2 * rank + 2)

    def run(verb, **options):
        got = how(lambda a: getattr(hvd, verb)(a, **options))(x)
        assert got.dtype == x.dtype
        return got

    same(run("allgather", name="gather"), np.concatenate(everyone))
    same(run("broadcast", root_rank=size - 1, name="broadcast"), everyone[-1])
    same(run("alltoall", name="alltoall"), np.concatenate([each[own] for each in everyone]))
    if dtype != "bool":
        total = sum(each.astype("complex128") for each in everyone)
        same(run("allreduce", op=hvd.Sum, name="sum"), total)
        same(run("reducescatter", op=hvd.Sum, name="scatter"), total[own])
    if dtype in ("complex64", "complex128"):
        with pytest.raises(ValueError, match="expected op Sum or Average"):
            run("allreduce", op=hvd.Max, name="max")
    elif dtype != "bool":
        same(run("allreduce", op=hvd.Max, name="max"), np.max(everyone, 0))


@in_and_outside
def test_an_allreduce_of_a_pytree_keeps_its_structure(how, rank, size):
    tree = {"a": jnp.ones(3) * rank, "b": [jnp.float32(rank), 2.0 * rank]}
    got = how(lambda t: hvd.allreduce(t, name="tree"))(tree)
    mean = (size - 1) / 2
    assert jax.tree.structure(got) == jax.tree.structure(tree)
    same(got["a"], np.full(3, mean))
    assert [float(each) for each in got["b"]] == [mean, 2 * mean]


@pytest.mark.parametrize("verb", ["allreduce", "broadcast", "alltoall"])
@pytest.mark.parametrize("dtype", ["float32", "complex64", "bool"])
def test_results_of_collectives_outside_of_jit_are_not_copied(verb, dtype, monkeypatch):
    rooms, room_for = [], ops._room_for
    monkeypatch.setattr(ops, "_room_for", lambda array: rooms.append(room_for(array)) or rooms[-1])
    how = {"op": hvd.Max if dtype == "bool" else hvd.Sum} if verb == "allreduce" else {}
    got = getattr(hvd, verb)(jnp.ones(1200, dtype), name="room", **how)
    assert got.unsafe_buffer_pointer() == rooms[0].ctypes.data


def test_jax_gradients_through_collectives_have_horovods_scale(rank, size):
    def gradient(verb, **how):
        def loss(x):
            out = getattr(hvd, verb)(x, **how)
            return (out * jnp.arange(1.0, out.size + 1).reshape(out.shape)).sum()

        return np.asarray(jax.jit(jax.grad(loss))(jnp.ones(size)))

    weights = np.arange(1.0, size + 1)
    same(gradient("allreduce", op=hvd.Sum, name="a"), size * weights)
    same(gradient("broadcast", root_rank=0, name="b"), weights if rank == 0 else 0 * weights)
    own = np.arange(1.0, size * size + 1).reshape(size, size)[rank]
    same(gradient("allgather", name="g"), own)
    same(gradient("alltoall", name="t"), np.full(size, weights[rank]))
    same(gradient("reducescatter", op=hvd.Sum, name="s"), np.full(size, float(size)))
    counted = jax.grad(lambda x: hvd.allreduce({"x": x, "n": 1}, "n", op=hvd.Sum)["x"].sum())
    same(jax.jit(counted)(jnp.ones(3)), np.full(3, size))  # integers have no gradient


def test_jax_collectives_work_in_vmap_loops_and_repeated_calls(rank, size):
    batched = jax.jit(jax.vmap(lambda a: hvd.allreduce(a, "vmap", op=hvd.Sum)))
    same(batched(jnp.ones((4, 3)) * rank), np.full((4, 3), sum(range(size))))
    gathered = jax.jit(jax.vmap(lambda a: hvd.allgather(a, "rows")))(jnp.ones((4, 3)) * rank)
    same(gathered, np.repeat(np.arange(size), 3)[None].repeat(4, 0))
    looped = jax.jit(lambda x: lax.fori_loop(0, 10, lambda _, c: hvd.allreduce(c, "loop") + 1, x))(
        jnp.full(2, float(rank))
    )
    same(looped, np.full(2, (size - 1) / 2 + 10))
    many = jax.jit(lambda x: sum(hvd.allreduce(x + i, f"many{i}", op=hvd.Sum) for i in range(30)))
    same(many(jnp.ones(5)), np.full(5, size * sum(range(1, 31))))


def test_ranks_that_disagree_inside_a_program_get_an_error(rank, size):
    if size == 1:
        pytest.skip("one rank cannot disagree with another")
    text = "'allreduce.odd.*disagree on the shape"
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=text):
        jax.jit(lambda a: hvd.allreduce(a, "odd"))(jnp.ones(3 + rank)).block_until_ready()
    same(jax.jit(lambda a: hvd.allreduce(a, "odd"))(jnp.ones(3)), np.ones(3))


def test_jax_collectives_outside_of_jit_take_different_rows_per_rank(rank, size):
    same(hvd.allgather(jnp.full(rank, 1.0), "uneven"), np.ones(sum(range(size))))
    splits = list(range(size))
    rows, came = hvd.alltoall(jnp.full(sum(splits), 1j * rank), splits, "uneven")
    same(came, np.full(size, rank))
    same(rows, np.repeat(np.arange(size) * 1j, rank))
    if size > 1:
        with pytest.raises(ValueError, match="inside jit, expected a multiple of"):
            jax.jit(lambda a: hvd.reducescatter(a, "uneven"))(jnp.ones(2 * size + 1))


# ---- programs on the devices of several processes ----
def mesh_of(ranks=None) -> Mesh:
    devices = np.array(jax.devices())
    return Mesh(devices if ranks is None else devices[list(ranks)], ("i",))


def spread(mesh: Mesh, whole: np.ndarray, spec=None):
    sharding = NamedSharding(mesh, P("i") if spec is None else spec)
    return jax.make_array_from_callback(whole.shape, sharding, lambda at: whole[at])


def own(mesh: Mesh, f, whole: np.ndarray) -> np.ndarray:
    """Run f on all parts of `whole` in one program of the mesh; return this rank's result."""
    mapped = jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i"), check_vma=False)
    return np.asarray(jax.jit(mapped)(spread(mesh, whole)).addressable_shards[0].data)


several = pytest.mark.skipif("hvd.size() == 1", reason="needs several processes")


@several
@pytest.mark.parametrize("dtype", [*DTYPES, "float8_e5m2", "float4_e2m1fn"])
def test_collectives_of_xla_give_right_results(dtype, rank, size):
    everyone = np.stack([numbers(dtype, r, size) for r in range(size)])
    if dtype.startswith("uint"):
        everyone[0, 0] = np.iinfo(dtype).max
    whole, mesh, mine = everyone.reshape(-1, 3), mesh_of(), slice(2 * rank, 2 * rank + 2)
    after = [(k, (k + 1) % size) for k in range(size)]
    same(own(mesh, lambda a: lax.all_gather(a, "i", tiled=True), whole), whole)
    same(own(mesh, lambda a: lax.ppermute(a, "i", after), whole), everyone[rank - 1])
    swapped = own(mesh, lambda a: lax.all_to_all(a, "i", 0, 0, tiled=True), whole)
    same(swapped, everyone[:, mine].reshape(-1, 3))
    if dtype == "bool":
        return
    with np.errstate(over="ignore"):
        exact = "float64" if jnp.issubdtype(dtype, np.floating) else dtype
        total = everyone.sum(0, dtype=exact).astype(everyone.dtype)  # rounded once
    same(own(mesh, lambda a: lax.psum(a, "i"), whole), total)
    same(own(mesh, lambda a: lax.psum_scatter(a, "i", tiled=True), whole), total[mine])
    if not dtype.startswith("complex"):
        same(own(mesh, lambda a: lax.pmax(a, "i"), whole), everyone.max(0))
        same(own(mesh, lambda a: lax.pmin(a, "i"), whole), everyone.min(0))


@several
def test_a_jax_program_may_run_on_only_some_processes(rank, size):
    """The other processes do nothing or run another program; devices may be in any order."""
    for ranks in [*([r, (r + 1) % size] for r in range(size)), [*range(size)][::-1]]:
        if rank in ranks and len(set(ranks)) == len(ranks):
            whole = 10.0 ** np.array(ranks)
            got = own(mesh_of(ranks), lambda a: lax.psum(a, "i"), whole)
            same(got, np.array([whole.sum()]))
            first = own(mesh_of(ranks), lambda a: lax.all_gather(a, "i", tiled=True), whole)
            same(first, whole)


@several
@pytest.mark.parametrize("parts", [1 << 20, (1 << 20) - 4], ids=["unpacked", "packed"])
def test_an_all_to_all_with_large_parts_is_right_on_two_processes(parts, rank, size):
    ranks = sorted({rank, rank ^ 1})[::-1]
    if ranks[0] < size:
        whole = np.arange(parts, dtype="float32")
        got = own(mesh_of(ranks), lambda a: lax.all_to_all(a, "i", 0, 0, tiled=True), whole)
        assert np.array_equal(got, whole.reshape(2, 2, -1)[:, ranks.index(rank)].ravel())


@several
@pytest.mark.skipif("hvd.size() != 4", reason="needs 4 processes")
def test_xla_collectives_along_axes_of_a_mesh_are_right(rank, size):
    for order in ([0, 1, 2, 3], [3, 1, 2, 0], [0, 2, 1, 3]):
        mesh = Mesh(np.array(jax.devices())[order].reshape(2, 2), ("x", "y"))
        values = 10.0 ** np.array(order).reshape(2, 2)
        i, j = (int(k[0]) for k in np.where(np.array(order).reshape(2, 2) == rank))
        x = spread(mesh, values, P("x", "y"))
        for axes, expected in (("x", values[:, j]), ("y", values[i]), (("x", "y"), values)):
            mapped = jax.shard_map(
                lambda a, axes=axes: lax.psum(a, axes), mesh=mesh, in_specs=P("x", "y"),
                out_specs=P("x", "y"), check_vma=False,
            )  # fmt: skip
            got = jax.jit(mapped)(x).addressable_shards[0].data
            same(np.asarray(got).ravel(), [expected.sum()])


@several
def test_training_on_sharded_batches_equals_one_process(rank, size):
    """XLA inserts the allreduce of the gradients into the program."""
    mesh = mesh_of()
    random = np.random.default_rng(2)
    data, weights = random.normal(size=(8 * size, 6)), random.normal(size=(6, 3))

    def step(w, x):
        return w - 0.1 * jax.grad(lambda v: (jnp.tanh(x @ v) ** 2).sum() / len(data))(w)

    compiled = jax.jit(step, out_shardings=NamedSharding(mesh, P()))
    w, expected = spread(mesh, weights, P()), weights
    with jax.default_device(jax.local_devices()[0]):
        alone = jax.jit(step)
        for _ in range(5):
            expected = np.asarray(alone(expected, data))
    for _ in range(5):
        w = compiled(w, spread(mesh, data))
    np.testing.assert_allclose(np.asarray(w.addressable_shards[0].data), expected, rtol=1e-12)


@several
def test_hvdlite_collectives_in_programs_of_several_processes_are_refused(rank):
    with pytest.raises(RuntimeError, match=r"only in a program of one device: use jax.lax.psum"):
        own(mesh_of(), lambda a: hvd.allreduce(a, "wrong"), np.ones(hvd.size()))
    with pytest.raises(ValueError, match="sharded over several processes"):
        hvd.allreduce(spread(mesh_of(), np.ones(hvd.size())), "wrong")


@several
@pytest.mark.parametrize("ahead", [False, True], ids=["jit", "compiled"])
@pytest.mark.parametrize(
    "joins, text",
    [(True, "could run the two programs in different orders"), (False, "call hvd.init() at")],
)
def test_a_second_jax_thread_may_not_use_the_same_processes(joins, text, ahead, rank, size):
    mesh, said = mesh_of(), []
    x = spread(mesh, np.ones(size))
    total = jax.shard_map(lambda a: lax.psum(a, "i"), mesh=mesh, in_specs=P("i"), out_specs=P())
    program = jax.jit(total).lower(x).compile() if ahead else jax.jit(total)
    for _ in range(3):
        program(x).block_until_ready()

    def work():
        if joins:
            hvd.init()
        for _ in range(2):
            with pytest.raises(RuntimeError) as error:
                program(x)
            said.append(text in str(error.value))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said == [True, True]
    same(program(x), np.full(1, size))


@pytest.mark.skipif("hvd.size() < 3", reason="2 ranks have no unused order of devices")
def test_a_jax_thread_may_use_the_devices_of_a_thread_that_has_ended(rank, size):
    """Both threads run a program whose mesh orders the devices otherwise than jax.devices()."""
    got, ranks = [], [*range(1, size), 0]

    def work():
        hvd.init()
        got.append(own(mesh_of(ranks), lambda a: lax.all_gather(a, "i", tiled=True), np.ones(size)))

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert [each.sum() for each in got] == [size, size]


@several
def test_a_permutation_on_one_device_needs_no_communicator(rank):
    same(own(mesh_of([rank]), lambda a: lax.ppermute(a, "i", [(0, 0)]), np.ones(3)), np.ones(3))


@several
def test_the_first_collective_of_a_program_may_be_a_permutation(rank, size):
    ranks = [0, *range(size - 1, 0, -1)]
    pairs = [(0, size - 1), (size - 1, 0)]
    got = own(mesh_of(ranks), lambda a: lax.ppermute(a, "i", pairs), 10.0 ** np.array(ranks))
    expected = {0: 10.0 ** ranks[-1], ranks[-1]: 1.0}
    same(got, [expected.get(rank, 0)])


@several
def test_hvdlite_top_why_and_reports_show_a_waiting_collective(rank, size):
    """The last rank inspects the other ranks and joins the collective when all wait for it."""
    if rank == size - 1:
        recorders, waits = watching.Here(watching.job_of(str(os.getpid()))), []
        while [wait.ranks for wait in waits if wait] != [[rank]] * rank:
            ranks = [one for one in recorders.poll() if one.rank < rank]
            waits = [live.wait_of(one, ranks) for one in ranks]
        name = "allgather jax." + ",".join(map(str, range(size)))
        assert [rows.COLUMNS[-1].text(row) for row in rows.build(ranks, {})] == [
            f"waits {name}"
        ] * rank
        stands = why.of_snapshots([ranks[0]._replace(now=ranks[0].now + 9)])
        assert f"({name})" in stands.partition("\n")[0]
        assert name in report.summary(ranks[0], ranks)
        recorders.close()
    mesh = mesh_of()
    same(
        own(mesh, lambda a: lax.all_gather(a, "i", tiled=True), np.ones(7 * size)),
        np.ones(7 * size),
    )


@several
@pytest.mark.parametrize("check", [True, False], ids=["checked", "unchecked"])
def test_a_psum_of_float16_is_rounded_once(check, rank, size):
    whole = np.array([2048.0, *[1.25] * (size - 1)], "float16")
    mapped = jax.shard_map(
        lambda a: lax.psum(a, "i"), mesh=mesh_of(), in_specs=P("i"), out_specs=P(), check_vma=check
    )
    got = np.asarray(jax.jit(mapped)(spread(mesh_of(), whole)).addressable_shards[0].data)
    assert got.dtype == "float16" and got == np.float16(2048 + 1.25 * (size - 1))


@several
def test_an_allreduce_of_float16_added_by_xla_is_refused_at_compilation(rank, size):
    x = spread(mesh_of(), np.ones(size, "float16"))
    with pytest.raises(RuntimeError, match="can't pass float16 to MPI, .* has added all-reduce"):
        jax.jit(lambda a: a.sum(dtype="float16"), out_shardings=NamedSharding(mesh_of(), P()))(x)

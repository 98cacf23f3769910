"""Measures JAX's collectives and a training step on one host, over hvdlite, Gloo and Open MPI.

    .venv-frameworks/bin/python -m benchmarks.jax_cpu [--ranks 4] [--mpi libmpiwrapper.so]

JAX calls Open MPI through the library of MPIwrapper (github.com/eschnett/MPIwrapper), built for the
Open MPI of .venv-frameworks. The arrays are float32 with the given number of bytes per rank, but at
least one element for each rank. "Loop" is an iteration of a fori_loop, "call" is a jit call with
one collective. The step trains an MLP of 6 layers with 32 rows per rank.
Each system has its own job; in each round the systems take turns. Each run adds rounds to
build/jax-RANKS.json; delete the file to start again. Rank 0 prints each figure as soon as it has
measured the figure. A figure in the table is the median over rounds of the slowest rank's median.
On 2 cores, a round takes 2 minutes with 2 ranks, 5 minutes with 4 ranks.
"""

import os
import statistics
import sys
import time
from typing import Any, Dict

from benchmarks import harness
from benchmarks.harness import ROOT, Kept, markdown, parser_of, show
from benchmarks.plan import CORES, KEEP_MEMORY, SETTINGS
from hvdlite.core.places import free_port

OURS, GLOO, MPI = "hvdlite", "Gloo", "Open MPI"
SIZES = {  # size -> iterations of a loop, number of calls
    4: ("4 B", 200, 100), 64 << 10: ("64 KiB", 100, 50), 1 << 20: ("1 MiB", 20, 20),
    16 << 20: ("16 MiB", 3, 7),
}  # fmt: skip
KINDS = "psum", "all_gather", "psum_scatter", "all_to_all", "ppermute"
# widths of the MLP's layers
WIDTHS = {512: "step, 1.6 M parameters", 1024: "step, 6.3 M parameters"}


def microseconds(run, array, times: int) -> float:
    import jax

    jax.block_until_ready(run(array))
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        jax.block_until_ready(run(array))
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken) * 1e6


def measure() -> dict:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    ranks = jax.process_count()
    found: Dict[str, float] = {}

    def keep(what: str, figure: float) -> None:
        found[what] = figure
        if jax.process_index() == 0:
            print(f"{what} {figure:.4g} us", file=sys.stderr, flush=True)

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("i",))
    whole, rows = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in ((), ("i",)))
    options = {
        "psum": {}, "all_gather": {"tiled": True}, "psum_scatter": {"tiled": True},
        "all_to_all": {"split_axis": 0, "concat_axis": 0, "tiled": True},
        "ppermute": {"perm": [(rank, (rank + 1) % ranks) for rank in range(ranks)]},
    }  # fmt: skip

    def mapped(kind: str, count: int):
        def once(_, a):  # XLA keeps the collective, because one element of its result is used
            result = lax.optimization_barrier(getattr(lax, kind)(a, "i", **options[kind]))
            return a.at[:1].set(result[:1])

        def loop(a):
            return lax.fori_loop(0, count, once, a)

        spec = {"in_specs": jax.P("i"), "out_specs": jax.P("i"), "check_vma": False}
        return jax.jit(jax.shard_map(loop, mesh=mesh, **spec))

    for kind in KINDS:
        for size, (_, iterations, calls) in SIZES.items():
            x = jax.device_put(np.ones(max(size // 4, ranks) * ranks, "float32"), rows)
            for way, count, times in ("loop", iterations, 5), ("call", 1, calls):
                keep(f"{kind}, {way}{size}", microseconds(mapped(kind, count), x, times) / count)

    def loss(weights, x):
        for each in weights:
            x = jnp.tanh(x @ each)
        return (x**2).mean()

    def updated(weights, x):
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x))

    for width, title in WIDTHS.items():
        weights = jax.device_put([np.eye(width, dtype="float32")] * 6, whole)
        x = jax.device_put(np.ones((32 * ranks, width), "float32"), rows)
        step = jax.jit(updated, out_shardings=whole)
        keep(title, microseconds(lambda x, w=weights, step=step: step(w, x), x, 15))
    return found


def on_rank(folder: str, system: str, port: str) -> None:
    if system == OURS:
        import hvdlite.jax as hvd

        hvd.init()
    import jax

    if system != OURS:
        rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_collectives_implementation", "gloo" if system == GLOO else "mpi")
        jax.distributed.initialize(f"127.0.0.1:{port}", size, rank)
    harness.write(folder, jax.process_index(), measure())
    if system == MPI:  # at its exit JAX frees communicators after MPI_Finalize: Open MPI aborts
        from mpi4py import MPI as openmpi

        openmpi.Finalize()
        os._exit(0)


def run_system(system: str, ranks: int, wrapper: str) -> dict:
    """Start the ranks; return the figures of the slowest rank."""
    environment: Dict[str, Any] = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", **KEEP_MEMORY}
    start = [sys.executable, "-m", "hvdlite.launch", "--transport", "tcp"]
    if system != OURS:
        start = [str(ROOT / ".venv-frameworks/bin/mpirun")]
        idle = {"OMPI_MCA_mpi_yield_when_idle": "1"} if ranks > CORES else {}
        environment.update(**SETTINGS, **idle, MPITRAMPOLINE_LIB=wrapper)
    start += ["-n", str(ranks)]
    runs = list(harness.results(start, "jax_cpu", [system, str(free_port())], **environment))
    return {what: max(run[what] for run in runs) for what in runs[0]}


def table(found: Dict[str, list], ranks: int) -> str:
    def cell(what: str) -> str:
        medians = [statistics.median(run[what] for run in runs) for runs in found.values()]
        return " / ".join(f"{each:.3g}" if each < 100 else f"{each:,.0f}" for each in medians)

    names = [f"{kind}, {way}" for kind in KINDS for way in ("loop", "call")]
    lines = [[name, *(cell(f"{name}{size}") for size in SIZES)] for name in names]
    steps = [[title, cell(title), "", "", ""] for title in WIDTHS.values()]
    header = [f"us, {ranks} ranks: {' / '.join(found)}", *(each[0] for each in SIZES.values())]
    return markdown(header, lines + steps)


def main() -> None:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mpi", metavar="LIBRARY", default="", help="also measure this Open MPI")
    parser.add_argument("--rank", nargs=3, metavar=("FOLDER", "SYSTEM", "PORT"))
    args = parser.parse_args()
    if args.rank:
        return on_rank(*args.rank)
    found = Kept(f"jax-{args.ranks}").add(
        [OURS, GLOO, *([MPI] if args.mpi else [])], [args.mpi], args.rounds,
        lambda system, wrapper: run_system(system, args.ranks, wrapper),
    )  # fmt: skip
    show(table(found, args.ranks), args.page)


if __name__ == "__main__":
    main()

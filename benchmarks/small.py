"""Measures small allreduces on one host: hvdlite, the MPIs that are fast on one host, and Gloo.

    make bench-small                                         two ranks, docs/benchmarks.md
    make bench-small ARGS="--ranks 4 --rounds 3"             four ranks, too

The calls are in-place float32 sums from Python, one after the other. hvdlite, the Open MPI that it
uses, UCC, DeepSpeed's operation for one host's CPUs, and Gloo take turns in the same processes.
Intel MPI and MPICH have their own environments, so their processes run after the others in each
round.
`make small-peers` installs the systems that .venv-frameworks lacks. Each system has the settings
with which it was fastest: for Open MPI, malloc keeps memory; for Intel MPI, shared memory and no
pinning. Each run adds rounds to build/small-RANKS.json; delete the file to start again. A figure is
the median over rounds of the slowest rank's median; CPU is a rank's processor time per call in the
same rounds. The last row has the ratio within a round, with its minimum and maximum over rounds.
"""

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from benchmarks import harness
from benchmarks.harness import ROOT, Kept, markdown, of_rounds, parser_of, show
from benchmarks.libraries import free_port, join_gloo
from benchmarks.plan import KEEP_MEMORY

DEEPSPEED = ROOT / "build" / "deepspeed"
UCC_LOOP = ROOT / "build" / "ucc" / "loop.so"
TITLES = {4: "4 B", 4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB"}
SIZES = tuple(TITLES)  # bytes
SHARED = "hvdlite, `empty_shared`"
IN_C = "hvdlite, called from C"
UCC = "UCC, called from C"
OURS = "hvdlite", "hvdlite, a plan", SHARED, "hvdlite.torch", IN_C
HERE = (*OURS, "Open MPI", "DeepSpeed", "Gloo", UCC)
ELSEWHERE = {"Intel MPI": "intel", "MPICH": "mpich"}
BATCHES, SECONDS = 7, 0.02  # batches per library and size; seconds of a batch
# seconds to wait after a library's batch, because its idle OpenMP threads spin for this time
SPINS = {"DeepSpeed": 0.05}
UNBOUND = ["--bind-to", "none", "--oversubscribe"]
ENVIRONMENT = {
    "Open MPI": KEEP_MEMORY,
    "Intel MPI": {"I_MPI_FABRICS": "shm", "I_MPI_PIN": "0", "HYDRA_LAUNCHER": "fork"},
    "MPICH": {"HYDRA_LAUNCHER": "fork"},
}

LOOP = """
int loop(int (*run)(void *, const void *, void *, double), void *plan, void *data, int count) {
    for (int i = 0; i < count; i++)
        if (!run(plan, data, data, 10)) return i;
    return count;
}
"""

# ---- on each rank ----


def of_mpi(comm) -> Callable[[int], Callable]:
    from mpi4py import MPI

    def call(nbytes: int) -> Callable:
        array = np.zeros(nbytes // 4, np.float32)
        return lambda: comm.Allreduce(MPI.IN_PLACE, array)

    return call


def of_hvdlite() -> Dict[str, Callable[[int], Callable]]:
    import torch

    import hvdlite.numpy as hn
    import hvdlite.torch as hvd

    hvd.init()

    def call(nbytes: int) -> Callable:
        array, name = np.zeros(nbytes // 4, np.float32), f"call.{nbytes}"
        return lambda: hn.allreduce(array, name, hvd.Sum, out=array)

    def plan(nbytes: int) -> Callable:
        array = np.zeros(nbytes // 4, np.float32)
        return hn.allreduce_plan(array, f"plan.{nbytes}", hvd.Sum, out=array)

    def shared(nbytes: int) -> Callable:
        array = hn.empty_shared(nbytes // 4, np.float32)
        array[:] = 0
        return hn.allreduce_plan(array, f"shared.{nbytes}", hvd.Sum, out=array)

    def in_torch(nbytes: int) -> Callable:
        tensor, name = torch.zeros(nbytes // 4), f"torch.{nbytes}"
        return lambda: hvd.allreduce_(tensor, name=name, op=hvd.Sum)

    return dict(zip(OURS, (call, plan, shared, in_torch, of_c())))


def of_c() -> Callable[[int], Callable]:
    """Return a factory like :func:`of_mpi`'s whose calls repeat ``hvd_run`` in a C loop."""
    from hvdlite.core.collectives import describe_on, memory_of, reduction
    from hvdlite.core.native import ffi, lib, new_error
    from hvdlite.core.process_set import global_process_set
    from hvdlite.core.reduce_ops import Sum

    with tempfile.TemporaryDirectory() as folder:
        library = f"{folder}/loop.so"
        line = ["cc", "-O2", "-shared", "-fPIC", "-xc", "-", "-o", library]
        subprocess.run(line, input=LOOP, text=True, check=True)
        loop = ctypes.CDLL(library).loop
    loop.argtypes = (*[ctypes.c_void_p] * 3, ctypes.c_int)
    run = int(ffi.cast("intptr_t", ffi.addressof(lib, "hvd_run")))
    how = {**reduction(Sum, (1.0, 1.0), global_process_set), "waited": 1}

    def call(nbytes: int) -> Callable:
        array = np.zeros(nbytes // 4, np.float32)
        memory = memory_of(array)
        tensor, _alive = describe_on(lib.HVD_ALLREDUCE, f"c.{nbytes}", memory, memory, how)
        plan = lib.hvd_plan(tensor, new_error())
        handle = int(ffi.cast("intptr_t", plan))

        def repeat(count: int) -> None:
            assert loop(run, handle, array.ctypes.data, count) == count, "hvd_run failed"

        return repeat

    return call


def repeated(run: Callable) -> Callable[[int], None]:
    """Return a function that makes ``count`` calls of ``run``, one after the other."""

    def repeat(count: int) -> None:
        for _ in range(count):
            run()

    return repeat


def of_deepspeed(comm) -> Callable[[int], Callable]:
    """Return a factory for calls of DeepSpeed's operation, which spins in shared memory."""
    import torch

    # DeepSpeed also makes the name of its shared memory from these variables
    where = {"LOCAL_SIZE": str(comm.size), "MASTER_ADDR": "localhost"}
    os.environ.update(where, MASTER_PORT=str(free_port(comm)))
    sys.path.insert(0, str(DEEPSPEED))
    import deepspeed_shm_comm

    deepspeed_shm_comm.initialize(comm.size, comm.rank)

    def call(nbytes: int) -> Callable:
        tensor = torch.zeros(nbytes // 4)
        return lambda: torch.ops.deepspeed.inference_all_reduce_(tensor)

    return call


def of_ucc(comm) -> Callable[[int], Callable]:
    """Return a factory whose calls repeat UCC's allreduce in a C loop, benchmarks/ucc_loop.c."""
    library = ctypes.CDLL(str(UCC_LOOP))
    library.ucc_loop_plan.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    library.ucc_loop_run.argtypes = ctypes.c_void_p, ctypes.c_int

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    def gather(mine: int, everyone: int, nbytes: int) -> int:
        parts = [comm.bcast(ctypes.string_at(mine, nbytes), root) for root in range(comm.size)]
        ctypes.memmove(everyone, b"".join(parts), nbytes * comm.size)
        return 0

    status = library.ucc_loop_open(comm.rank, comm.size, gather)
    assert status == 0, f"UCC's status is {status}"

    def call(nbytes: int) -> Callable:
        array, plan = np.zeros(nbytes // 4, np.float32), ctypes.c_void_p()
        assert not library.ucc_loop_plan(array.ctypes.data, array.size, ctypes.byref(plan))

        def repeat(count: int, _alive=(array, gather)) -> None:
            assert library.ucc_loop_run(plan, count) == 0, "UCC failed"

        return repeat

    return call


def of_gloo(comm) -> Callable[[int], Callable]:
    import torch

    torch.set_num_threads(1)
    dist = join_gloo(comm)

    def call(nbytes: int) -> Callable:
        tensor = torch.zeros(nbytes // 4)
        return lambda: dist.all_reduce(tensor)

    return call


def batch(comm, run: Callable, count: int) -> Tuple[float, float]:
    """Return the seconds and the CPU seconds per call."""
    comm.Barrier()
    cpu, began = time.process_time(), time.perf_counter()
    run(count)
    return (time.perf_counter() - began) / count, (time.process_time() - cpu) / count


def calls_of(comm, run: Callable) -> int:
    """Return the number of calls of a batch, the same on all ranks."""
    run(20)
    return max(3, min(2000, int(SECONDS / comm.allreduce(batch(comm, run, 3)[0]) * comm.size)))


def measure(
    comm, libraries: Dict[str, Callable[[int], Callable]], sizes: Sequence[int] = SIZES
) -> Dict[str, Any]:
    """Measure the libraries in turn, and return the times of a call in microseconds.

    :return: ``[library][bytes]`` -> the median time and the median CPU time.
    """
    found: Dict[str, Any] = {name: {} for name in libraries}
    for nbytes in sizes:
        runs = {name: make(nbytes) for name, make in libraries.items()}
        runs = {n: run if n in (IN_C, UCC) else repeated(run) for n, run in runs.items()}
        calls = {name: calls_of(comm, run) for name, run in runs.items()}
        taken: Dict[str, List[Tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(BATCHES):
            for name, run in runs.items():
                taken[name].append(batch(comm, run, calls[name]))
                time.sleep(SPINS.get(name, 0))
        for name, pairs in taken.items():
            medians = [statistics.median(each) * 1e6 for each in zip(*pairs)]
            found[name][str(nbytes)] = medians
    return found


def on_rank(folder: str, contestant: str) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    libraries = {contestant: of_mpi(comm)}
    if contestant == "Open MPI":
        libraries = {**of_hvdlite(), contestant: of_mpi(comm.Dup()), "Gloo": of_gloo(comm)}
        if DEEPSPEED.is_dir():
            libraries["DeepSpeed"] = of_deepspeed(comm)
        if UCC_LOOP.exists():
            libraries[UCC] = of_ucc(comm)
    harness.write(folder, comm.rank, measure(comm, libraries))


# ---- all of them ----


def run_contestant(contestant: str, ranks: int) -> Dict[str, Any]:
    """Start the ranks; return the slowest rank's result of :func:`measure`."""
    home = ROOT / (".venv-" + ELSEWHERE.get(contestant, "frameworks"))
    name, options = ("mpiexec.hydra", []) if contestant in ELSEWHERE else ("mpirun", UNBOUND)
    start = [str(home / "bin" / name), *options, "-n", str(ranks)]
    path = f"{home / 'bin'}:{os.environ['PATH']}"
    environment: Dict[str, Any] = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PATH": path}
    environment.update(ENVIRONMENT[contestant])
    python = home / "bin" / "python"
    return slowest(
        list(harness.results(start, "small", [contestant], python=python, **environment))
    )


def slowest(of_ranks: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Return, for each library and size, the slowest rank's result of :func:`measure`."""
    return {
        name: {size: max(each[name][size] for each in of_ranks) for size in of_ranks[0][name]}
        for name in of_ranks[0]
    }


def _text(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _ratio(run: Dict[str, Any], size: str) -> List[float]:
    """Return the time of the fastest other system, divided by hvdlite's, if both have run."""
    ours = [name for name in run if name.startswith(OURS[0])]
    others = [run[name][size][0] for name in run if name not in (*ours, UCC)]
    return [min(others) / run[OURS[0]][size][0]] if others and OURS[0] in run else []


def table(runs: List[Dict[str, Any]], ranks: str, titles: Dict[int, str] = TITLES) -> str:
    known = dict.fromkeys([*HERE, *ELSEWHERE, *(name for run in runs for name in run)])
    names = [name for name in known if any(name in run for run in runs)]
    lines = []
    for name in names:
        values = [[run[name][str(size)] for run in runs if name in run] for size in titles]
        medians = [[statistics.median(each) for each in zip(*pairs)] for pairs in values]
        lines.append([name, *(f"{_text(wall)} ({_text(cpu)})" for wall, cpu in medians)])
    ratios = [[ratio for run in runs for ratio in _ratio(run, str(size))] for size in titles]
    lines.append(["fastest other from Python / hvdlite", *map(of_rounds, ratios)])
    return markdown([f"us (CPU us a rank), {ranks}", *titles.values()], lines)


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", nargs=2, metavar=("FOLDER", "CONTESTANT"))
    args = parser.parse_args()
    if args.rank:
        return on_rank(*args.rank)
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    there = [name for name, home in ELSEWHERE.items() if (ROOT / f".venv-{home}").is_dir()]
    Kept(f"small-{args.ranks}").add(
        ["small"], ["Open MPI", *there], args.rounds,
        lambda work, contestant: run_contestant(contestant, args.ranks),
    )  # fmt: skip
    kept = {int(file.stem[6:]): Kept(file.stem) for file in harness.BUILD.glob("small-*.json")}
    show("\n\n".join(table(kept[n].found["small"], f"{n} ranks") for n in sorted(kept)), args.page)


if __name__ == "__main__":
    main()

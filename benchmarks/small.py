"""Measures small allreduces on one host: hvdlite, the MPIs that are fast on one host, and Gloo.

    make bench-small                                         two ranks, docs/benchmarks.md
    make bench-small ARGS="--ranks 4 --rounds 3"             four ranks, too

The calls are in-place float32 sums from Python, one after the other. hvdlite, the Open MPI that it
uses, UCC, DeepSpeed's operation for one host's CPUs, and Gloo take turns in the same processes.
Open MPI with its components HAN and XHC, Intel MPI and MPICH run in other processes of the same
round. benchmarks/mpis.py has the settings of the MPIs. `make small-peers` installs the systems that
.venv-frameworks lacks; the output names each system that did not run, and the reason. Each run adds
rounds to build/small-RANKS.json; delete the file to start again. A figure is the median over rounds
of the slowest rank's median; CPU is a rank's processor time per call in the same rounds. The last
two rows name the fastest other system, and have the median of the ratio within a round, with its
minimum and maximum over rounds. UCC is called from a loop in C, so that UCC is compared only with
hvdlite in such a loop.
"""

import ctypes
import os
import statistics
import subprocess
import tempfile
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

import numpy as np

from benchmarks import harness, mpis
from benchmarks.harness import ROOT, Kept, markdown, of_rounds, parser_of, show
from benchmarks.libraries import UCC_LOOP, deepspeed_fails, join_gloo, open_deepspeed, open_ucc
from benchmarks.plan import CORES

TITLES = {4: "4 B", 4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB"}
SIZES = tuple(TITLES)  # bytes
SHARED = "hvdlite, `empty_shared`"
IN_C = "hvdlite, called from C"
UCC = "UCC, called from C"
OURS = "hvdlite", "hvdlite, a plan", SHARED, "hvdlite.torch", IN_C
KNOWN = (*OURS, "DeepSpeed", "Gloo", UCC, *mpis.SETTINGS)  # the order of a table's rows
# what a table compares: a row of hvdlite, and the other systems that are called in the same way
COMPARED = {
    "from Python": (OURS[0], [name for name in KNOWN if name not in (*OURS, UCC)]),
    "from C": (IN_C, [UCC]),
}
BATCHES, SECONDS = 7, 0.02  # batches per library and size; seconds of a batch
# seconds to wait after a library's batch, because its idle OpenMP threads spin for this time
SPINS = {"DeepSpeed": 0.05}

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
    """Return a function of a size; the function returns a call that repeats ``hvd_run`` in C."""
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
    import torch

    reduce = open_deepspeed(comm)

    def call(nbytes: int) -> Callable:
        tensor = torch.zeros(nbytes // 4)
        return lambda: reduce(tensor)

    return call


def of_ucc(comm) -> Callable[[int], Callable]:
    plan_of = open_ucc(comm)
    return lambda nbytes: plan_of(np.zeros(nbytes // 4, np.float32))


def of_gloo(comm) -> Callable[[int], Callable]:
    import torch

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


def calls_of(comm, run: Callable, nbytes: int) -> int:
    """Return the number of calls of a batch, the same on all ranks."""
    run(20 if nbytes < 1 << 20 else 3)
    return max(3, min(2000, int(SECONDS / comm.allreduce(batch(comm, run, 3)[0]) * comm.size)))


def measure(
    comm, libraries: Dict[str, Callable[[int], Callable]], folder: str,
    sizes: Sequence[int] = SIZES,
) -> None:  # fmt: skip
    """Measure the libraries in turn, and write the times of a call in microseconds into a folder.

    The rank's file is written after each size: ``{library: {bytes: [median time, CPU time]}}``.
    """
    found: Dict[str, Any] = {name: {} for name in libraries}
    for nbytes in sizes:
        runs = {name: make(nbytes) for name, make in libraries.items()}
        runs = {n: run if n in (IN_C, UCC) else repeated(run) for n, run in runs.items()}
        calls = {name: calls_of(comm, run, nbytes) for name, run in runs.items()}
        taken: Dict[str, List[Tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(BATCHES):
            for name, run in runs.items():
                taken[name].append(batch(comm, run, calls[name]))
                time.sleep(SPINS.get(name, 0))
        for name, pairs in taken.items():
            medians = [statistics.median(each) * 1e6 for each in zip(*pairs)]
            found[name][str(nbytes)] = medians
        harness.write(folder, comm.rank, found)


def on_rank(folder: str, contestant: str) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    libraries = {contestant: of_mpi(comm)}
    if contestant == mpis.OPEN_MPI:
        libraries = {**of_hvdlite(), contestant: of_mpi(comm.Dup()), "Gloo": of_gloo(comm)}
        if not deepspeed_fails():
            libraries["DeepSpeed"] = of_deepspeed(comm)
        if UCC_LOOP.exists():
            libraries[UCC] = of_ucc(comm)
    measure(comm, libraries, folder)


# ---- the jobs, and the tables of their results ----


def run_contestant(contestant: str, ranks: int) -> Dict[str, Any]:
    """Start the ranks; return the slowest rank's result of :func:`measure`."""
    start = [*mpis.launcher(contestant), "-n", str(ranks)]
    threads = str(max(1, CORES // ranks))
    environment = {"OMP_NUM_THREADS": threads, "PYTHONPATH": str(ROOT), **mpis.SETTINGS[contestant]}
    return slowest(list(harness.results(start, "small", [contestant], **environment)))


def slowest(of_ranks: List[Dict[str, Any]]) -> Dict[str, Any]:
    """Return the slowest rank's result, for each library and each size that all ranks have."""
    return {
        name: {
            size: max(each[name][size] for each in of_ranks)
            for size in sizes
            if all(size in each[name] for each in of_ranks)
        }
        for name, sizes in of_ranks[0].items()
    }


def _text(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def compared(runs: List[Dict[str, Any]], how: str, size: str) -> str:
    """Return the name of the fastest other system, and the ratio of its time and hvdlite's.

    The fastest system has the smallest median; the ratio is the median of the rounds' ratios.

    :return: in bold if hvdlite is slower; a dash if hvdlite or all others were not measured.
    """
    ours, others = COMPARED[how]
    both: Dict[str, List[Tuple[float, float]]] = {}  # other system -> its times and hvdlite's
    for run in (run for run in runs if size in run.get(ours, {})):
        for name in (name for name in others if size in run.get(name, {})):
            both.setdefault(name, []).append((run[name][size][0], run[ours][size][0]))
    if not both:
        return "–"
    fastest = min(both, key=lambda name: statistics.median(theirs for theirs, _ in both[name]))
    ratios = [theirs / own for theirs, own in both[fastest]]
    median, *spread = of_rounds(ratios, lambda r: f"{r:.2f}" if r < 100 else _text(r)).split(" ", 1)
    bold = f"**{median}**" if statistics.median(ratios) < 1 else median
    return " ".join([f"{fastest.partition(', called')[0]} {bold}", *spread])


def table(runs: List[Dict[str, Any]], ranks: str, titles: Dict[int, str] = TITLES) -> str:
    known = dict.fromkeys([*KNOWN, *(name for run in runs for name in run)])
    names = [name for name in known if any(name in run for run in runs)]
    lines = []
    for name in names:
        line = [name]
        for size in map(str, titles):
            pairs = [run[name][size] for run in runs if size in run.get(name, {})]
            medians = [_text(statistics.median(each)) for each in zip(*pairs)]
            line.append("{} ({})".format(*medians) if pairs else "–")
        lines.append(line)
    for how in COMPARED:
        cells = [compared(runs, how, str(size)) for size in titles]
        lines.append([f"fastest other {how} / hvdlite {how}", *cells])
    return markdown([f"us (CPU us a rank), {ranks}", *titles.values()], lines)


def left_out() -> Dict[str, str]:
    """Return the systems of KNOWN that can't run here, each with the reason."""
    found = mpis.left_out()
    fails = deepspeed_fails()
    if fails:
        found["DeepSpeed"] = fails
    if not UCC_LOOP.exists():
        found[UCC] = f"{UCC_LOOP.relative_to(ROOT)} is missing: run `make small-peers`"
    return found


def not_run(reasons: Dict[str, str]) -> str:
    """Return a list of systems that did not run; empty if there is none."""
    return "\n".join(["Not run:", "", *(f"* {name}: {why}" for name, why in reasons.items())])


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rank", nargs=2, metavar=("FOLDER", "CONTESTANT"))
    args = parser.parse_args()
    if args.rank:
        return on_rank(*args.rank)
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    reasons = left_out()
    Kept(f"small-{args.ranks}").add(
        ["small"], [name for name in mpis.SETTINGS if name not in reasons], args.rounds,
        lambda work, contestant: run_contestant(contestant, args.ranks),
    )  # fmt: skip
    kept = {int(file.stem[6:]): Kept(file.stem) for file in harness.BUILD.glob("small-*.json")}
    tables = [table(kept[n].found["small"], f"{n} ranks") for n in sorted(kept)]
    show("\n\n".join([*tables, *([not_run(reasons)] if reasons else [])]), args.page)


if __name__ == "__main__":
    main()

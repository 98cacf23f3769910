"""Measures allreduces on one many-core host, from 2 ranks with many cores to 32 ranks.

    make bench-cores                      2, 4, 8, 16, 32 ranks on all cores, build/cores.json
    make bench-cores ARGS="--layouts 2x8 --seconds 60"

A layout RxT has R ranks with T cores each; each rank is bound to its own cores. The calls are
in-place float32 sums from Python. hvdlite, DeepSpeed's operation (with T OpenMP threads) and Gloo
take turns in the same processes. Open MPI also runs if ``mpirun`` is in PATH. With more than 8
ranks, plans of hvdlite also run in teams of each size (HVDLITE_TEAM_RANKS). The benchmark needs
PyTorch, NumPy and cffi, but no network. A figure is the slowest rank's median time; CPU is a rank's
processor time per call.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

import hvdlite as hvd
from benchmarks import harness, small
from benchmarks.harness import ROOT, parser_of, show

TITLES = {
    4: "4 B", 4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB",
    64 << 20: "64 MiB",
}  # fmt: skip
TEAMS = "hvdlite, a plan, HVDLITE_TEAM_RANKS="
OPENMP = {"OMP_PROC_BIND": "false"}  # so that a rank's threads use all its cores, not only one


def layouts_of(cores: int) -> List[str]:
    """Return layouts of 2 to 32 ranks, with an equal number of cores for each rank."""
    return [f"{n}x{cores // n}" for n in (2, 4, 8, 16, 32) if n <= cores]


def processor() -> str:
    """Return the processor's name from the kernel, and the numbers of cores and NUMA nodes."""
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    nodes = len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or 1
    cores = len(os.sched_getaffinity(0))
    return f"{names[0] if names else platform.machine()}, {cores} cores, {nodes} NUMA nodes"


class OverHvdlite:
    """The methods of a communicator that :mod:`benchmarks.small` calls, over hvdlite."""

    def __init__(self) -> None:
        hvd.init()
        self.rank, self.size, self.Barrier = hvd.rank(), hvd.size(), hvd.barrier

    def allreduce(self, value: float) -> float:
        return float(hvd.numpy.allreduce(np.array([value]), "sum", hvd.Sum)[0])

    def bcast(self, value: Any, root: int = 0) -> Any:
        return hvd.broadcast_object(value, root)


def plan(nbytes: int) -> Callable:
    array = np.zeros(nbytes // 4, np.float32)
    return hvd.numpy.allreduce_plan(array, f"plan.{nbytes}", hvd.Sum, out=array)


def teams_of(ranks: int) -> Dict[str, Dict[str, str]]:
    """Return a contestant for each size of a team, with its environment variables; 1: no teams."""
    if ranks <= 8:
        return {}
    sizes = [size for size in range(1, ranks // 2 + 1) if ranks % size == 0]
    return {f"{TEAMS}{size}": {"HVDLITE_TEAM_RANKS": str(size)} for size in sizes}


def on_rank(folder: str, contestant: str, threads: int) -> None:
    names = "OMPI_COMM_WORLD_LOCAL_RANK", "LOCAL_RANK"
    local = next(os.environ[name] for name in names if name in os.environ)
    cores = sorted(os.sched_getaffinity(0))
    first = int(local) * threads
    os.sched_setaffinity(0, {cores[i % len(cores)] for i in range(first, first + threads)})
    if contestant.startswith(TEAMS):
        comm: Any = OverHvdlite()
        libraries = {contestant: plan}
    elif contestant == "Open MPI":
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
        libraries = {contestant: small.of_mpi(comm.Dup())}
    else:
        import torch

        comm = OverHvdlite()
        libraries = {**small.of_hvdlite(), "Gloo": small.of_gloo(comm)}
        if small.DEEPSPEED.is_dir():
            libraries["DeepSpeed"] = small.of_deepspeed(comm)
        torch.set_num_threads(threads)
    harness.write(folder, comm.rank, small.measure(comm, libraries, tuple(TITLES)))


def run_layout(layout: str) -> Dict[str, Any]:
    """Return the slowest rank's result of :func:`small.measure`, for each library."""
    ranks, threads = map(int, layout.split("x"))
    launch = [sys.executable, "-m", "hvdlite.launch", "--transport", "tcp"]
    teams = teams_of(ranks)
    starts = {"hvdlite": launch, **dict.fromkeys(teams, launch)}
    if shutil.which("mpirun"):
        starts["Open MPI"] = ["mpirun", "--bind-to", "none", "--oversubscribe"]
    found: Dict[str, Any] = {}
    for contestant, start in starts.items():
        began = time.monotonic()
        environment = {**OPENMP, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": python_path()}
        environment.update(teams.get(contestant, {}))
        of_ranks = harness.results(
            [*start, "-n", str(ranks)], "cores", [contestant, str(threads)], 120, **environment
        )
        try:
            found.update(small.slowest(list(of_ranks)))
        # continue, so that the table has the other rows
        except (SystemExit, subprocess.TimeoutExpired) as failed:
            print(failed, file=sys.stderr)
        print(f"{layout} {contestant}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    return found


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def measured(layouts: List[str], seconds: float) -> Tuple[Dict[str, Any], List[str]]:
    """Return the results by layout, and the layouts for which no time was left."""
    found, until = {}, time.monotonic() + seconds
    for number, layout in enumerate(layouts):
        if time.monotonic() > until:
            return found, layouts[number:]
        found[layout] = run_layout(layout)
    return found, []


def main() -> None:
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--layouts", nargs="+", metavar="RxT", default=layouts_of(len(os.sched_getaffinity(0))))
    add("--seconds", type=float, default=200, help="start no layout after this time (%(default)s)")
    add("--json", type=Path, default=harness.BUILD / "cores.json", help="(%(default)s)")
    add("--rank", nargs=3, metavar=("FOLDER", "CONTESTANT", "THREADS"))
    args = parser.parse_args()
    if args.rank:
        return on_rank(args.rank[0], args.rank[1], int(args.rank[2]))
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    found, left_out = measured(args.layouts, args.seconds)
    args.json.parent.mkdir(exist_ok=True)
    args.json.write_text(json.dumps({"machine": processor(), "layouts": found}, indent=1))
    tables = [small.table([run], layout, TITLES) for layout, run in found.items()]
    late = [f"No time was left for {', '.join(left_out)}."] if left_out else []
    show("\n\n".join([processor(), *tables, *late]), args.page)


if __name__ == "__main__":
    main()

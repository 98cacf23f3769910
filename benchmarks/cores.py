"""Measures allreduces on one many-core host, from 2 ranks with many cores to 32 ranks.

    make bench-cores                      2, 16, 4, 8, 32 ranks on all cores, build/cores.json
    make bench-cores ARGS="--layouts 2x8 --seconds 60"

A layout RxT has R ranks with T cores each; each rank is bound to its own cores. The calls are
in-place float32 sums from Python, or in a loop in C. hvdlite, DeepSpeed's operation (with T OpenMP
threads) and Gloo take turns in the same processes; UCC and each MPI of benchmarks/mpis.py have
their own processes. With more than 8 ranks, hvdlite's persistent collectives (plans) also run with
HVDLITE_TEAM_RANKS set to each divisor. The benchmark needs PyTorch, NumPy and cffi, for the MPIs
also mpi4py. A figure is the slowest rank's median time; CPU is a rank's processor time per call.

All jobs together take at most --seconds. The jobs whose results matter most come first. The table
and the JSON file name every system that did not run, and the reason.
"""

import json
import os
import platform
import re
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

import hvdlite as hvd
from benchmarks import harness, mpis, small
from benchmarks.harness import ROOT, parser_of, show

TITLES = {
    4: "4 B", 4 << 10: "4 KiB", 64 << 10: "64 KiB", 1 << 20: "1 MiB", 16 << 20: "16 MiB",
    64 << 20: "64 MiB",
}  # fmt: skip
TEAMS = "hvdlite, a plan, HVDLITE_TEAM_RANKS="
TOGETHER = {"hvdlite": ["hvdlite", "DeepSpeed", "Gloo"]}  # systems that take turns in one job
LAUNCH = [sys.executable, "-m", "hvdlite.launch", "--transport", "tcp"]
LOCAL_RANK = "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"  # set by the launchers
MOST = 80  # seconds of one job, so that a job that hangs leaves time for the others
LEAST = 5  # the benchmark starts no job if fewer seconds are left
END = harness.KILL_AFTER + 2  # seconds to stop the last job, and to write the results
OPENMP = {"OMP_PROC_BIND": "false"}  # so that a rank's threads use all its cores, not only one


def layouts_of(cores: int) -> List[str]:
    """Return layouts of 2 to 32 ranks that use all cores; the most useful layouts are first."""
    return [f"{n}x{cores // n}" for n in (2, 16, 4, 8, 32) if n <= cores]


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
    """Return contestant -> environment, one for each value of HVDLITE_TEAM_RANKS to measure."""
    if ranks <= 8:
        return {}
    sizes = [size for size in range(1, ranks // 2 + 1) if ranks % size == 0]
    return {f"{TEAMS}{size}": {"HVDLITE_TEAM_RANKS": str(size)} for size in sizes}


def on_rank(folder: str, contestant: str, threads: int) -> None:
    local = next(os.environ[name] for name in LOCAL_RANK if name in os.environ)
    cores = sorted(os.sched_getaffinity(0))
    first = int(local) * threads
    os.sched_setaffinity(0, {cores[i % len(cores)] for i in range(first, first + threads)})
    if contestant in mpis.SETTINGS:
        from mpi4py import MPI

        comm: Any = MPI.COMM_WORLD
        libraries = {contestant: small.of_mpi(comm.Dup())}
    elif contestant.startswith(TEAMS):
        comm, libraries = OverHvdlite(), {contestant: plan}
    elif contestant == small.UCC:
        comm = OverHvdlite()
        libraries = {contestant: small.of_ucc(comm)}
    else:
        comm = OverHvdlite()
        libraries = {**small.of_hvdlite(), "Gloo": small.of_gloo(comm)}
        if not small.deepspeed_fails():
            libraries["DeepSpeed"] = small.of_deepspeed(comm)
    small.measure(comm, libraries, folder, tuple(TITLES))


def jobs_of(layouts: Sequence[str]) -> List[Tuple[str, str]]:
    """Return layouts and contestants in the order of measurement; HVDLITE_TEAM_RANKS comes last."""
    systems = [(each, name) for each in layouts for name in ("hvdlite", *mpis.SETTINGS, small.UCC)]
    return systems + [(each, name) for each in layouts for name in teams_of(ranks_of(each))]


def ranks_of(layout: str) -> int:
    return int(layout.split("x")[0])


def run_job(layout: str, contestant: str, limit: float) -> Tuple[Dict[str, Any], Optional[str]]:
    """Return the slowest rank's result for each library and size, and why sizes are missing."""
    ranks, threads = layout.split("x")
    environment = {**OPENMP, "OMP_NUM_THREADS": threads, "PYTHONPATH": python_path()}
    environment.update(teams_of(int(ranks)).get(contestant) or mpis.SETTINGS.get(contestant, {}))
    start = mpis.launcher(contestant) if contestant in mpis.SETTINGS else LAUNCH
    job = [*start, "-n", ranks], "cores", [contestant, threads], limit
    try:
        return small.slowest([*harness.results(*job, **environment)]), None
    except harness.Failed as failed:
        has_all = len(failed.found) == int(ranks)
        return small.slowest(failed.found) if has_all else {}, str(failed)


def python_path() -> str:
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def measured(
    jobs: Sequence[Tuple[str, str]], until: float, left_out: Dict[str, str],
    save: Callable[[Dict[str, Any]], None], run: Callable = run_job,
) -> Dict[str, Any]:  # fmt: skip
    """Run the jobs; return, for each layout, the results, and the reasons for missing results.

    :param until: the time.monotonic() at which the last job must have ended.
    :param left_out: contestants that can't run here, each with the reason.
    :param save: takes the results after each job, because another program may end this one.
    """
    found: Dict[str, Any] = {"layouts": {}, "not run": {}}
    for layout, contestant in jobs:
        began = time.monotonic()
        why = left_out.get(contestant)
        if not why and until - began < LEAST:
            why = "no time was left"
        if not why:
            results, why = run(layout, contestant, min(MOST, until - began))
            found["layouts"].setdefault(layout, {}).update(results)
            print(f"{layout} {contestant}: {time.monotonic() - began:.1f} s", file=sys.stderr)
        for name in TOGETHER.get(contestant, [contestant]):
            reason = left_out.get(name, why)
            if reason:
                found["not run"].setdefault(layout, {})[name] = reason
        save(found)
    return found


def text_of(found: Dict[str, Any]) -> str:
    """Return the tables of the layouts, and the list of what did not run."""
    tables = [small.table([run], layout, TITLES) for layout, run in found["layouts"].items()]
    layouts: Dict[Tuple[str, str], List[str]] = {}
    for layout, reasons in found["not run"].items():
        for pair in reasons.items():
            layouts.setdefault(pair, []).append(layout)
    reasons = {f"{name}, {', '.join(where)}": why for (name, why), where in layouts.items()}
    return "\n\n".join([found["machine"], *tables, *([small.not_run(reasons)] if reasons else [])])


def main() -> None:
    began = time.monotonic()
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--layouts", nargs="+", metavar="RxT", default=layouts_of(len(os.sched_getaffinity(0))))
    add("--seconds", type=float, default=240, help="the whole run ends by then (%(default)s)")
    add("--json", type=Path, default=harness.BUILD / "cores.json", help="(%(default)s)")
    add("--rank", nargs=3, metavar=("FOLDER", "CONTESTANT", "THREADS"))
    args = parser.parse_args()
    if args.rank:
        return on_rank(args.rank[0], args.rank[1], int(args.rank[2]))
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    machine = {"machine": processor()}

    def save(found: Dict[str, Any]) -> None:
        args.json.parent.mkdir(exist_ok=True)
        args.json.write_text(json.dumps({**machine, **found}, indent=1))

    jobs, until = jobs_of(args.layouts), began + args.seconds - END
    found = measured(jobs, until, small.left_out(), save)
    show(text_of({**machine, **found}), args.page)


if __name__ == "__main__":
    main()

"""One rank of a measured job, which does the same work for every library.

    mpirun -n 2 python -m benchmarks.worker --library horovod --suite speed --out rows.json

Like ``hvdlite-bench``, rank 0 writes a JSON file with a row of each case that the library can do.
"""

import argparse
import json
import sys
from pathlib import Path

from mpi4py import MPI

from benchmarks import libraries, plan
from hvdlite.bench import machine, measure
from hvdlite.core.mpi import Communicator


def main() -> None:
    args = parse_args()
    library, comm = libraries.OPEN[args.library](MPI.COMM_WORLD.Dup())
    world = Communicator(comm)
    result = {"library": args.library, "suite": args.suite, "ranks": world.size}
    result["machine"], result["versions"] = machine.describe(), versions()
    if args.library == "alone":
        result["bandwidth"] = machine.memory_bandwidth(world)
    result["baseline_memory"] = max(world.allgather(machine.peak_memory()))
    result["rows"] = []
    for case in plan.SUITES[args.suite]():
        row = measure.measure(library, case, world, args.seconds)
        if row:
            result["rows"].append(row)
            # written after each case, so that results are not lost if a later case hangs
            keep(result, args.out, world)
    result["peak_memory"] = world.allgather(machine.peak_memory())
    result["own_memory"] = world.allgather(machine.own_memory())
    if args.idle:
        result["idle"] = machine.idle_share(world, args.idle)
    keep(result, args.out, world)
    world.barrier()


def versions() -> dict:
    """Return the versions of MPI and of the packages that this process has imported."""
    name, numbers = MPI.get_vendor()
    found = {name: ".".join(map(str, numbers))}
    for module in ("mxnet", "hvdlite", "horovod", "torch"):
        if module in sys.modules:
            found[module] = sys.modules[module].__version__
    return found


def keep(result: dict, file: Path, world) -> None:
    if world.rank == 0:
        file.write_text(json.dumps(result, indent=1))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--library", choices=sorted(libraries.OPEN), required=True)
    add("--suite", choices=sorted(plan.SUITES), default="speed")
    add("--seconds", type=float, default=0.5, help="seconds for each case (%(default)s)")
    add("--idle", type=float, default=0, help="seconds of idling at the end (%(default)s)")
    add("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
    sys.stdout.flush()

"""Looks for the settings with which a peer is fastest on this machine.

    python -m benchmarks.tune horovod       alternates them, prints milliseconds by setting and work

What wins goes into plan.py, as that peer's tuned settings.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Dict, List

from tqdm import tqdm

from benchmarks import suites
from benchmarks.plan import KEEP_MEMORY, Contestant
from benchmarks.results import Results
from benchmarks.run import Job, run
from hvdlite.bench.report import in_columns, milliseconds

_DYNAMIC = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1"}
_OPEN_MPI = {
    "keep memory": KEEP_MEMORY,
    "ring": {**_DYNAMIC, "OMPI_MCA_coll_tuned_allreduce_algorithm": "4"},
    "segmented ring": {**_DYNAMIC, "OMPI_MCA_coll_tuned_allreduce_algorithm": "5"},
    "rabenseifner": {**_DYNAMIC, "OMPI_MCA_coll_tuned_allreduce_algorithm": "6"},
    "no cma": {"OMPI_MCA_smsc": "^cma"},
}
SETTINGS: Dict[str, Dict[str, Dict[str, str]]] = {
    "horovod": {
        **_OPEN_MPI,
        "cycle 0.1 ms": {"HOROVOD_CYCLE_TIME": "0.1"},
        "cycle 0.1 ms, keep memory": {"HOROVOD_CYCLE_TIME": "0.1", **KEEP_MEMORY},
        "cycle 0.01 ms, keep memory": {"HOROVOD_CYCLE_TIME": "0.01", **KEEP_MEMORY},
        "fusion 16 MiB": {"HOROVOD_FUSION_THRESHOLD": str(2**24)},
    },
    "mpi": _OPEN_MPI,
    "gloo": {"keep memory": KEEP_MEMORY},
    "ps": {
        "keep memory": KEEP_MEMORY,
        "unix sockets": {"DMLC_LOCAL": "1"},
        "two arrays a server": {"MXNET_KVSTORE_BIGARRAY_BOUND": "100000"},
    },
}


def contestants(library: str) -> List[Contestant]:
    found = [Contestant("as it comes", library)]
    return found + [Contestant(name, library, env) for name, env in SETTINGS[library].items()]


def measure(args: argparse.Namespace, folder: Path) -> None:
    jobs = [
        Job(contestant, args.ranks, args.suite, number, args.seconds)
        for number in range(args.rounds)
        for contestant in contestants(args.library)
    ]
    for job in tqdm(jobs, unit="job", dynamic_ncols=True):
        reason = run(job, folder, timeout=120)
        if reason:
            tqdm.write(f"{job.contestant.name}: {reason.splitlines()[0]}")


def table(args: argparse.Namespace, results: Results) -> str:
    works = [case.name for case in suites.SUITES[args.suite]()]
    lines = [["", *(name.split(".", 1)[1].replace(".float32", "") for name in works)]]
    for contestant in contestants(args.library):
        found = [results.value(contestant, args.ranks, work, suite=args.suite) for work in works]
        lines.append([contestant.name, *("–" if v is None else milliseconds(v) for v in found)])
    return in_columns(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("library", choices=sorted(SETTINGS))
    add("--ranks", type=int, default=2, help="(%(default)s)")
    add("--suite", choices=sorted(suites.SUITES), default="brief", help="(%(default)s)")
    add("--rounds", type=int, default=3, help="(%(default)s)")
    add("--seconds", type=float, default=0.3, help="a case and job (%(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(args, Path(folder))
        print(table(args, Results(Path(folder))))


if __name__ == "__main__":
    main()

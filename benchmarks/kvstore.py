"""The same scripts with MXNet's own servers, and without them: images/s on two ranks, in turn.

    python -m benchmarks.kvstore                          five rounds, about 6 minutes
    python -m benchmarks.kvstore --only lenet --rounds 1  one more round of one script
    python -m benchmarks.kvstore --rounds 0 --page docs/kvstore.md
                                                          the table of all rounds, into the page

A round runs each script once with ``--kvstore dist_sync``, two workers and two servers, and once
with ``--kvstore dist_sync_mpi``; the next round begins with the other one. What they print is kept
in build/kvstore.json; rounds add up until the file is deleted.
"""

import os
import re
import subprocess
import sys
from statistics import median
from typing import Dict, List

from benchmarks.harness import ROOT, Kept, markdown, parser_of, show

TIMEOUT = 120  # seconds, of one run
RANKS = 2
SERVERS, MPI = "dist_sync", "dist_sync_mpi"
OPTIONS = {SERVERS: ["-s", str(RANKS)], MPI: []}  # of hvdliterun

BENCHMARK = ["examples/imagenet.py", "--benchmark", "--one-process", "1", "--size", "32"]
SCRIPTS = {
    "lenet": ["examples/module_mnist.py", "--epochs", "4"],
    "mobilenet0.25": [*BENCHMARK, "--model", "mobilenet0.25", "--batch-size", "16"],
    "resnet18": [*BENCHMARK, "--model", "resnet18_v1", "--batch-size", "8", "--steps", "10"],
}
SHOWN = {
    "lenet": "LeNet by Module, batches of 32",
    "mobilenet0.25": "MobileNet 0.25 by Gluon, 0.5 million parameters, batches of 16",
    "resnet18": "ResNet-18 by Gluon, 11.7 million parameters, batches of 8",
}


def run(script: str, kvstore: str) -> Dict[str, float]:
    """Return the images/s that the script prints, by kvstore.

    :raises subprocess.SubprocessError: it fails, or takes too long.
    """
    rank = [sys.executable, *SCRIPTS[script], "--kvstore", kvstore]
    line = [sys.executable, "-m", "hvdlite.launch", "-n", str(RANKS), *OPTIONS[kvstore], *rank]
    done = subprocess.run(
        line, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=TIMEOUT,
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    printed = re.search(r"([\d,.]+) images/s", done.stdout)[1]
    return {kvstore: float(printed.replace(",", ""))}


def table(kept: Dict[str, List[Dict[str, float]]]) -> str:
    lines = []
    for script, runs in kept.items():
        servers, mpi = (median(one[kvstore] for one in runs) for kvstore in (SERVERS, MPI))
        ratios = sorted(one[MPI] / one[SERVERS] for one in runs)
        ratio = f"**{median(ratios):.2f}** ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append([SHOWN[script], str(len(runs)), f"{servers:,.0f}", f"{mpi:,.0f}", ratio])
    header = ["script", "runs", "`dist_sync`", "`dist_sync_mpi`", "ratio within a round"]
    title = f"Images/s on {RANKS} ranks of one host, medians of runs in turn; {RANKS} servers:"
    return f"{title}\n\n{markdown(header, lines)}\n"


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--only", choices=SCRIPTS, help="run this script alone")
    args = parser.parse_args()
    scripts = [args.only] if args.only else list(SCRIPTS)
    show(table(Kept("kvstore").add(scripts, [SERVERS, MPI], args.rounds, run)), args.page)


if __name__ == "__main__":
    main()

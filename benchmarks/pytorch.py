"""A step of PyTorch's: hvdlite beside DistributedDataParallel over Gloo, and beside lone processes.

    make bench-pytorch                                       two ranks, alternating, docs/pytorch.md
    .venv-frameworks/bin/python -m benchmarks.pytorch --rounds 1 --only mlp

An MLP of 2.1 million parameters (9 layers, 16 rows a rank) and a ResNet-18 on images of 32 x 32 (16
of them a rank). "Gloo, shared memory" is Gloo with LOCAL_WORLD_SIZE set; "alone" is as many
processes at once that tell each other nothing. A figure is the median over rounds of the slowest
rank's median step.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Callable, Dict

from benchmarks import plan
from benchmarks.libraries import free_port
from benchmarks.pages import parser_of, show

MODELS = {"mlp": 60, "resnet18": 8}  # steps that are measured
SYSTEMS: Dict[str, Dict[str, str]] = {
    "hvdlite": {},
    "hvdlite in DDP": {},
    "Gloo": {},
    "Gloo, shared memory": {"LOCAL_WORLD_SIZE": "{ranks}"},
    "alone": {},
}


# ---- on each rank ----


def mlp():
    """Return the model, and what makes a batch for it."""
    import torch
    from torch import nn

    layers = [nn.Linear(512, 512) for _ in range(8)]
    return nn.Sequential(*layers, nn.Linear(512, 10)), lambda: torch.randn(16, 512)


def resnet18():
    """The same, for small images; He et al., "Deep Residual Learning", 2015."""
    import torch
    from torch import nn

    def twice(inputs: int, outputs: int, stride: int):
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True), nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )  # fmt: skip

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            self.body, self.short = twice(inputs, outputs, stride), nn.Identity()
            if inputs != outputs:
                short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
                self.short = nn.Sequential(short, nn.BatchNorm2d(outputs))

        def forward(self, x):
            return torch.relu(self.body(x) + self.short(x))

    widths = [64, 64, 64, 128, 128, 256, 256, 512, 512]
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in zip(widths, widths[1:])]
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10)]
    return nn.Sequential(*stem, *blocks, *head), lambda: torch.randn(16, 3, 32, 32)


def distribute(system: str, model, optimizer, comm):
    """Return the model and the optimizer that average gradients over ranks."""
    import torch
    import torch.distributed as dist

    if system == "alone":
        return model, optimizer
    if system == "hvdlite":
        import hvdlite.torch as hvd

        hvd.init()
        return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())
    address = f"tcp://127.0.0.1:{free_port(comm)}"
    dist.init_process_group("gloo", init_method=address, rank=comm.rank, world_size=comm.size)
    model = torch.nn.parallel.DistributedDataParallel(model)
    if system == "hvdlite in DDP":
        import hvdlite.torch as hvd

        hvd.init()
        model.register_comm_hook(None, hvd.allreduce_hook)
    return model, optimizer


def measure(system: str, name: str) -> None:
    """Print the slowest rank's median step in ms, and a sum of weights that tells ranks apart."""
    import torch
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, batch = globals()[name]()
    plain = torch.optim.SGD(model.parameters(), 0.01)
    wrapped, optimizer = distribute(system, model, plain, comm)
    torch.manual_seed(comm.rank + 1)
    seconds = []
    for number in range(MODELS[name] + 3):
        comm.Barrier()
        start = time.perf_counter()
        optimizer.zero_grad()
        wrapped(batch()).square().mean().backward()
        optimizer.step()
        if number >= 3:
            seconds.append(time.perf_counter() - start)
    slowest = max(comm.allgather(statistics.median(seconds)))
    sums = comm.allgather(float(sum(p.detach().double().abs().sum() for p in model.parameters())))
    if comm.rank == 0:
        equal = "equal" if len(set(sums)) == 1 else "different"
        print(f"RESULT {slowest * 1e3:.3f} {equal}", flush=True)


# ---- beside each other ----


def run(system: str, name: str, ranks: int) -> float:
    """Return the ms of a step; weights that differ where they must not end the benchmark."""
    given = {key: value.format(ranks=ranks) for key, value in SYSTEMS[system].items()}
    settings = {**os.environ, **plan.SETTINGS, "GLOO_SOCKET_IFNAME": "lo", **given}
    mpirun = Path(sys.executable).with_name("mpirun")
    command = [mpirun, "-n", str(ranks), sys.executable, "-m", "benchmarks.pytorch"]
    done = subprocess.run(
        [*map(str, command), "--measure", system, "--only", name],
        cwd=plan.ROOT, env=settings, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    results = [line.split() for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not results:
        sys.exit(f"{system}, {name}: {done.stderr[-2000:]}")
    if (results[0][2] == "equal") == (system == "alone"):
        sys.exit(f"{system}, {name}: the ranks' weights are {results[0][2]}")
    return float(results[0][1])


def compare(name: str, ranks: int, rounds: int, say: Callable) -> Dict[str, float]:
    """Return the median of each system over rounds, in which everybody has a turn."""
    found = defaultdict(list)
    for _ in range(rounds):
        for system in SYSTEMS:
            found[system].append(run(system, name, ranks))
            say(f"{name}, {ranks} ranks, {system}: {found[system][-1]:.1f} ms")
    return {system: statistics.median(each) for system, each in found.items()}


def table(results: Dict[str, Dict[str, float]]) -> str:
    lines = [f"| ms a step | {' | '.join(SYSTEMS)} |", f"|---|{'---:|' * len(SYSTEMS)}"]
    for name, figures in results.items():
        lines.append(f"| {name} | {' | '.join(f'{figures[s]:.1f}' for s in SYSTEMS)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    args = parse_args()
    if args.measure:
        measure(args.measure, args.only)
        return
    names = [args.only] if args.only else list(MODELS)
    results = {name: compare(name, args.ranks, args.rounds, print) for name in names}
    show(table(results), args.page)


def parse_args() -> argparse.Namespace:
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--ranks", type=int, default=2, help="(%(default)s)")
    add("--rounds", type=int, default=5, help="(%(default)s)")
    add("--only", choices=MODELS, help="one model")
    add("--measure", choices=SYSTEMS, help=argparse.SUPPRESS)  # on a rank
    return parser.parse_args()


if __name__ == "__main__":
    main()

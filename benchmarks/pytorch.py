"""Measures PyTorch's training step: hvdlite, DistributedDataParallel over Gloo, lone processes.

    make bench-pytorch                                       two ranks, writes docs/pytorch.md
    .venv-frameworks/bin/python -m benchmarks.pytorch --rounds 1 --only mlp
    .venv-frameworks/bin/python -m benchmarks.pytorch --hosts 2 --rate 200mbit
    chrt -r 20 .venv-frameworks/bin/python -m benchmarks.pytorch --floor --page docs/backend.md

With --hosts, which needs root, there is one rank on each host that tests/cluster.py emulates. With
--floor, the table has the step of the small tensors over Gloo, over hvdlite's backend, and without
an exchange. Without an exchange each rank has a process group, or process set, of its own, so the
step is as long as if the exchange took no time.

The models are an MLP of 2.1 million parameters (9 layers, 16 rows per rank), a ResNet-18 on images
of 32 x 32 (16 images per rank), and 400 small tensors. "Gloo, shared memory" is Gloo with
LOCAL_WORLD_SIZE set. "alone" is the same number of processes without communication. Horovod, if
`make peers` could build it, looks for work every 0.1 ms.

The systems take turns in the same processes, one step each, so that other programs disturb all
equally. Horovod has its own environment, so its processes run after the others in each round. Each
run adds rounds to build/pytorch-RANKS.json; delete the file to start again. A figure is the median
over rounds of the slowest rank's median step; the minimum and maximum of a ratio follow in
brackets. "alone, the slower process" is the median over steps of the slower process's time. A step
that waits for both processes takes at least this time.
"""

import os
import socket
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

from benchmarks import harness, plan
from benchmarks.harness import Kept, markdown, of_rounds, parser_of, show
from benchmarks.libraries import join_gloo

MODELS = {"mlp": 60, "resnet18": 12, "small": 60}  # model -> number of measured steps
SYSTEMS = ("hvdlite", "hvdlite in DDP", "Gloo", "alone")
HOROVOD = "Horovod"
SHARED = "Gloo, shared memory"
SLOWER = "alone, the slower process"
WARM_UP = 5  # steps before the measured ones
STEPS_ON_HOSTS = 20
DDP = "DistributedDataParallel"
HOOKED = "the same, with the hook and `gradient_as_bucket_view=True`"
OPTIMIZER, NO_EXCHANGE = "`hvd.DistributedOptimizer`", "no exchange"
BACKENDS = {"Gloo": "gloo", "hvdlite": "hvdlite", NO_EXCHANGE: "hvdlite"}
WAYS = (DDP, HOOKED, OPTIMIZER)
# system of --floor -> row and column of the table
FLOOR = {f"{way}, {by}": (way, by) for way in WAYS for by in BACKENDS}
del FLOOR[f"{OPTIMIZER}, Gloo"]


# ---- on each rank ----


def mlp():
    """Return an MLP, and a function that returns a batch."""
    import torch
    from torch import nn

    layers = [nn.Linear(512, 512) for _ in range(8)]
    return nn.Sequential(*layers, nn.Linear(512, 10)), lambda: torch.randn(16, 512)


def small():
    """Return what :func:`mlp` returns, with 400 small tensors: most of a step is no allreduce."""
    import torch
    from torch import nn

    return nn.Sequential(*(nn.Linear(16, 16) for _ in range(200))), lambda: torch.randn(8, 16)


def resnet18():
    """Return what :func:`mlp` returns, for a ResNet-18 for small images (He et al., 2015)."""
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


def distribute(system: str, model):
    """Return the model and an optimizer that average gradients over ranks."""
    import torch

    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if system in FLOOR:
        return distribute_by(*FLOOR[system], model, optimizer)
    if system == HOROVOD:
        import horovod.torch as hvd
    else:
        import hvdlite.torch as hvd
    if system in (HOROVOD, "hvdlite"):
        return model, hvd.DistributedOptimizer(optimizer, model.named_parameters())
    if system != "alone":
        model = torch.nn.parallel.DistributedDataParallel(model)
    if system == "hvdlite in DDP":
        model.register_comm_hook(None, hvd.allreduce_hook)
    return model, optimizer


def distribute_by(way: str, by: str, model: Any, optimizer: Any) -> Tuple[Any, Any]:
    """Do what :func:`distribute` does, for a row and a column of the table of --floor."""
    import torch.distributed as dist
    from torch.distributed import BuiltinCommHookType
    from torch.nn.parallel import DistributedDataParallel

    import hvdlite.torch as hvd

    everyone = list(range(hvd.size()))
    groups = [[rank] for rank in everyone] if by == NO_EXCHANGE else [everyone]
    mine = hvd.rank() % len(groups)
    if way == OPTIMIZER:
        ranks = hvd.global_process_set
        if by == NO_EXCHANGE:
            ranks = [hvd.add_process_set(group) for group in groups][mine]
        named = model.named_parameters()
        return model, hvd.DistributedOptimizer(optimizer, named, process_set=ranks)
    model = DistributedDataParallel(
        model, process_group=[dist.new_group(g, backend=BACKENDS[by]) for g in groups][mine],
        gradient_as_bucket_view=way == HOOKED,
    )  # fmt: skip
    if way == HOOKED:
        model._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)
    return model, optimizer


def begin(systems: Sequence[str], comm) -> None:
    """Initialize each system."""
    if HOROVOD in systems:
        import horovod.torch as horovod

        horovod.init()
        return
    import hvdlite.torch as hvd

    hvd.init()
    join_gloo(comm, comm.bcast(_own_address()))


def seconds_of_step(model: Any, optimizer: Any, rows: Any) -> float:
    """Train one step on these rows; return its seconds."""
    start = time.perf_counter()
    optimizer.zero_grad()
    model(rows).square().mean().backward()
    optimizer.step()
    return time.perf_counter() - start


def measure(folder: str, name: str, steps: str, *systems: str) -> None:
    """Write each system's slowest median step in ms, and whether all ranks' weights are equal."""
    import torch
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    torch.set_num_threads(1)
    begin(systems, comm)
    contestants = {}
    for system in systems:
        torch.manual_seed(0)
        model, batch = globals()[name]()
        contestants[system] = distribute(system, model)
    torch.manual_seed(comm.rank + 1)
    seconds = {system: [] for system in systems}
    for number in range(int(steps) + WARM_UP):
        rows = batch()
        for system in harness.in_turn(systems, number):
            model, optimizer = contestants[system]
            comm.Barrier()
            seconds[system].append(seconds_of_step(model, optimizer, rows))
    found = []
    for system, (model, _) in contestants.items():
        of_ranks = comm.allgather(seconds[system][WARM_UP:])
        slowest = max(map(statistics.median, of_ranks))
        weights = [float(p.detach().double().abs().sum()) for p in model.parameters()]
        equal = len(set(map(tuple, comm.allgather(weights)))) == 1
        found.append([system, slowest * 1e3, equal])
        if system == "alone":
            found.append([SLOWER, statistics.median(map(max, zip(*of_ranks))) * 1e3, equal])
    harness.write(folder, comm.rank, found)


def _own_address() -> str:
    """Return the address at which the other ranks reach this host."""
    emulated = "CLUSTER_HOSTS" in os.environ
    return socket.gethostbyname(socket.gethostname()) if emulated else "127.0.0.1"


# ---- comparison ----


def has_horovod() -> bool:
    """Return True if the benchmarks' installation of Horovod supports PyTorch."""
    command = [str(plan.HOROVOD.python), "-c", "import horovod.torch"]
    return (
        plan.HOROVOD.python.exists()
        and not subprocess.run(command, stderr=subprocess.DEVNULL).returncode
    )


def run(name: str, start: Callable[[Path], List[str]], steps: int, settings: Dict[str, str],
        ours: Sequence[str] = SYSTEMS):  # fmt: skip
    """Return each system's step in ms; exit if the ranks' weights are wrong.

    :param start: takes the path of the ranks' Python; returns the command that starts the ranks.
    :param ours: the systems that this Python runs, all in the same processes.
    """
    groups = [(Path(sys.executable), ours, {})]
    if ours == SYSTEMS and has_horovod():
        groups.append((plan.HOROVOD.python, [HOROVOD], plan.HOROVOD_TUNED.environment))
    found: Dict[str, float] = {}
    for python, systems, own in groups:
        arguments = [name, str(steps), *systems]
        ranks = harness.results(
            start(python), "pytorch", arguments, 300, python, **settings, **own
        )  # fmt: skip
        for system, milliseconds, equal in next(ranks):
            if equal == (system in ("alone", SLOWER) or system.endswith(NO_EXCHANGE)):
                sys.exit(f"{system}, {name}: the ranks' weights are {'' if equal else 'not '}equal")
            found[system] = milliseconds
    return found


def run_here(ranks: int, name: str, shared: bool, **ours: Sequence[str]) -> Dict[str, Dict]:
    """Return the result of :func:`run` on this machine; the key says if LOCAL_WORLD_SIZE is set."""
    settings = {**plan.SETTINGS, "GLOO_SOCKET_IFNAME": "lo"}
    if shared:
        settings["LOCAL_WORLD_SIZE"] = str(ranks)
    found = run(name, lambda python: [str(python.with_name("mpirun")), "-n", str(ranks)],
                MODELS[name], settings, **ours)  # fmt: skip
    print(f"{name}, LOCAL_WORLD_SIZE {'' if shared else 'not '}set: {found}", flush=True)
    return {SHARED if shared else "Gloo": found}


def run_on_hosts(name: str, hosts: int, rate: str) -> Dict[str, List[float]]:
    """Return a round: :func:`run`'s times with one rank on each host, and ratios of the times."""
    settings = {**plan.SETTINGS, "GLOO_SOCKET_IFNAME": "eth0", "OMPI_MCA_mpi_yield_when_idle": "1"}
    start = harness.on_hosts(hosts, rate)
    found = run(name, lambda python: start, STEPS_ON_HOSTS, settings)
    if HOROVOD in found:
        found["Horovod / hvdlite"] = found[HOROVOD] / found["hvdlite"]
    found["Gloo / hvdlite"] = found["Gloo"] / found["hvdlite"]
    found["hvdlite / alone"] = found["hvdlite"] / found["alone"]
    return {title: [value] for title, value in found.items()}


def compare(rounds: List[Dict[str, Dict[str, float]]]) -> Dict[str, List[float]]:
    """Return the rounds' times of each system, and their ratios within a round."""
    plain, shared = ([each[kind] for each in rounds] for kind in ("Gloo", SHARED))
    both = plain + shared
    found = {system: [run[system] for run in both] for system in plain[0]}
    found["Gloo"], found[SHARED] = ([run["Gloo"] for run in runs] for runs in (plain, shared))
    for title, runs in (("Gloo / hvdlite", plain), (f"{SHARED} / hvdlite", shared)):
        found[title] = [run["Gloo"] / run["hvdlite"] for run in runs]
    if HOROVOD in found:
        found["Horovod / hvdlite"] = [run[HOROVOD] / run["hvdlite"] for run in both]
    for lone in (SLOWER, "alone"):
        found[f"hvdlite / {lone}"] = [run["hvdlite"] / run[lone] for run in both]
    return found


def table(results: Dict[str, Dict[str, List[float]]]) -> str:
    def text(title: str, values: List[float]) -> str:
        return of_rounds(values) if "/" in title else f"{statistics.median(values):.1f} ms"

    titles = next(iter(results.values()))
    lines = [
        [title, *(text(title, found[title]) for found in results.values())] for title in titles
    ]
    return markdown(["", *results], lines) + "\n"


def floor_table(rounds: List[Dict[str, float]]) -> str:
    alone = statistics.median(each["alone"] for each in rounds)
    lines = []
    for way in WAYS:
        keys = [f"{way}, {by}" for by in BACKENDS]
        ratios = [[each[key] / each["alone"] for each in rounds if key in each] for key in keys]
        lines.append([way, *map(of_rounds, ratios)])
    header = f"a step, divided by a step of ranks that train alone ({alone:.0f} ms)"
    return markdown([header, *BACKENDS], lines)


def main() -> None:
    parser = parser_of(__doc__, rounds=3, rate=plan.RATE)
    add = parser.add_argument
    add("--ranks", type=int, default=2, help="(%(default)s)")
    add("--only", choices=MODELS, help="measure only this model")
    add("--hosts", type=int, help="emulate this number of hosts, with one rank each (model mlp)")
    add("--floor", action="store_true", help="measure small tensors with and without an exchange")
    add("--rank", nargs="+", metavar=("FOLDER", "MODEL STEPS SYSTEM"))
    args = parser.parse_args()
    if args.rank:
        return measure(*args.rank)
    if args.floor:
        run_once = partial(run_here, args.ranks, ours=("alone", *FLOOR))
        rounds = Kept("pytorch-floor").add(["small"], [False], args.rounds, run_once)["small"]
        return show(floor_table([each["Gloo"] for each in rounds]), args.page, "steps")
    if args.hosts:
        name = args.only or "mlp"
        results = {name: run_on_hosts(name, args.hosts, args.rate)}
    else:
        names = [args.only] if args.only else list(MODELS)
        kept = Kept(f"pytorch-{args.ranks}")
        found = kept.add(names, [False, True], args.rounds, partial(run_here, args.ranks))
        results = {name: compare(found[name]) for name in names}
    show(table(results), args.page)


if __name__ == "__main__":
    main()

"""Measures a training step of two ranks, and its floor: everything except the exchange.

    chrt -r 20 .venv-frameworks/bin/python -m benchmarks.steps --page docs/backend.md

Each way of training has its own copy of a model with 400 small tensors, and all ways take turns in
the same processes. Without an exchange, each rank is in a process group, or process set, of its
own. Then DistributedDataParallel and DistributedOptimizer do everything else, and show how long a
step would be if the exchange took no time. Each round has new processes. The slower rank's median
is divided by that of ranks that train alone; a figure is the median over rounds.
"""

import argparse
import statistics
import sys
from typing import Any, Dict, List, Tuple

from benchmarks import harness
from benchmarks.pytorch import seconds_of_step, small

ALONE, NO_EXCHANGE = "alone", "no exchange"
DDP = "DistributedDataParallel"
HOOKED = "the same, with the hook and `gradient_as_bucket_view=True`"
OPTIMIZER = "`hvd.DistributedOptimizer`"
BACKENDS = {"Gloo": "gloo", "hvdlite": "hvdlite", NO_EXCHANGE: "hvdlite"}
WARM_UP, STEPS = 10, 100


# ---- on each rank ----


def trainer(way: str, group: Any, ranks: Any) -> Tuple[Any, Any]:
    """Return a model and its optimizer.

    :param group: DistributedDataParallel's process group.
    :param ranks: DistributedOptimizer's process set.
    """
    import torch
    from torch.distributed import BuiltinCommHookType

    import hvdlite.torch as hvd

    torch.manual_seed(0)
    model, _ = small()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if way == OPTIMIZER:
        named = model.named_parameters()
        return model, hvd.DistributedOptimizer(optimizer, named, process_set=ranks)
    if way in (DDP, HOOKED):
        model = torch.nn.parallel.DistributedDataParallel(
            model, process_group=group, gradient_as_bucket_view=way == HOOKED
        )
    if way == HOOKED:
        model._register_builtin_comm_hook(BuiltinCommHookType.ALLREDUCE)
    return model, optimizer


def trainers() -> List[Tuple[str, str, Any, Any]]:
    """Return all ways of training: way, by whom, model and optimizer."""
    import torch.distributed as dist

    import hvdlite.torch as hvd

    hvd.init()
    everyone = range(hvd.size())
    one = [hvd.add_process_set([rank]) for rank in everyone][hvd.rank()]
    alone = [dist.new_group([rank]) for rank in everyone][hvd.rank()]
    found = [(ALONE, "", *trainer(ALONE, None, None))]
    for by, backend in BACKENDS.items():
        group = alone if by == NO_EXCHANGE else dist.new_group(backend=backend)
        ranks = one if by == NO_EXCHANGE else hvd.global_process_set
        ways = [DDP, HOOKED] if by == "Gloo" else [DDP, HOOKED, OPTIMIZER]
        found += [(way, by, *trainer(way, group, ranks)) for way in ways]
    return found


def measure(folder: str) -> None:
    """Write this rank's median milliseconds of a step for each way of training."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("hvdlite")
    training = trainers()
    seconds: List[List[float]] = [[] for _ in training]
    _, batch = small()
    for number in range(WARM_UP + STEPS):
        rows = batch()
        for i in harness.in_turn(range(len(training)), number):
            *_, model, optimizer = training[i]
            dist.barrier()
            seconds[i].append(seconds_of_step(model, optimizer, rows))
    medians = [statistics.median(each[WARM_UP:]) * 1e3 for each in seconds]
    names = [(way, by) for way, by, *_ in training]
    harness.write(folder, dist.get_rank(), list(zip(names, medians)))
    dist.barrier()
    dist.destroy_process_group()


# ---- comparison ----


def run() -> Dict[Tuple[str, str], float]:
    """Return the slower rank's milliseconds for each way of training."""
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    here = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ranks = harness.results([*start, "--nproc-per-node", "2"], "steps", [], 300, **here)
    return {tuple(mine[0][0]): max(each[1] for each in mine) for mine in zip(*ranks)}


def main() -> None:
    args = parse_args()
    if args.rank:
        measure(args.rank)
        return
    rounds: List[Dict[Tuple[str, str], float]] = []
    for _ in range(args.rounds):
        rounds.append(run())
        print(rounds[-1], flush=True)
    alone = statistics.median(each[ALONE, ""] for each in rounds)
    lines = []
    for way in DDP, HOOKED, OPTIMIZER:
        keys = [(way, by) for by in BACKENDS]
        known = [[each[key] / each[ALONE, ""] for each in rounds if key in each] for key in keys]
        lines.append([way, *(f"{statistics.median(one):.2f}" if one else "" for one in known)])
    header = f"a step, divided by a step of ranks that train alone ({alone:.0f} ms)"
    table = harness.markdown([header, *BACKENDS], lines)
    print(table)
    if args.page:
        harness.put(args.page, {"steps": table})


def parse_args() -> argparse.Namespace:
    parser = harness.parser_of(__doc__, rounds=5)
    # The program starts itself on each rank with the following option.
    parser.add_argument("--rank", metavar="FOLDER", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()

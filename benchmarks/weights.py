"""Measures sending weights from one rank to all, as in reinforcement learning: hvdlite and Gloo.

    .venv-frameworks/bin/python -m benchmarks.weights                two ranks of this host
    .venv-frameworks/bin/python -m benchmarks.weights --hosts 4      as root: a rank a host

A model of tensors of 16 MiB is broadcast in place. Rank 0 scatters and gathers tensors of 16 MiB,
one for each rank: once as a list of separate tensors, once as parts of one tensor. A figure is the
median over the turns.
"""

import statistics
import sys
import time
from typing import Dict, List

from benchmarks import harness

EACH = 16  # MiB in each tensor
SYSTEMS = ("gloo", "hvdlite")


def measure(folder: str, mebibytes: int, turns: int) -> None:
    """Write how many seconds each call takes until all ranks have the data."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("hvdlite")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    groups = {"hvdlite": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    model = [torch.full((EACH << 18,), float(rank == 0)) for _ in range(mebibytes // EACH)]
    lists = {
        "a list": [torch.ones(EACH << 18) for _ in range(ranks)],
        "parts of one tensor": list(torch.ones(ranks * (EACH << 18)).chunk(ranks)),
    }
    one = torch.zeros(EACH << 18)

    def broadcast(group) -> None:
        works = [dist.broadcast(t, 0, group=group, async_op=True) for t in model]
        for work in works:
            work.wait()

    cases = {f"broadcast, {mebibytes} MiB": broadcast}
    for name, parts in lists.items():
        own = parts if rank == 0 else None
        cases[f"scatter, {name}"] = lambda group, own=own: dist.scatter(one, own, 0, group=group)
        cases[f"gather, {name}"] = lambda group, own=own: dist.gather(one, own, 0, group=group)
    found: Dict[str, Dict[str, List[float]]] = {}
    for name, call in cases.items():
        times = found[name] = {system: [] for system in SYSTEMS}
        for number in range(turns + 1):
            for system in harness.in_turn(SYSTEMS, number):
                dist.barrier()
                start = time.perf_counter()
                call(groups[system])
                dist.barrier()
                times[system].append(time.perf_counter() - start)
    assert all(bool((t == 1).all()) for t in model), "the ranks' weights differ from rank 0's"
    harness.write(folder, rank, found)
    dist.destroy_process_group()


def main() -> None:
    parser = harness.parser_of(__doc__, rate=harness.UNLIMITED)
    add = parser.add_argument
    add("--ranks", type=int, default=2, help="(%(default)s)")
    add("--hosts", type=int, help="emulate this number of hosts, with one rank each")
    add("--mebibytes", type=int, default=1024, help="size of the model (%(default)s)")
    add("--turns", type=int, default=3, help="number of measurements (%(default)s)")
    add("--rank", nargs=3, metavar=("FOLDER", "MEBIBYTES", "TURNS"))
    args = parser.parse_args()
    if args.rank:
        return measure(args.rank[0], *map(int, args.rank[1:]))
    start, interface = [sys.executable, "-m", "torch.distributed.run", "--standalone"], "lo"
    start += ["--no-python", "--nproc-per-node", str(args.ranks)]
    if args.hosts:
        start, interface = harness.on_hosts(args.hosts, args.rate), "eth0"
    arguments = [str(args.mebibytes), str(args.turns)]
    here = {"GLOO_SOCKET_IFNAME": interface, "OMP_NUM_THREADS": "1"}
    found = next(harness.results(start, "weights", arguments, 300, **here))
    lines = []
    for name, times in found.items():
        gloo, ours = (statistics.median(times[system][1:]) * 1e3 for system in SYSTEMS)
        ratios = [a / b for a, b in zip(*(times[each][1:] for each in SYSTEMS))]
        lines.append([name, f"{gloo:.1f}", f"{ours:.1f}", harness.of_rounds(ratios)])
    harness.show(harness.markdown(["ms", *SYSTEMS, "gloo / hvdlite"], lines), args.page)


if __name__ == "__main__":
    main()

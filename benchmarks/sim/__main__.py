"""Simulates a cluster: how long hvdlite's core takes, and how much its ranks send.

    python -m benchmarks.sim --hosts 8 --rate 10gbit --bytes 40000000
    python -m benchmarks.sim --hosts 64 --ranks 8 --topology tree:2 --model resnet50 --compute 180
    python -m benchmarks.sim --hosts 64 --rate 25gbit --parameters 86.6M/152 --compute 120
    python -m benchmarks.sim --hosts 32 --bytes 1000000 --algorithm ring
    python -m benchmarks.sim --hosts 4 --model vgg16 --compute 200 --timeline trace.json

Needs SimGrid (apt-get install libsimgrid-dev). With --bytes, all ranks submit one float32 array at
the same time; with --model or --parameters, a step's gradients. --compute is a step's time on one
rank without communication: forward waits for each layer's weights, backward submits each gradient
when it is computed. The timeline is rank 0's; hvdlite-report draws it. Simulated hosts run only the
job. Options set the CPU time that a message and a byte take.
"""

import argparse
import re
import statistics
import sys
from typing import Any, Dict

from benchmarks import sim
from benchmarks.harness import bits_a_second
from benchmarks.sim import models


def topology(text: str) -> str:
    if not re.fullmatch(r"star|torus|tree:[\d.]+", text):
        raise argparse.ArgumentTypeError(f"'{text}': expected star, torus or tree:N, as in tree:2")
    return text


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sim", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    add = parser.add_argument
    add("--hosts", type=int, default=8, help="number of hosts (8)")
    add("--ranks", type=int, default=1, help="ranks on each host (1)")
    add("--rate", type=bits_a_second, default=10e9, help="rate of each host's link (10gbit)")
    add("--latency", type=float, default=20, help="microseconds that a message travels (20)")
    add("--message", type=float, default=3, help="CPU us per message, on each side (3)")
    add("--byte", type=float, default=0.1, help="CPU ns per byte, on each side (0.1)")
    add("--topology", type=topology, default="star", help="star, tree:N oversubscribed, torus")
    add("--rack", type=int, default=16, help="hosts in a rack of a tree (16)")
    add("--bytes", type=int, default=40_000_000, help="size of one array (40000000)")
    add("--model", choices=models.MODELS, help="submit the gradients of this model instead")
    add("--parameters", help="submit gradients: 25.6M/161 (tensors), or a file with a size a line")
    add("--compute", type=float, default=0, help="compute time of a step of the model, ms (0)")
    add("--servers", type=int, default=0, help="simulate a parameter server with N servers instead")
    add("--apart", action="store_true", help="give the servers their own hosts")
    add("--order", choices=["priority", "fifo"], default="priority", help="(priority)")
    add("--algorithm", choices=sim.ALGORITHMS, help="default: the algorithm that hvdlite chooses")
    add("--steps", type=int, default=3, help="measured steps, after two others (3)")
    add("--slow", type=float, default=1, help="factor by which host 1 computes longer (1)")
    add("--timeline", metavar="FILE", help="write a timeline of rank 0's tensors to this file")
    return parser.parse_args()


def place_of(args: argparse.Namespace) -> sim.Place:
    costs = sim.Costs(args.latency * 1e-6, args.message * 1e-6, args.byte * 1e-9)
    return sim.Place(
        args.hosts, args.ranks, args.rate, args.topology, args.rack, costs=costs,
        servers=args.servers, apart=args.apart,
    )  # fmt: skip


def tensors_of(args: argparse.Namespace) -> sim.Tensors:
    if args.parameters:
        return models.own(args.parameters)
    return models.tensors(args.model) if args.model else [(max(1, args.bytes // 4), 1.0)]


def settings_of(args: argparse.Namespace) -> Dict[str, Any]:
    given: Dict[str, Any] = {"warm": 2, "steps": 2 + args.steps, "fifo": int(args.order == "fifo")}
    if args.compute:
        given.update(compute=args.compute / 1e3, meet=0, steps=3 + args.steps)
    if args.slow != 1:
        given.update(slow_host=1, slow=args.slow)
    if args.timeline:
        given["timeline"] = args.timeline
    return given


def show(args: argparse.Namespace, size: int, found: Dict[str, Any]) -> None:
    seconds, bound = statistics.median(found["steps"]), place_of(args).bound(size)
    over = (
        f", {seconds / bound:.2f} of the bound of the links, {1e3 * bound:.2f} ms" if bound else ""
    )
    by = f", {args.servers} servers" if args.servers else ""
    print(f"{args.hosts} hosts x {args.ranks}{by}, {size:,} bytes: {1e3 * seconds:.2f} ms{over}")
    if args.compute:
        print(f"compute {args.compute:.1f} ms, efficiency {args.compute / 1e3 / seconds:.1%}")
    if args.servers:
        return
    print(f"a message costs {found['alpha'] * 1e6:.0f} us, a byte {found['beta'] * 1e9:.3f} ns, as "
          f"the ranks have measured; {found['choices']}")  # fmt: skip
    names = ["bytes sent", "messages sent", "negotiation's sent", "negotiation's received"]
    for name, column in zip(names, zip(*found["ranks"])):
        print(f"{name + ', a step':28} rank 0 {column[0]:,.1f}, mean "
              f"{statistics.mean(column):,.1f}, most {max(column):,.1f}")  # fmt: skip


def main() -> None:
    args = parse()
    if args.servers and (args.ranks > 1 or args.servers > args.hosts and not args.apart):
        sys.exit("sim: --servers needs --ranks 1, and --apart if there are more servers than hosts")
    lacks = sim.missing()
    if lacks:
        sys.exit(f"sim: {lacks}")
    try:
        tensors = tensors_of(args)
        found = sim.run(place_of(args), tensors, 3600, args.algorithm, **settings_of(args))
    except (sim.Failed, OSError, ValueError) as error:
        sys.exit(f"sim: {error}")
    show(args, 4 * sum(elements for elements, _ in tensors), found)


if __name__ == "__main__":
    main()

"""Compares the algorithm that hvdlite chooses with the other algorithms, in simulated clusters.

    python -m benchmarks.sim.choices
    python -m benchmarks.sim.choices --hosts 64 256 --rates 10gbit --sizes 1000000

Prints each case in which another algorithm takes less time, and the number of cases in which the
choice is within 5 % of the best.
"""

import argparse
import itertools
import sys
from typing import Dict, Iterator, Tuple

from benchmarks import sim
from benchmarks.harness import bits_a_second, markdown

HOSTS = [2, 4, 8, 16, 32, 64, 128, 256]
RATES = ["10gbit", "25gbit", "100gbit"]
SIZES = [16_000, 64_000, 256_000, 1_000_000, 4_000_000, 16_000_000]
NEAR = 1.05  # choices that take at most this many times the best time are treated as equal


def places(args: argparse.Namespace) -> Iterator[sim.Place]:
    """Yield a star and, for several racks, a tree whose uplinks have half the rate."""
    for hosts, rate in itertools.product(args.hosts, args.rates):
        yield sim.Place(hosts, rate=bits_a_second(rate))
        if hosts > 16:
            yield sim.Place(hosts, rate=bits_a_second(rate), topology="tree:2")


def compared(place: sim.Place, size: int) -> Tuple[Dict[str, float], str]:
    """Return each algorithm's seconds, and the name of the algorithm that hvdlite chooses."""
    found = {each: sim.run(place, [(size // 4, 1.0)], 3600, each, warm=1, steps=2)
             for each in sim.ALGORITHMS if possible(each, place, size)}  # fmt: skip
    chosen = sim.ALGORITHMS[found["ring"]["chosen"]]
    return {each: ran["steps"][0] for each, ran in found.items()}, chosen


def possible(algorithm: str, place: sim.Place, size: int) -> bool:
    """Return False for recursive doubling of large arrays: it is slow, and so is its simulation."""
    return algorithm != "doubling" or place.hosts < 8 or size <= 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sim.choices", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--hosts", type=int, nargs="+", default=HOSTS)
    parser.add_argument("--rates", nargs="+", default=RATES)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    args = parser.parse_args()
    lacks = sim.missing()
    if lacks:
        sys.exit(f"sim: {lacks}")
    rows, ratios = [], []
    for place, size in itertools.product(places(args), args.sizes):
        times, chosen = compared(place, size)
        best = min(times, key=lambda each: times[each])
        ratios.append(times[chosen] / times[best])
        if ratios[-1] > 1.001:
            where = f"{place.hosts} hosts, {place.rate / 1e9:.0f} Gbit/s, {place.topology}"
            rows.append([where, f"{size:,}", best, f"{1e3 * times[best]:.3f}", f"{ratios[-1]:.2f}"])
            print(*rows[-1], file=sys.stderr, flush=True)
    print(markdown(["cluster", "bytes", "best", "its ms", "chosen / best"], rows, texts=3))
    near = sum(ratio <= NEAR for ratio in ratios)
    print(f"{near} of {len(ratios)} cases within 5 % of the best, {max(ratios):.2f} at worst")


if __name__ == "__main__":
    main()

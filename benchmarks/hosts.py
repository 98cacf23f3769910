"""Measures allreduces between hosts: hvdlite, Horovod, MPI_Allreduce, MXNet's parameter server.

    python -m benchmarks.hosts                        two rounds, about 20 minutes
    python -m benchmarks.hosts --layout 2x1 --layout 4x2 --only hvdlite --only horovod --rounds 1
    python -m benchmarks.hosts --rounds 0 --page docs/hosts.md
                                                      the table of all rounds, into the page

The arrays are float32. tests/cluster.py emulates the hosts by network namespaces, which needs root,
iproute2 and OpenSSH. A round runs each library once on each layout (hosts x ranks); every other
round runs them in reverse order. hvdlite and MPI_Allreduce take turns, call by call, in the same
processes. The parameter server has a server on each host. Each run adds its rounds to
build/hosts-RATE.json; delete the file to start again.

A time is the median over calls of the slowest rank's time. The bound is the time that the links
need: each host must send 2(h-1)/h of the bytes, and 95.6 % of a link's bytes are data, not headers
of Ethernet, IP and TCP. A late rank sleeps before it submits 4 KB. Its time counts from its
submission on.
"""

import statistics
import sys
from functools import partial
from pathlib import Path
from typing import Dict, List, Optional

from benchmarks import harness, hosts_rank, plan
from benchmarks.harness import Kept, bytes_a_second, markdown, parser_of, show

TIMEOUT = 240  # seconds that one run may take
LAYOUTS = ["2x1", "4x1", "4x2", "8x1"]
SIZES = [4096, 64 * 1024, 1_000_000, 40_000_000]
OURS = "hvdlite"
SHOWN = [OURS, "hvdlite, tcp", "Horovod", "MPI_Allreduce", "parameter server"]
# per call: the slowest rank's seconds, the most bytes sent by a host, CPU seconds of all cores
Calls = List[Dict[str, float]]


class Layout:
    """The number of hosts and of ranks on each host, such as 4x2."""

    def __init__(self, text: str, rate: str) -> None:
        self.hosts, self.ranks = map(int, text.split("x"))
        self.rate = rate

    def optimum(self, size: int) -> float:
        """Return how many bytes each host must send at least in an allreduce of ``size`` bytes."""
        return 2 * (self.hosts - 1) / self.hosts * size

    def bound(self, size: int) -> Optional[float]:
        rate = bytes_a_second(self.rate)
        return rate and self.optimum(size) / rate


# ---- measuring ----


def run(rate: str, sizes: List[int], text: str, library: str) -> Dict[str, Dict]:
    """Emulate the hosts of a layout, run the ranks on them, and return :func:`joined` results."""
    layout, python = Layout(text, rate), plan.HOROVOD.python
    start = harness.on_hosts(layout.hosts, rate, layout.ranks)
    ranks = harness.results(
        [*start, *(["-s", str(layout.hosts)] if library == "ps" else [])],
        "hosts_rank", [library, *map(str, sizes)], TIMEOUT,
        python=python if library == "horovod" else Path(sys.executable),
        OMPI_MCA_mpi_yield_when_idle="1",  # the emulated hosts share this machine's cores
    )  # fmt: skip
    return joined(list(ranks))


def of_all(ranks: List[Calls]) -> Calls:
    """Return one row per call, with the worst values of all ranks."""
    worst = ("seconds", "sent")
    return [
        {**call[0], **{key: max(each[key] for each in call) for key in worst}}
        for call in zip(*ranks)
    ]


def joined(ranks: List[Dict]) -> Dict[str, Dict]:
    """Return, for each contestant, the calls of each size, and the late rank's seconds."""
    found: Dict[str, Dict] = {}
    for name, late in ranks[-1]["late"].items():
        sizes = ranks[0]["sizes"]
        calls = {size: of_all([rank["sizes"][size][name] for rank in ranks]) for size in sizes}
        found[name] = {"sizes": calls, "late": late}
    return found


# ---- the table ----


class Found:
    """The results for one layout and one rate of the links."""

    def __init__(self, text: str, rate: str, runs: List[Dict]) -> None:
        self.text, self.layout, self.runs = text, Layout(text, rate), runs

    def calls(self, name: str, size: int) -> Calls:
        of_size = [one[name]["sizes"].get(str(size), []) for one in self.runs if name in one]
        return sum(of_size, [])

    def median(self, name: str, size: int, key: str = "seconds") -> Optional[float]:
        calls = self.calls(name, size)
        return statistics.median(call[key] for call in calls) if calls else None

    def mean(self, name: str, size: int, key: str) -> Optional[float]:
        calls = self.calls(name, size)
        return statistics.mean(call[key] for call in calls) if calls else None

    def late(self, name: str) -> Optional[float]:
        taken: List[float] = sum((one[name]["late"] for one in self.runs if name in one), [])
        return statistics.median(taken) if taken else None

    def over(self, name: str, size: int) -> Optional[float]:
        seconds, bound = self.median(name, size), self.layout.bound(size)
        return seconds / bound if seconds and bound else None

    def sent(self, name: str, size: int) -> Optional[float]:
        sent = self.mean(name, size, "sent")
        return sent and sent / self.layout.optimum(size)

    def cpu(self, name: str, size: int) -> Optional[float]:
        """Return the CPU seconds of all cores per GB of all ranks' arrays."""
        busy = self.mean(name, size, "busy")
        return busy and busy / (self.layout.hosts * self.layout.ranks * size / 1e9)


def number(value: Optional[float], digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def milliseconds(value: Optional[float]) -> str:
    return number(value and 1e3 * value, 2 if value and value < 0.1 else 0)


def times(found: List[Found], sizes: List[int]) -> str:
    lines = []
    for one in found:
        for size in sizes:
            cells = []
            for name in SHOWN:
                over, text = one.over(name, size), milliseconds(one.median(name, size))
                cells.append(f"{text} ({over:.2f})" if over else text)
            lines.append([one.text, f"{size:,}", *cells])
        late = f"{hosts_rank.LATE_BYTES:,}, a rank {1e3 * hosts_rank.LATE:.0f} ms late"
        lines.append([one.text, late, *(milliseconds(one.late(name)) for name in SHOWN)])
    return markdown(["hosts x ranks", "bytes", *SHOWN], lines, texts=2)


def costs(found: List[Found], size: int) -> str:
    lines = []
    for one in found:
        sent = [number(one.sent(name, size)) for name in SHOWN]
        cpu = [number(one.cpu(name, size), 1) for name in SHOWN]
        lines.append([one.text, "bytes sent by a host, over the least", *sent])
        lines.append([one.text, "CPU seconds a GB", *cpu])
    return markdown(["hosts x ranks", "", *SHOWN], lines, texts=2)


def table(kept: Dict[str, Dict[str, List[Dict]]], sizes: List[int]) -> str:
    """Return tables of times and costs, two for each rate of the links."""
    parts: List[str] = []
    for rate, layouts in kept.items():
        found = [Found(text, rate, runs) for text, runs in layouts.items()]
        limited = f"Milliseconds on links of {rate}, in parentheses the time over the bound:"
        parts += [limited if bytes_a_second(rate) else "Milliseconds on links without a limit:"]
        parts += [times(found, sizes), f"Bytes and CPU time of the calls of {max(sizes):,} bytes:"]
        parts += [costs(found, max(sizes))]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = parser_of(__doc__, rounds=2, rate=plan.RATE)
    add = parser.add_argument
    add("--layout", dest="layouts", action="append", help="HxR: H hosts with R ranks; repeatable")
    add("--bytes", dest="sizes", type=int, action="append", help="size of an array; repeatable")
    add("--only", dest="libraries", choices=hosts_rank.LIBRARIES, action="append",
        help="measure only this library; repeatable")  # fmt: skip
    args = parser.parse_args()
    sizes = args.sizes or SIZES
    found = {}
    for file in sorted(harness.BUILD.glob("hosts-*.json")):
        found[file.stem[6:]] = Kept(file.stem).found
    found[args.rate] = Kept(f"hosts-{args.rate}").add(
        args.layouts or LAYOUTS, args.libraries or list(hosts_rank.LIBRARIES), args.rounds,
        partial(run, args.rate, sizes),
    )  # fmt: skip
    show(table(found, sizes), args.page)


if __name__ == "__main__":
    main()

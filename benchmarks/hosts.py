"""Allreduce between hosts: hvdlite beside Horovod, MPI_Allreduce and MXNet's parameter server.

    python -m benchmarks.hosts                        two rounds, about 15 minutes
    python -m benchmarks.hosts --layout 2x1 --layout 4x2 --only hvdlite --only horovod --rounds 1
    python -m benchmarks.hosts --rounds 0 --page docs/hosts.md
                                                      the table of all rounds, into the page

Float32 arrays, on hosts that tests/cluster.py makes of namespaces: as root, with iproute2 and
OpenSSH. A round runs each library once on each layout, hosts x ranks; the next one begins with the
last. hvdlite and MPI_Allreduce take turns in the same processes, a call each. The parameter server
has a server on each host. What a run finds is kept in build/hosts.json; rounds add up until the
file is deleted.

A time is the median of the slowest rank's. The bound is that of the links: a host has to send
2(h-1)/h of the bytes, and of what a link carries, 95.6 % are not headers of Ethernet, IP and TCP. A
late rank naps before it submits 4 KB; its own time counts from its submission on.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Optional

from tqdm import tqdm

from benchmarks import hosts_rank, plan
from benchmarks.pages import parser_of, show

KEPT = plan.ROOT / "build" / "hosts.json"
PICTURE = "benchmarks/hosts.png"  # beside the page
PAYLOAD = 0.956  # of a link's bytes: 1,448 of the 1,514 of a frame with TCP's time stamps
TIMEOUT = 240  # seconds, of one run
LAYOUTS = ["2x1", "4x1", "4x2", "8x1"]
SIZES = [64 * 1024, 1_000_000, 40_000_000]
OURS = "hvdlite"
SHOWN = [OURS, "Horovod", "MPI_Allreduce", "parameter server"]
Calls = List[Dict[str, float]]  # of each: seconds of the slowest rank, most bytes sent, busy cores


class Layout:
    """Hosts and the ranks on each, as 4x2."""

    def __init__(self, text: str, rate: str) -> None:
        self.hosts, self.ranks = map(int, text.split("x"))
        self.rate = rate

    def optimum(self, size: int) -> float:
        """Return the bytes that a host has to send."""
        return 2 * (self.hosts - 1) / self.hosts * size

    def bound(self, size: int) -> Optional[float]:
        rate = bytes_a_second(self.rate)
        return rate and self.optimum(size) / rate


def bytes_a_second(rate: str) -> Optional[float]:
    """Return what a link of a rate like 200mbit carries of data; None: nothing limits it.

    :raises SystemExit: it is no such rate.
    """
    if rate == plan.UNLIMITED:
        return None
    match = re.fullmatch(r"(\d+)(mbit|gbit)", rate)
    if not match:
        sys.exit(f"--rate {rate}: expected a whole number and mbit or gbit, or {plan.UNLIMITED}")
    return int(match[1]) * {"mbit": 1e6, "gbit": 1e9}[match[2]] / 8 * PAYLOAD


# ---- measuring ----


def run(layout: Layout, library: str, sizes: List[int]) -> List[Dict]:
    """Make the hosts, run the ranks on them, and return what each rank has measured.

    :raises SystemExit: they have failed.
    """
    peers = plan.HOROVOD.python if library == "horovod" else sys.executable
    servers = ["-s", str(layout.hosts)] if library == "ps" else []
    with tempfile.TemporaryDirectory() as folder:
        rank = [str(peers), "-m", "benchmarks.hosts_rank", folder, library, *map(str, sizes)]
        done = subprocess.run(
            [*plan.on_hosts(layout.hosts, layout.rate, layout.ranks), *servers, *rank],
            cwd=plan.ROOT, timeout=TIMEOUT,
            env={**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1"},  # the hosts share the cores
        )  # fmt: skip
        if done.returncode:
            sys.exit(f"{library}: no results: exit status {done.returncode}")
        return [json.loads(file.read_text()) for file in sorted(Path(folder).iterdir())]


def of_all(ranks: List[Calls]) -> Calls:
    """Join the rows of the ranks, call by call."""
    worst = ("seconds", "sent")
    return [
        {**call[0], **{key: max(each[key] for each in call) for key in worst}}
        for call in zip(*ranks)
    ]


def joined(ranks: List[Dict]) -> Dict[str, Dict]:
    """Return what was found, by contestant: the calls of each size, and those of the late rank."""
    found: Dict[str, Dict] = {}
    for name, late in ranks[-1]["late"].items():
        sizes = ranks[0]["sizes"]
        calls = {size: of_all([rank["sizes"][size][name] for rank in ranks]) for size in sizes}
        found[name] = {"sizes": calls, "late": late}
    return found


def measure(layouts: List[str], args: argparse.Namespace) -> None:
    """Add so many rounds to what is kept."""
    kept = read()
    for _ in tqdm(range(args.rounds), unit="round", disable=None):
        for text in layouts:
            runs = kept.setdefault(args.rate, {}).setdefault(text, [])
            backwards = len(runs) // len(args.libraries) % 2 == 1
            for library in args.libraries[:: -1 if backwards else 1]:
                runs.append(joined(run(Layout(text, args.rate), library, args.sizes)))
                KEPT.parent.mkdir(exist_ok=True)
                KEPT.write_text(json.dumps(kept))


def read() -> Dict[str, Dict[str, List[Dict]]]:
    """Return what is kept: by rate and layout, a list of what runs have found."""
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


# ---- the table ----


class Found:
    """What is known of a layout."""

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
        """Seconds of the cores a GB of all ranks' arrays."""
        busy = self.mean(name, size, "busy")
        return busy and busy / (self.layout.hosts * self.layout.ranks * size / 1e9)


def row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def number(value: Optional[float], digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def milliseconds(value: Optional[float]) -> str:
    return number(value and 1e3 * value, 2 if value and value < 0.1 else 0)


def header(*left: str) -> List[str]:
    return [row(*left, *SHOWN), row(*["---"] * len(left), *["--:"] * len(SHOWN))]


def times(found: List[Found], sizes: List[int]) -> List[str]:
    lines = header("hosts x ranks", "bytes")
    for one in found:
        for size in sizes:
            cells = []
            for name in SHOWN:
                over, text = one.over(name, size), milliseconds(one.median(name, size))
                cells.append(f"{text} ({over:.2f})" if over else text)
            lines.append(row(one.text, f"{size:,}", *cells))
        late = f"{hosts_rank.LATE_BYTES:,}, a rank {1e3 * hosts_rank.LATE:.0f} ms late"
        lines.append(row(one.text, late, *(milliseconds(one.late(name)) for name in SHOWN)))
    return lines


def costs(found: List[Found], size: int) -> List[str]:
    lines = header("hosts x ranks", "")
    for one in found:
        sent = [number(one.sent(name, size)) for name in SHOWN]
        cpu = [number(one.cpu(name, size), 1) for name in SHOWN]
        lines.append(row(one.text, "bytes sent by a host, over the least", *sent))
        lines.append(row(one.text, "CPU seconds a GB", *cpu))
    return lines


def table(kept: Dict[str, Dict[str, List[Dict]]], sizes: List[int]) -> str:
    """Return the tables of each rate."""
    lines: List[str] = []
    for rate, layouts in kept.items():
        found = [Found(text, rate, runs) for text, runs in layouts.items()]
        limited = f"Links of {rate}, ms, and the time over the bound:"
        lines += [limited if bytes_a_second(rate) else "Links without a limit, ms:", ""]
        lines += [*times(found, sizes), ""]
        lines += [f"The same calls of {max(sizes):,} bytes:", "", *costs(found, max(sizes)), ""]
    return "\n".join(lines)


def draw(kept: Dict[str, Dict[str, List[Dict]]], rate: str, sizes: List[int], path: Path) -> None:
    """Draw a panel for each size: bars of the time over the bound."""
    from benchmarks.pictures import INK, bars, label_bars
    from hvdlite.bench.plots import figure

    found = [Found(text, rate, runs) for text, runs in kept[rate].items()]
    title = f"One allreduce between hosts, links of {rate}: time over the bound of the links"
    height = 0.8 / len(SHOWN)
    with figure(path, title, (12, 1.4 + 1.1 * len(found)), len(sizes)) as panels:
        panels = panels if len(sizes) > 1 else [panels]
        for axes, size in zip(panels, sizes):
            axes.set_title(f"{size:,} bytes")
            for k, name in enumerate(SHOWN):
                places = [i + height * (k - (len(SHOWN) - 1) / 2) for i in range(len(found))]
                values = [one.over(name, size) for one in found]
                color = INK.get(name, INK["MPI"])
                bars(axes, values, places, color, 0.9 * height, lambda value: f"{value:.2f}")
                axes.barh([0], [0], color=color, label=name)
            axes.axvline(1, color="#495057", linewidth=1)
            label_bars(axes, [one.text for one in found])
        marks = panels[0].get_legend_handles_labels()
        panels[0].figure.legend(*marks, loc="outside lower center", ncol=len(SHOWN))


def main() -> None:
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--layout", dest="layouts", action="append", help="hosts x ranks on each, more than once")
    add("--bytes", dest="sizes", type=int, action="append", help="of an array, more than once")
    add(
        "--rate",
        default=plan.RATE,
        help=f"of each link, as tc writes it (%(default)s), or {plan.UNLIMITED}",
    )
    add("--rounds", type=int, default=2, help="0: show what is kept (%(default)s)")
    add("--only", dest="libraries", choices=hosts_rank.LIBRARIES, action="append",
        help="this library, more than once")  # fmt: skip
    args = parser.parse_args()
    args.sizes = args.sizes or SIZES
    args.libraries = args.libraries or list(hosts_rank.LIBRARIES)
    bytes_a_second(args.rate)
    measure(args.layouts or LAYOUTS, args)
    kept = read()
    picture = ""
    if args.page:
        path = args.page.parent / PICTURE
        path.parent.mkdir(exist_ok=True)
        draw(kept, args.rate, args.sizes, path)
        picture = f"![Time over the bound of the links]({PICTURE})\n\n"
    show(picture + table(kept, args.sizes), args.page)


if __name__ == "__main__":
    main()

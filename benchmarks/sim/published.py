"""The published figures beside simulated ones: a table and the picture of docs/scaling.md.

python -m benchmarks.sim.published            # draws the page's tables
python -m benchmarks.sim.published --anew     # simulates ResNet-50's before, for many minutes
"""

import re
import statistics
import sys
from typing import Any, Dict, List, Optional

from benchmarks import pictures, sim
from benchmarks.harness import ROOT, markdown, put
from benchmarks.sim import models

PAGE = ROOT / "docs" / "scaling.md"
ALONE = 703.0  # images/s of a V100, published; 64 images in
COMPUTE = 91e-3  # seconds
WORKERS = [1, 2, 8, 16, 64]
KINDS = {"hvdlite": 0, "1 server": None, "as many servers as workers": 1, "twice as many": 2}
MOST = 64  # servers; more take hours to simulate
INK = ["#e8590c", "#868e96", "#1c7ed6", "#74c0fc"]


def efficiency(workers: int, servers: int) -> float:
    """Return compute over the time of a step of ResNet-50, on links of 25 Gbit/s."""
    place = sim.Place(workers, rate=25e9, servers=servers, apart=True)
    settings: Dict[str, Any] = {"warm": 2, "steps": 6, "fifo": 0, "meet": 0, "compute": COMPUTE}
    found = sim.run(place, models.tensors("resnet50"), 3600, **settings)
    return COMPUTE / statistics.median(found["steps"])


def simulated(workers: int) -> List[str]:
    """Return a row of the table."""
    row = [str(workers)]
    for each in KINDS.values():
        servers = 1 if each is None else each * workers
        row.append(f"{100 * efficiency(workers, servers):.1f} %" if servers <= MOST else "")
    print(*row, file=sys.stderr)
    return row


def columns(heading: str) -> Dict[str, Dict[str, float]]:
    """Return the columns of the page's table that begins so: the values by the first column."""
    text = PAGE.read_text(encoding="utf-8")
    table = re.search(rf"^\| {re.escape(heading)}.*\n\|.*\n((?:\|.*\n)+)", text, re.M)
    assert table, f"{PAGE} has no table {heading}"
    cells = [[cell.strip(" %") for cell in row.split("|")[1:-1]] for row in table[0].splitlines()]
    names, _, *rows = cells
    return {
        name: {row[0]: float(row[at]) for row in rows if row[at]}
        for at, name in enumerate(names)
        if at
    }


def draw() -> None:
    path = PAGE.with_suffix("") / "published.png"
    with pictures.figure(path, "Parameter servers and hvdlite", 2) as (left, right):
        averages(left, columns("by 8 workers"))
        resnet50(right, columns("workers"))


def averages(axes, found: Dict[str, Dict[str, float]]) -> None:
    """Draw the seconds of an average, published, measured and simulated."""
    names = list(dict.fromkeys(name for values in found.values() for name in values))
    for k, (how, color) in enumerate(zip(found, (INK[1], INK[2], INK[0]))):
        places = [names.index(name) + 0.27 * (k - 1) for name in found[how]]
        bars = axes.bar(places, found[how].values(), 0.25, color=color, label=how)
        axes.bar_label(bars, fmt="%.2g", fontsize=6.5)
    axes.set_title("average of 400 MB by 8 workers, 10 Gbit/s: seconds")
    axes.set_xticks(range(len(names)), [name.replace("_", "_\n") for name in names], fontsize=8.5)
    axes.grid(False, axis="x")
    axes.legend()


def resnet50(axes, found: Dict[str, Dict[str, float]]) -> None:
    """Draw images/s over workers."""
    axes.set_title("ResNet-50, 25 Gbit/s: images/s of all workers, simulated")
    axes.plot(WORKERS, [ALONE * n for n in WORKERS], ":", color="#495057", label="no exchange")
    for color, (kind, values) in zip(INK, found.items()):
        workers = [int(n) for n in values]
        speeds = [ALONE * n * value / 100 for n, value in zip(workers, values.values())]
        axes.plot(workers, speeds, "o-", color=color, label=kind, markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xticks(WORKERS, [str(n) for n in WORKERS])
    axes.set_yticks([ALONE * n for n in WORKERS], [f"{ALONE * n:,.0f}" for n in WORKERS])
    axes.set_xlabel("workers, one a host")
    axes.legend()


def main(arguments: List[str]) -> Optional[str]:
    if arguments == ["--anew"]:
        lacks = sim.missing()
        if lacks:
            return f"sim: {lacks}"
        rows = [simulated(workers) for workers in WORKERS]
        put(PAGE, {"resnet50": markdown(["workers", *KINDS], rows, texts=0)})
    elif arguments:
        return __doc__
    draw()
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Pictures of the rows: time, bus bandwidth and share of the memory floor by size."""

from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple

from hvdlite.bench.report import size_text

COLORS = ("#1864ab", "#e8590c", "#2b8a3e", "#862e9c", "#c2255c", "#5c940d", "#495057", "#0b7285")
MARKERS = "osD^vPX*"
Curves = Dict[str, List[Tuple[float, float]]]  # label -> (bytes, value)

_STYLE = {
    "figure.dpi": 150, "savefig.bbox": "tight", "font.size": 10, "axes.titlesize": 12,
    "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 12,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#868e96",
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#e9ecef", "grid.linewidth": 0.8,
    "legend.frameon": False, "lines.linewidth": 2, "lines.markersize": 5,
}  # fmt: skip


@contextmanager
def figure(path: Path, title: str, width: float = 8, height: float = 4.5):
    """Yield axes; save them as a PNG file afterwards. Draws without a display."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        made = Figure(figsize=(width, height))
        FigureCanvasAgg(made)
        axes = made.add_subplot()
        axes.set_title(title)
        yield axes
        made.savefig(path)


def by_size(axes, curves: Curves, ylabel: str, log: bool = True) -> None:
    """Draw one line a label over the size of the data."""
    sizes = sorted({nbytes for points in curves.values() for nbytes, _ in points})
    for (label, points), color, marker in zip(curves.items(), COLORS * 3, MARKERS * 3):
        axes.plot(*zip(*sorted(points)), color=color, marker=marker, label=label)
    axes.set_xscale("log", base=2)
    if log:
        axes.set_yscale("log")
    axes.set_xticks(sizes, [size_text(int(size)) for size in sizes], rotation=35, ha="right")
    axes.minorticks_off()
    axes.set_ylabel(ylabel)
    axes.legend()


def curves_of(rows: Sequence[Dict], value: Callable[[Dict], float]) -> Curves:
    """Group rows that measure one size by all that else tells them apart."""
    curves: Curves = defaultdict(list)
    for row in rows:
        if row["label"].isdigit():
            curves[label_of(row)].append((row["bytes"], value(row)))
    return {label: points for label, points in curves.items() if len(points) > 1}


def label_of(row: Dict) -> str:
    words = [row["kind"], row["memory"], row["library"]]
    return ", ".join(words if row["dtype"] == "float32" else [*words, row["dtype"]])


def draw(rows: Sequence[Dict], folder: Path) -> List[Path]:
    """Write time.png, busbw.png and floor.png as far as there are rows; return their paths."""
    wanted = {
        "time": ("Time by size", "milliseconds", lambda row: 1e3 * row["p50"], True),
        "busbw": ("Bus bandwidth by size", "GB/s", lambda row: row["busbw"] / 1e9, True),
        "floor": ("Share of the memory floor", "%", lambda row: 100 * row["floor_share"], False),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (title, ylabel, value, log) in wanted.items():
        curves = curves_of([row for row in rows if "floor_share" in row], value)
        if curves:
            written.append(folder / f"{name}.png")
            with figure(written[-1], f"{title}, {rows[0]['ranks']} ranks") as axes:
                by_size(axes, curves, ylabel, log)
    return written

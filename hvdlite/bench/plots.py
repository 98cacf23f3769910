"""Pictures of the rows: time, bus bandwidth and share of the memory floor by size."""

from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path
from typing import Callable, Dict, List, Sequence, Tuple

from hvdlite.bench.report import size_text

COLORS = ("#1864ab", "#e8590c", "#2b8a3e", "#862e9c", "#c2255c", "#5c940d", "#495057", "#0b7285")
MARKERS = "osD^vPX*"
Curves = Dict[str, List[Tuple[int, float]]]  # label -> (bytes, value)

_STYLE = {
    "figure.dpi": 150, "figure.constrained_layout.use": True, "savefig.bbox": "tight",
    "savefig.pad_inches": 0.15, "font.size": 10, "text.color": "#212529",
    "axes.titlesize": 10, "axes.titlelocation": "left", "axes.titlecolor": "#495057",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#adb5bd",
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#e9ecef", "grid.linewidth": 0.8,
    "xtick.color": "#495057", "ytick.color": "#495057",
    "legend.frameon": False, "lines.linewidth": 2, "lines.markersize": 5,
}  # fmt: skip


@contextmanager
def figure(path: Path, title: str, size: Tuple[float, float] = (8, 4.5), panels: int = 1):
    """Yield axes, or a list with one for each panel, side by side; then save them as PNG.

    Needs no display.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        made = Figure(figsize=size)
        FigureCanvasAgg(made)
        axes = made.subplots(1, panels, sharey=True, squeeze=False)[0]
        made.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        yield axes[0] if panels == 1 else list(axes)
        made.savefig(path)


def milliseconds_axis(axes) -> None:
    """Make the y axis logarithmic, with plain labels such as 0.1, 1, 10."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylabel("milliseconds")


def size_axis(axes, sizes: Sequence[int]) -> None:
    """Make the x axis logarithmic, with the sizes that were measured."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [size_text(size) for size in sizes])
    axes.minorticks_off()


def lines(axes, curves: Curves) -> None:
    """Draw one line a label over the size of the data."""
    for (label, points), color, marker in zip(curves.items(), COLORS * 3, MARKERS * 3):
        axes.plot(*zip(*sorted(points)), color=color, marker=marker, label=label)
    size_axis(axes, sorted({nbytes for points in curves.values() for nbytes, _ in points}))
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def curves_of(rows: Sequence[Dict], value: Callable[[Dict], float]) -> Curves:
    """Group the rows that measure one size into curves, one for each label."""
    curves: Curves = defaultdict(list)
    for row in rows:
        if row["label"].isdigit():
            curves[label_of(row)].append((row["bytes"], value(row)))
    return {label: points for label, points in curves.items() if len(points) > 1}


def label_of(row: Dict) -> str:
    words = [row["kind"], row["memory"], row["library"]]
    return ", ".join(words if row["dtype"] == "float32" else [*words, row["dtype"]])


def draw(rows: Sequence[Dict], folder: Path) -> List[Path]:
    """Write those of time.png, busbw.png and floor.png that have rows; return their paths."""
    wanted = {
        "time": ("Time by size", None, lambda row: 1e3 * row["p50"]),
        "busbw": ("Bus bandwidth by size", "GB/s", lambda row: row["busbw"] / 1e9),
        "floor": ("Share of the memory floor", "%", lambda row: 100 * row["floor_share"]),
    }
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (title, ylabel, value) in wanted.items():
        curves = curves_of([row for row in rows if "floor_share" in row], value)
        if not curves:
            continue
        written.append(folder / f"{name}.png")
        with figure(written[-1], f"{title}, {rows[0]['ranks']} ranks", (9, 4.5)) as axes:
            lines(axes, curves)
            if ylabel:
                axes.set_ylabel(ylabel)
                axes.set_ylim(bottom=0)
            else:
                milliseconds_axis(axes)
    return written

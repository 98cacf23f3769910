"""The picture of README.md and docs/benchmarks.md: times Horovod's speed."""

from pathlib import Path
from typing import Optional, Sequence

from benchmarks import plan, shown

INK = [(plan.HOROVOD, "#e8590c"), (plan.HOROVOD_TUNED, "#ffa94d")]

_STYLE = {
    "figure.dpi": 150, "figure.constrained_layout.use": True, "savefig.bbox": "tight",
    "savefig.pad_inches": 0.15, "font.size": 10, "text.color": "#212529",
    "axes.titlesize": 10, "axes.titlelocation": "left", "axes.titlecolor": "#495057",
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#adb5bd",
    "axes.grid": True, "axes.axisbelow": True, "grid.color": "#e9ecef", "grid.linewidth": 0.8,
    "xtick.color": "#495057", "ytick.color": "#495057", "legend.frameon": False,
}  # fmt: skip


def ratios(results, path: Path) -> None:
    """Draw a panel for each number of ranks, a bar for each work. Needs no display."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(10, 5.2))
        FigureCanvasAgg(figure)
        title = "Horovod's time over hvdlite's"
        figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        panels = figure.subplots(1, len(plan.RANKS), sharey=True)
        for axes, ranks in zip(panels, plan.RANKS):
            panel(axes, results, ranks)
        for (_, color), text in zip(INK, ("Horovod as it comes", "Horovod tuned")):
            panels[-1].barh([0], [0], color=color, label=text)
        panels[-1].legend(loc="lower right", bbox_to_anchor=(1, 1.05), ncol=2)
        figure.savefig(path)


def panel(axes, results, ranks: int) -> None:
    crowded = f" on {plan.CORES} cores" if ranks > plan.CORES else ""
    axes.set_title(f"{ranks} ranks{crowded}")
    for k, (peer, color) in enumerate(INK):
        values = [
            results.ratio(plan.HVDLITE, row.ours, peer, row.theirs, ranks) for row in shown.ROWS
        ]
        bars(axes, values, [i + 0.4 * (k - 0.5) for i in range(len(values))], color)
    axes.axvline(1, color="#495057", linewidth=1)
    axes.set_yticks(range(len(shown.ROWS)), [row.brief for row in shown.ROWS])
    axes.set_ylim(len(shown.ROWS) - 0.4, -0.6)  # the first one on top
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.12)  # room for the numbers


def bars(axes, values: Sequence[Optional[float]], places, color: str) -> None:
    """Draw horizontal bars with their values behind them."""
    axes.barh(places, [value or 0 for value in values], 0.36, color=color)
    for place, value in zip(places, values):
        if value:
            axes.annotate(f"{value:.1f}x", (value, place), (4, 0), textcoords="offset points",
                          va="center", fontsize=8.5)  # fmt: skip

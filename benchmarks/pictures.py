"""The pictures of docs/benchmarks.md."""

import math
from pathlib import Path
from typing import Callable, List, Optional, Sequence, Tuple

from benchmarks import plan, shown, suites
from hvdlite.bench import cases
from hvdlite.bench.plots import figure, milliseconds_axis, size_axis

INK = {
    "hvdlite": "#1864ab", "hvdlite, zero-copy": "#4dabf7", "Horovod": "#e8590c",
    "Horovod, tuned": "#ffa94d", "MPI": "#495057", "MPI, tuned": "#adb5bd", "Gloo": "#2b8a3e",
    "Gloo, tuned": "#8ce99a", "parameter server": "#862e9c", "parameter server, tuned": "#da77f2",
}  # fmt: skip
Points = List[Tuple[int, float]]


def draw(results, folder: Path) -> None:
    for ranks in plan.RANKS:
        sizes(results, ranks, folder / f"sizes-{ranks}.png")
    ratios(results, folder / "ratios.png")
    floor(results, folder / "floor.png")
    step(results, folder / "step.png")
    ablation(results, folder / "ablation.png")


def rank_title(ranks: int) -> str:
    return f"{ranks} ranks on {plan.CORES} cores" if ranks > plan.CORES else f"{ranks} ranks"


def points_of(sizes: Sequence[int], value: Callable[[int], Optional[float]]) -> Points:
    found = [(size, value(size)) for size in sizes]
    return [(size, y) for size, y in found if y is not None]


def size_case(size: int, memory: str = "private") -> str:
    return cases.one_array("allreduce", size, memory=memory).name


# ---- time by size ----


def sizes(results, ranks: int, path: Path) -> None:
    """Every system, and the floor below."""
    with figure(path, f"One allreduce, {rank_title(ranks)}: time by size", (9, 5)) as axes:
        for contestant in plan.CONTESTANTS:
            curve(axes, results, contestant, ranks, "private", contestant.name)
            if contestant is plan.HVDLITE:
                curve(axes, results, contestant, ranks, "zero-copy", "hvdlite, zero-copy")
        least = points_of(suites.LARGE, lambda size: results.floor(size, ranks))
        if least:
            xs, ys = zip(*least)
            axes.plot(xs, [1e3 * y for y in ys], color="black", linestyle=":", linewidth=1.2,
                      label="memory floor, 2pS/B")  # fmt: skip
        milliseconds_axis(axes)
        size_axis(axes, suites.SIZES)
        if axes.lines:
            axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def curve(axes, results, contestant, ranks: int, memory: str, label: str) -> None:
    points = points_of(
        suites.SIZES, lambda size: results.value(contestant, ranks, size_case(size, memory))
    )
    if not points:
        return
    ours, tuned = contestant is plan.HVDLITE, contestant.name.endswith("tuned")
    xs, ys = zip(*points)
    axes.plot(
        xs, [1e3 * y for y in ys], color=INK[label], label=label, marker="o",
        zorder=3 if ours else 2, linewidth=2.6 if ours else 1.6, linestyle="--" if tuned else "-",
    )  # fmt: skip


# ---- bars ----


def bars(axes, values: Sequence[Optional[float]], places, color, height: float, text) -> None:
    """Draw horizontal bars with their values behind them."""
    axes.barh(places, [value or 0 for value in values], height, color=color)
    for place, value in zip(places, values):
        if value:
            axes.annotate(text(value), (value, place), (4, 0), textcoords="offset points",
                          va="center", fontsize=8.5)  # fmt: skip


def label_bars(axes, labels: Sequence[str]) -> None:
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)  # the first one on top
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, axes.get_xlim()[1] * 1.12)  # room for the numbers


def ratios(results, path: Path) -> None:
    """How many times faster than Horovod, as it comes and tuned."""
    peers = [plan.HOROVOD, plan.HOROVOD_TUNED]
    labels = [row.brief for row in shown.ROWS]
    with figure(path, "Horovod's time over hvdlite's", (10, 5.2), len(plan.RANKS)) as panels:
        for axes, ranks in zip(panels, plan.RANKS):
            axes.set_title(rank_title(ranks))
            for k, peer in enumerate(peers):
                values = [
                    results.ratio(plan.HVDLITE, row.ours, peer, row.theirs, ranks)
                    for row in shown.ROWS
                ]
                places = [i + 0.4 * (k - 0.5) for i in range(len(labels))]
                bars(axes, values, places, INK[peer.name], 0.36, lambda value: f"{value:.1f}x")
            axes.axvline(1, color="#495057", linewidth=1)
            label_bars(axes, labels)
        for peer, text in zip(peers, ("Horovod as it comes", "Horovod tuned")):
            panels[-1].barh([0], [0], color=INK[peer.name], label=text)
        panels[-1].legend(loc="lower right", bbox_to_anchor=(1, 1.05), ncol=2)


def step(results, path: Path) -> None:
    """Which part of the speed of lone processes is kept in training with each system."""
    labels = [text for text, _, _ in shown.STEPS]
    title = "A LeNet step: percent of the speed of processes that exchange nothing"
    with figure(path, title, (10, 3.4), len(plan.RANKS)) as panels:
        for axes, ranks in zip(panels, plan.RANKS):
            axes.set_title(rank_title(ranks))
            for place, (text, contestant, case) in enumerate(shown.STEPS):
                kept = results.speed_kept(contestant, ranks, case, shown.STEP)
                bars(axes, [kept and 100 * kept], [place], INK[text], 0.7, lambda x: f"{x:.0f} %")
            label_bars(axes, labels)


def floor(results, path: Path) -> None:
    with figure(path, "hvdlite: share of the memory floor 2pS/B", (9, 4.2)) as axes:
        for ranks, colors in zip(plan.RANKS, (("#1864ab", "#4dabf7"), ("#2b8a3e", "#8ce99a"))):
            for memory, color in zip(("zero-copy", "private"), colors):
                points = points_of(
                    suites.LARGE,
                    lambda size: results.floor_share(size, memory, ranks),  # noqa: B023
                )
                if points:
                    xs, ys = zip(*points)
                    axes.plot(xs, [100 * y for y in ys], color=color, marker="o",
                              label=f"{memory}, {ranks} ranks")  # fmt: skip
        axes.axhline(100, color="black", linestyle=":", linewidth=1.2, label="memory at full speed")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("%")
        size_axis(axes, suites.LARGE)
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))


def ablation(results, path: Path) -> None:
    """A cell for each technique and work, the darker the more the technique brings."""
    values = [
        [results.without(technique, work) or math.nan for work in shown.ABLATED]
        for technique in plan.TECHNIQUES
    ]
    height = 1.6 + 0.5 * len(values)
    title = "Time without each technique, over the time with all"
    with figure(path, title, (10, height)) as axes:
        from matplotlib.colors import LogNorm

        axes.imshow(values, cmap="Blues", norm=LogNorm(0.9, 8), aspect="auto")
        for y, row in enumerate(values):
            for x, value in enumerate(row):
                text = "–" if math.isnan(value) else f"{value:.2f}x"
                color = "white" if value > 3 else "#212529"
                axes.text(x, y, text, ha="center", va="center", color=color)
        axes.set_xticks(range(len(shown.ABLATED)), [work.brief for work in shown.ABLATED])
        axes.set_yticks(range(len(values)), [f"without {t.name}" for t in plan.TECHNIQUES])
        axes.tick_params(length=0)
        axes.grid(False)
        axes.spines[:].set_visible(False)

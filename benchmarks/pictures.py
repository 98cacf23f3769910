"""The pictures of docs/benchmarks.md."""

from pathlib import Path
from typing import List

import plan
import suites
from shown import ABLATED, ROWS, STEPS

from hvdlite.bench import cases
from hvdlite.bench.plots import figure
from hvdlite.bench.report import milliseconds, size_text

INK = {
    "hvdlite": "#1864ab", "hvdlite, zero-copy": "#4dabf7", "Horovod": "#e8590c",
    "Horovod, tuned": "#ffa94d", "MPI": "#495057", "MPI, tuned": "#adb5bd", "Gloo": "#2b8a3e",
    "parameter server": "#862e9c", "parameter server, tuned": "#da77f2",
    "independent processes": "#ced4da",
}  # fmt: skip
ROOM = 1.18  # of the longest bar, for the number behind it


def draw(results, folder: Path) -> None:
    for ranks in plan.RANKS:
        sizes(results, ranks, folder / f"sizes-{ranks}.png")
    ratios(results, folder / "ratios.png")
    floor(results, folder / "floor.png")
    step(results, folder / "step.png")
    ablation(results, folder / "ablation.png")


def sizes(results, ranks: int, path: Path) -> None:
    """Time by size, of every system, with the floor below."""
    with figure(path, f"One allreduce, {ranks} ranks: time by size", height=5) as axes:
        for contestant in plan.CONTESTANTS:
            curve(axes, results, contestant, ranks, "private", contestant.name)
        curve(axes, results, plan.HVDLITE, ranks, "zero-copy", "hvdlite, zero-copy")
        floors = [(s, results.floor(s, ranks)) for s in suites.LARGE]
        floors = [(s, 1e3 * t) for s, t in floors if t]
        if floors:
            axes.plot(*zip(*floors), color="black", linestyle=":", linewidth=1.2)
            axes.annotate("memory floor 2pS/B", floors[-2], (6, -16), textcoords="offset points",
                          fontsize=9)  # fmt: skip
        axes.set_yscale("log")
        axes.set_ylabel("milliseconds")
        size_axis(axes, suites.SIZES)
        axes.legend(loc="upper left", ncols=2, fontsize=9)


def curve(axes, results, contestant, ranks: int, memory: str, label: str) -> None:
    points = []
    for size in suites.SIZES:
        name = cases.one_array("allreduce", size, memory=memory).name
        seconds = results.value(contestant, ranks, name)
        points += [(size, 1e3 * seconds)] if seconds else []
    if points:
        ours = contestant is plan.HVDLITE
        tuned = contestant.name.endswith("tuned")
        axes.plot(*zip(*points), color=INK[label], label=label, marker="o", zorder=3 if ours else 2,
                  linewidth=2.6 if ours else 1.6, linestyle="--" if tuned else "-")  # fmt: skip


def size_axis(axes, values: List[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(values, [size_text(value) for value in values])
    axes.minorticks_off()


def ratios(results, path: Path) -> None:
    """Bars: how many times faster than Horovod, as it comes and tuned."""
    kinds = [
        (f"{ranks} ranks, Horovod {word}", peer, ranks, color)
        for ranks, colors in zip(plan.RANKS, (("#1864ab", "#74c0fc"), ("#2b8a3e", "#8ce99a")))
        for word, peer, color in zip(
            ("as it comes", "tuned"), (plan.HOROVOD, plan.HOROVOD_TUNED), colors
        )
    ]
    bars = [
        (label, color, [results.ratio(plan.HVDLITE, r.ours, peer, r.theirs, n) for r in ROWS])
        for label, peer, n, color in kinds
    ]
    labels = [row.text.replace("`", "").replace(", ", ",\n", 1) for row in ROWS]
    with figure(path, "Times Horovod's speed", height=7) as axes:
        grouped(axes, labels, bars, lambda value: f"{value:.1f}x")
        axes.axvline(1, color="#868e96", linewidth=1)
        axes.legend(loc="lower right")


def grouped(axes, labels, bars, text) -> None:
    """Draw a group of horizontal bars a label; (name, color, a value or None a label) a bar."""
    height = 0.8 / len(bars)
    longest = max([value or 0 for _, _, values in bars for value in values] or [0])
    for k, (name, color, values) in enumerate(bars):
        places = [i + (k - (len(bars) - 1) / 2) * height for i in range(len(labels))]
        axes.barh(places, [value or 0 for value in values], height * 0.92, color=color, label=name)
        for place, value in zip(places, values):
            if value:
                axes.text(value + longest / 150, place, text(value), va="center", fontsize=8)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(0, (longest or 1) * ROOM)


def floor(results, path: Path) -> None:
    with figure(path, "Share of the memory floor 2pS/B: 100 % is memory at full speed") as axes:
        for ranks, color in zip(plan.RANKS, ("#1864ab", "#2b8a3e")):
            for memory, line in (("zero-copy", "-"), ("private", "--")):
                points = []
                for size in suites.LARGE:
                    name = cases.one_array("allreduce", size, memory=memory).name
                    ours = results.value(plan.HVDLITE, ranks, name)
                    least = results.floor(size, ranks)
                    points += [(size, 100 * least / ours)] if ours and least else []
                if points:
                    axes.plot(*zip(*points), color=color, linestyle=line, marker="o",
                              label=f"{memory}, {ranks} ranks")  # fmt: skip
        axes.axhline(100, color="black", linestyle=":", linewidth=1.2)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("%")
        size_axis(axes, suites.LARGE)
        axes.legend()


def step(results, path: Path) -> None:
    with figure(path, "LeNet, 64 images a rank: milliseconds a step", height=4.8) as axes:
        bars = []
        for ranks, color in zip(plan.RANKS, ("#1864ab", "#2b8a3e")):
            values = [results.value(contestant, ranks, case) for _, contestant, case in STEPS]
            bars.append((f"{ranks} ranks", color, [1e3 * v if v else None for v in values]))
        grouped(axes, [text for text, _, _ in STEPS], bars, lambda ms: milliseconds(ms / 1e3))
        axes.legend(loc="lower right")


def ablation(results, path: Path) -> None:
    colors = ("#1864ab", "#4dabf7", "#2b8a3e", "#8ce99a", "#e8590c", "#ffa94d", "#862e9c")
    with figure(path, "Time without each technique, over the time with all", height=5) as axes:
        bars = [
            (text.replace("`", ""), color,
             [results.ratio(plan.HVDLITE, case, technique.without, case, 2, "ablation")
              for technique in plan.TECHNIQUES])
            for (text, case), color in zip(ABLATED, colors)
        ]  # fmt: skip
        labels = [f"without\n{technique.name}" for technique in plan.TECHNIQUES]
        grouped(axes, labels, bars, lambda value: f"{value:.2f}x")
        axes.axvline(1, color="#868e96", linewidth=1)
        axes.legend(loc="center right", fontsize=8)

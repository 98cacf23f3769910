"""Puts the figures that run.py has saved, and a picture of them, into docs/benchmarks.md.

python -m benchmarks.report
"""

from pathlib import Path
from typing import Dict, List, Optional

from benchmarks import pictures, plan, shown, suites
from benchmarks.harness import ROOT, Kept, markdown, put
from benchmarks.results import Results
from benchmarks.shown import private
from hvdlite.bench import cases
from hvdlite.bench.report import size_text

OURS, HOROVOD, TUNED = plan.HVDLITE, plan.HOROVOD, plan.HOROVOD_TUNED


def milliseconds(seconds: Optional[float]) -> str:
    """Return seconds as milliseconds with three digits; a dash: not measured."""
    if seconds is None:
        return "–"
    return f"{1e3 * seconds:.3g}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def times(ratio: Optional[float]) -> str:
    """Return a ratio as '7.4x'; a dash: not measured."""
    return "–" if ratio is None else f"{ratio:.1f}x" if ratio < 20 else f"{ratio:.0f}x"


def percent(share: Optional[float]) -> str:
    """Return a share of 1 in percent; a dash: not measured."""
    return "–" if share is None else f"{100 * share:.0f} %"


def by_ranks(first: str, *titles: str) -> List[str]:
    """Return the header of a table that has these columns for each number of ranks."""
    return [first, *(title.format(ranks) for ranks in plan.RANKS for title in titles)]


def speed_table(results: Results, ranks: int) -> str:
    """Return the time of each row of work, in milliseconds, for hvdlite and every peer."""
    header = ["work", "hvdlite", "Horovod", "tuned", "MPI", "tuned", "Gloo", "tuned",
              "Horovod / hvdlite", "tuned / hvdlite"]  # fmt: skip
    lines = []
    for row in shown.ROWS:
        ms = [results.value(OURS, ranks, row.ours)]
        peers = (HOROVOD, TUNED, plan.MPI, plan.MPI_TUNED, plan.GLOO, plan.GLOO_TUNED)
        for peer in peers:
            name = row.theirs if peer.library == "horovod" else row.plain
            ms.append(results.value(peer, ranks, name))
        ratios = [results.ratio(OURS, row.ours, p, row.theirs, ranks) for p in (HOROVOD, TUNED)]
        lines.append([row.text, *map(milliseconds, ms), *(f"**{times(r)}**" for r in ratios)])
    return markdown(header, lines)


def floor_table(results: Results) -> str:
    """Return zero-copy allreduce beside its floor of 2 p S / B seconds: p ranks, S bytes each."""
    lines = []
    for size in suites.LARGE:
        case = cases.one_array("allreduce", size, memory="zero-copy")
        line = [size_text(size)]
        for ranks in plan.RANKS:
            floor, taken, share = results.beside_floor(OURS, ranks, case)
            line += [milliseconds(floor), milliseconds(taken), percent(share)]
        lines.append(line)
    return markdown(by_ranks("size", "floor, {} ranks", "hvdlite", "share"), lines)


def step_table(results: Results) -> str:
    """Return a training step's time, beside that of processes which exchange nothing."""
    lines = []
    for text, contestant, case in shown.STEPS:
        line = [text]
        for ranks in plan.RANKS:
            taken = results.value(contestant, ranks, case)
            lone = results.lone(contestant, ranks, case, shown.STEP) if taken else None
            kept = results.speed_kept(contestant, ranks, case, shown.STEP)
            line += [milliseconds(taken), milliseconds(lone), percent(kept)]
        lines.append(line)
    header = by_ranks("training with", "{} ranks", "lone processes", "speed kept")
    return markdown(header, lines)


def idle_table(results: Results) -> str:
    """Return the share of a core that an idle rank uses after init."""

    def share(value: float) -> str:
        return f"{100 * value:.2f} %"

    lines = []
    for contestant in (OURS, HOROVOD):
        line = [contestant.name]
        for ranks in plan.RANKS:
            idle = results.one(contestant, ranks, "idle")
            line += [share(idle[0]), share(max(idle[1:]))] if idle else ["–", "–"]
        lines.append(line)
    return markdown(by_ranks("idle after init", "rank 0 of {}", "others"), lines)


def cpu_table(results: Results) -> str:
    """Return the CPU seconds of all ranks together for each GB that is reduced."""
    lines = []
    for contestant in plan.CONTESTANTS:
        line = [contestant.name]
        for case in (private("64M"), cases.model("resnet50").name):
            for ranks in plan.RANKS:
                used = results.value(contestant, ranks, case, "cpu_seconds_per_gb")
                line.append("–" if used is None else f"{used:.2f}")
        lines += [line] if set(line[1:]) != {"–"} else []
    header = ["CPU seconds per GB"]
    for work in ("64 MiB", "ResNet-50"):
        header += [f"{work}, {ranks} ranks" for ranks in plan.RANKS]
    return markdown(header, lines)


def memory_table(results: Results) -> str:
    """Return peak memory, and memory at the end with shared pages divided among the ranks."""
    contestants = [
        ("hvdlite", OURS, "memory"), ("hvdlite, zero-copy", OURS, "memory_zero_copy"),
        ("Horovod", HOROVOD, "memory"),
    ]  # fmt: skip
    lines = []
    for text, contestant, suite in contestants:
        line = [text]
        for ranks in plan.RANKS:
            peak = results.one(contestant, ranks, "peak_memory", suite)
            own = results.one(contestant, ranks, "own_memory", suite)
            line += [f"{max(m) / 1e6:.0f} MB" if m else "–" for m in (peak, own)]
        lines.append(line)
    peak_and_share = "peak of a rank, {} ranks", "its share at the end"
    return markdown(by_ranks("ResNet-50's gradients", *peak_and_share), lines)


def machine_text(results: Results) -> str:
    """Return the machine and the versions in one line."""
    machine, versions = results.any("machine"), results.any("versions")
    words = [f"{machine.get('cores', '?')} cores of {machine.get('processor', '?')}"]
    words += [machine[key] for key in ("memory", "system") if key in machine]
    names = {"mxnet": "MXNet", "torch": "PyTorch", "horovod": "Horovod"}
    words += [v if k == "MPI" else f"{names.get(k, k)} {v}" for k, v in versions.items()]
    return ", ".join(words)


def bandwidth_text(results: Results) -> str:
    """Return the measured memory bandwidth for each number of ranks."""
    found = [(ranks, results.bandwidth(ranks)) for ranks in plan.RANKS]
    return " and ".join(
        f"{bandwidth / 1e9:.0f} GB/s with {ranks} ranks" for ranks, bandwidth in found if bandwidth
    )


def settings_table() -> str:
    """Return the environment variables of the tuned contestants."""
    lines = [
        [c.name, " ".join(f"`{k}={v}`" for k, v in c.environment.items())]
        for c in plan.CONTESTANTS
        if c.environment
    ]
    return markdown(["as tuned", "environment"], lines)


def failures(results: Results) -> str:
    """Return a section about contestants that did not run; empty if all ran."""
    lines = [f"* {reason}" for reason in results.failures()]
    return "\n".join(["", "## What did not run", "", *lines]) if lines else ""


def texts(results: Results) -> Dict[str, str]:
    """Return what goes between the marks of the page, by name."""
    two, four = plan.RANKS
    baseline = results.one(OURS, two, "baseline_memory") or 0
    return {
        "machine": machine_text(results), "rounds": str(results.rounds()),
        "speed_two": speed_table(results, two), "speed_four": speed_table(results, four),
        "bandwidth": bandwidth_text(results), "floor": floor_table(results),
        "step": step_table(results), "cpu": cpu_table(results), "idle": idle_table(results),
        "baseline": f"{baseline / 1e6:.0f} MB", "memory": memory_table(results),
        "settings": settings_table(), "failures": failures(results),
    }  # fmt: skip


def write(results: Results, docs: Path) -> Path:
    """Put the figures into the page, and draw its picture; return the page."""
    folder = docs / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    pictures.ratios(results, folder / "ratios.png")
    page = docs / "benchmarks.md"
    put(page, texts(results))
    return page


if __name__ == "__main__":
    print(write(Results(Kept(plan.KEPT).found), ROOT / "docs"))

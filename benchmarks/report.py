"""Writes the results that run.py has stored into docs/benchmarks.md and docs/sharding.md.

    python -m benchmarks.report sharding.md

A time is the median over rounds of a round's median. A ratio is the median over rounds of the ratio
within a round; the minimum and maximum over rounds follow in brackets. In a round, all systems run
one after the other.
"""

from typing import Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from benchmarks import plan
from benchmarks.harness import ROOT, Kept, markdown, of_rounds, parser_of, put
from benchmarks.results import Results
from hvdlite.bench import cases
from hvdlite.bench.report import size_text

OURS, HOROVOD, TUNED = plan.HVDLITE, plan.HOROVOD, plan.HOROVOD_TUNED


# ---- which case of hvdlite is compared with which case of the other systems ----


class Row(NamedTuple):
    """One row of the main table.

    :ivar ours: the name of the work that hvdlite does.
    :ivar theirs: the name of the work that Horovod does.
    :ivar plain: the name of the work that systems without trainers do.
    """

    text: str
    ours: str
    theirs: str
    plain: str


def private(size: str) -> str:
    return cases.one_array("allreduce", cases.parse_size(size)).name


def _same(text: str, case: str) -> Row:
    return Row(text, case, case, case)


ROWS = [
    _same("4 KiB", private("4K")),
    _same("64 KiB", private("64K")),
    _same("64 MiB", private("64M")),
    _same("400 MB", private("400MB")),
    _same("ResNet-50, `allreduce_` one by one", cases.model("resnet50").name),
    Row(
        "ResNet-50, zero-copy, `trainer.allreduce_grads()`",
        cases.model("resnet50", "zero-copy").name,
        cases.model("resnet50", "trainer").name,
        cases.model("resnet50").name,
    ),
    _same("500 arrays of 16 floats, `allreduce_` one by one", cases.tiny().name),
    Row(
        "500 arrays of 16 floats, `trainer.allreduce_grads()`",
        cases.tiny("trainer").name,
        cases.tiny("trainer").name,
        cases.tiny().name,
    ),
]
STEP, STEP_SHARED = cases.step("trainer").name, cases.step("zero-copy").name
STEPS = [
    ("hvdlite, zero-copy", plan.HVDLITE, STEP_SHARED), ("hvdlite", plan.HVDLITE, STEP),
    ("Horovod", plan.HOROVOD, STEP), ("Horovod, tuned", plan.HOROVOD_TUNED, STEP),
    ("parameter server", plan.PS, STEP), ("parameter server, tuned", plan.PS_TUNED, STEP),
]  # fmt: skip


PEERS = [
    HOROVOD, TUNED, plan.MPI, plan.MPI_TUNED, *plan.OTHER_MPIS, plan.UCC, plan.DEEPSPEED, plan.GLOO,
    plan.GLOO_TUNED,
]  # fmt: skip


def theirs(row: Row, peer: plan.Contestant) -> str:
    """Return the name of the work that a system other than hvdlite does for this row."""
    return row.theirs if peer.library == "horovod" else row.plain


def milliseconds(seconds: Optional[float]) -> str:
    """Return seconds as milliseconds with three digits, or a dash if not measured."""
    if seconds is None:
        return "–"
    return f"{1e3 * seconds:.3g}" if seconds < 0.1 else f"{1e3 * seconds:.0f}"


def times(ratios: Sequence[float]) -> str:
    """Return the rounds' ratios as '7.4x [7.1x, 8x]', in bold if hvdlite is slower."""

    def text(ratio: float) -> str:
        short = f"{ratio:.2f}x" if ratio < 1 else f"{ratio:.1f}x" if ratio < 20 else f"{ratio:.0f}x"
        return short if ratio >= 1 else f"**{short}**"

    return of_rounds(ratios, text)


def percent(shares: Sequence[float]) -> str:
    """Return the rounds' shares (0 to 1) in percent."""
    return of_rounds(shares, lambda share: f"{100 * share:.0f} %")


def by_ranks(first: str, *titles: str) -> List[str]:
    """Return the header of a table that has these columns for each number of ranks."""
    return [first, *(title.format(ranks) for ranks in plan.RANKS for title in titles)]


def speed_table(results: Results, ranks: int) -> str:
    """Return a table with each row's time in milliseconds, for hvdlite and each measured system."""
    columns = [(p, [results.value(p, ranks, theirs(row, p)) for row in ROWS]) for p in PEERS]
    columns = [(peer, values) for peer, values in columns if any(values)]
    lines = []
    for n, row in enumerate(ROWS):
        there = [(values[n], peer) for peer, values in columns if values[n]]
        fastest = min(there, key=lambda pair: pair[0])[1] if there else TUNED
        horovod, best = (
            times(results.ratios(OURS, row.ours, peer, theirs(row, peer), ranks))
            for peer in (TUNED, fastest)
        )
        ms = [results.value(OURS, ranks, row.ours), *(values[n] for _, values in columns)]
        named = best if best == "–" else f"{fastest.name} {best}"
        lines.append([row.text, *map(milliseconds, ms), horovod, named])
    titles = [peer.name for peer, _ in columns]
    compared = "Horovod, tuned / hvdlite", "fastest other / hvdlite"
    return markdown(["work", "hvdlite", *titles, *compared], lines)


def floor_table(results: Results) -> str:
    """Return a table of zero-copy allreduces and the least times that memory bandwidth allows."""
    lines = []
    for size in plan.LARGE:
        case = cases.one_array("allreduce", size, memory="zero-copy")
        line = [size_text(size)]
        for ranks in plan.RANKS:
            floor, taken, share = results.beside_floor(OURS, ranks, case)
            line += [milliseconds(floor), milliseconds(taken), percent(share)]
        lines.append(line)
    return markdown(by_ranks("size", "floor, {} ranks", "hvdlite", "share"), lines)


def step_table(results: Results) -> str:
    """Return a table of a training step's time, and of the time without communication."""
    lines = []
    for text, contestant, case in STEPS:
        line = [text]
        for ranks in plan.RANKS:
            taken = results.value(contestant, ranks, case)
            lone = results.lone(contestant, ranks, case, STEP) if taken else None
            kept = results.speed_kept(contestant, ranks, case, STEP)
            line += [milliseconds(taken), milliseconds(lone), percent(kept)]
        lines.append(line)
    header = by_ranks("training with", "{} ranks", "lone processes", "speed kept")
    return markdown(header, lines)


def idle_table(results: Results) -> str:
    """Return a table with the share of a core that an idle rank uses after init."""

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
    """Return a table with the CPU seconds of all ranks together per GB that is reduced."""
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
    """Return a table of a rank's peak memory, and of its part of the memory at the end."""
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


def settings_table() -> str:
    """Return the environment variables of the tuned contestants."""
    lines = [
        [c.name, " ".join(f"`{k}={v}`" for k, v in c.environment.items()).replace(f"{ROOT}/", "")]
        for c in plan.CONTESTANTS
        if c.environment
    ]
    return markdown(["as tuned", "environment"], lines)


def failures(results: Results) -> str:
    """Return a section about contestants that did not run; empty if all ran."""
    lines = [f"* {reason}" for reason in results.failures()]
    return "\n".join(["", "## What did not run", "", *lines]) if lines else ""


def texts(results: Results) -> Dict[str, str]:
    """Return the texts that go between the marks of docs/benchmarks.md, by the marks' names."""
    two, four = plan.RANKS
    baseline = results.one(OURS, two, "baseline_memory") or 0
    return {
        "machine": results.machine(), "rounds": str(results.rounds()),
        "speed_two": speed_table(results, two), "speed_four": speed_table(results, four),
        "bandwidth": results.bandwidths(), "floor": floor_table(results),
        "step": step_table(results), "cpu": cpu_table(results), "idle": idle_table(results),
        "baseline": f"{baseline / 1e6:.0f} MB", "memory": memory_table(results),
        "settings": settings_table(), "failures": failures(results),
    }  # fmt: skip


# ---- average and update ----

UPDATING_RANKS = 2
TITLES = {"lenet": "LeNet", "resnet50": "ResNet-50", "vgg16": "VGG-16", "bert-base": "BERT-base"}
RULES = {"momentum": "SGD, momentum", "adam": "Adam"}
SYSTEMS = [
    ("`ShardedTrainer`", plan.HVDLITE, "sharded"),
    ("`DistributedTrainer`", plan.HVDLITE, "trainer"),
    ("Horovod, tuned", plan.HOROVOD_TUNED, "trainer"),
    ("DDP and ZeRO, tuned", plan.ZERO_TUNED, "trainer"),
]
UPDATE_STEPS = [("`ShardedTrainer`", "sharded"), ("`DistributedTrainer`", "zero-copy")]
HELD = [
    ("`ShardedTrainer`", plan.HVDLITE, "sharded"),
    ("`DistributedTrainer`", plan.HVDLITE, "trainer"),
    ("Horovod", plan.HOROVOD, "trainer"),
    ("DDP and ZeRO", plan.ZERO, "trainer"),
]


def works() -> Iterator[Tuple[str, str, str]]:
    """Yield the suite, model and optimizer of each line of the table of updates."""
    for suite, updated in plan.UPDATES.items():
        yield from ((suite, name, optimizer) for name, optimizer in updated)


def update_table(results: Results) -> str:
    header = ["average and update, ms", *(title for title, _, _ in SYSTEMS)]
    lines = []
    for suite, name, optimizer in works():
        line = [f"{TITLES[name]}, {RULES[optimizer]}"]
        ours = cases.update(name, "sharded", optimizer).name
        for title, contestant, memory in SYSTEMS:
            case = cases.update(name, memory, optimizer).name
            text = milliseconds(results.value(contestant, UPDATING_RANKS, case, suite=suite))
            ratios = results.ratios(plan.HVDLITE, ours, contestant, case, UPDATING_RANKS, suite)
            line.append(text if title == SYSTEMS[0][0] else f"{text} ({times(ratios)})")
        lines.append(line)
    return markdown(header, lines)


def update_floors(results: Results) -> str:
    header = ["`ShardedTrainer`", "floor, ms", "measured", "share of the floor"]
    lines = []
    for suite, name, optimizer in works():
        case = cases.update(name, "sharded", optimizer)
        floor, taken, share = results.beside_floor(plan.HVDLITE, UPDATING_RANKS, case, suite)
        text = f"{TITLES[name]}, {RULES[optimizer]}"
        lines.append([text, milliseconds(floor), milliseconds(taken), percent(share)])
    return markdown(header, lines)


def update_steps(results: Results) -> str:
    header = ["LeNet, 64 images a rank", "a step, ms", "lone processes", "speed kept"]
    lines = []
    for title, memory in UPDATE_STEPS:
        case = cases.step(memory).name
        step, alone = (
            results.value(plan.HVDLITE, UPDATING_RANKS, case, field, "update")
            for field in ("p50", "alone")
        )
        kept = results.values(plan.HVDLITE, UPDATING_RANKS, case, "speed_kept", "update")
        lines.append([title, milliseconds(step), milliseconds(alone), percent(kept)])
    return markdown(header, lines)


def held(results: Results, contestant, memory: str, ranks: int) -> Optional[float]:
    """Return the bytes that a host holds, as a multiple of the weights' bytes."""
    case = cases.update("resnet50", memory, "momentum")
    found = results.value(contestant, ranks, case.name, "held", f"held_{memory}")
    return found and found / case.nbytes


def held_table(results: Results) -> str:
    header = ["a host holds", *(f"p = {ranks}" for ranks in plan.HELD_RANKS)]
    lines = []
    for title, contestant, memory in HELD:
        values = [held(results, contestant, memory, ranks) for ranks in plan.HELD_RANKS]
        lines.append([title, *("–" if v is None else f"{v:.1f} S" for v in values)])
    return markdown(header, lines) if any(line[1:] != ["–"] * 4 for line in lines) else ""


def updates(results: Results) -> str:
    """Return the tables of docs/sharding.md."""
    tables = (
        update_table(results),
        update_floors(results),
        update_steps(results),
        held_table(results),
    )
    return "\n" + "\n\n".join(tables) + "\n"


def main() -> None:
    pages = {"benchmarks.md": texts, "sharding.md": lambda found: {"table": updates(found)}}
    parser = parser_of(__doc__)
    parser.add_argument("pages", nargs="*", default=list(pages), help="pages of docs/ (both)")
    found = Results(Kept(plan.KEPT).found)
    for page in parser.parse_args().pages:
        put(ROOT / "docs" / page, pages[page](found))


if __name__ == "__main__":
    main()

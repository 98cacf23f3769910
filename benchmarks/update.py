"""Average and update: the tables of docs/sharding.md, from what run.py has kept.

    make bench-update
    python -m benchmarks.update --page docs/sharding.md

A figure is the median over rounds of the median in a round, a ratio the median over rounds of the
ratio within a round. All systems run within a round, one after the other.
"""

from typing import Iterator, Optional, Tuple

from benchmarks import plan, suites
from benchmarks.harness import Kept, markdown, parser_of, show
from benchmarks.report import milliseconds, percent, times
from benchmarks.results import Results
from hvdlite.bench import cases

RANKS = 2
TITLES = {"lenet": "LeNet", "resnet50": "ResNet-50", "vgg16": "VGG-16", "bert-base": "BERT-base"}
RULES = {"momentum": "SGD, momentum", "adam": "Adam"}
SYSTEMS = [
    ("`ShardedTrainer`", plan.HVDLITE, "sharded"),
    ("`DistributedTrainer`", plan.HVDLITE, "trainer"),
    ("Horovod, tuned", plan.HOROVOD_TUNED, "trainer"),
    ("DDP and ZeRO, tuned", plan.ZERO_TUNED, "trainer"),
]
STEPS = [("`ShardedTrainer`", "sharded"), ("`DistributedTrainer`", "zero-copy")]
HELD = [
    ("`ShardedTrainer`", plan.HVDLITE, "sharded"),
    ("`DistributedTrainer`", plan.HVDLITE, "trainer"),
    ("Horovod", plan.HOROVOD, "trainer"),
    ("DDP and ZeRO", plan.ZERO, "trainer"),
]


def works() -> Iterator[Tuple[str, str, str]]:
    """Yield suite, model and optimizer of each line."""
    for suite, updated in suites.UPDATES.items():
        yield from ((suite, name, optimizer) for name, optimizer in updated)


def speed_table(results: Results) -> str:
    header = ["average and update, ms", *(title for title, _, _ in SYSTEMS)]
    lines = []
    for suite, name, optimizer in works():
        line = [f"{TITLES[name]}, {RULES[optimizer]}"]
        ours = cases.update(name, "sharded", optimizer).name
        for title, contestant, memory in SYSTEMS:
            case = cases.update(name, memory, optimizer).name
            text = milliseconds(results.value(contestant, RANKS, case, suite=suite))
            ratio = results.ratio(plan.HVDLITE, ours, contestant, case, RANKS, suite)
            line.append(text if title == SYSTEMS[0][0] else f"{text} ({times(ratio)})")
        lines.append(line)
    return markdown(header, lines)


def floor_table(results: Results) -> str:
    header = ["`ShardedTrainer`", "floor, ms", "measured", "share of the floor"]
    lines = []
    for suite, name, optimizer in works():
        case = cases.update(name, "sharded", optimizer)
        floor, taken, share = results.beside_floor(plan.HVDLITE, RANKS, case, suite)
        text = f"{TITLES[name]}, {RULES[optimizer]}"
        lines.append([text, milliseconds(floor), milliseconds(taken), percent(share)])
    return markdown(header, lines)


def step_table(results: Results) -> str:
    header = ["LeNet, 64 images a rank", "a step, ms", "lone processes", "speed kept"]
    lines = []
    for title, memory in STEPS:
        fields = ("p50", "alone", "speed_kept")
        case = cases.step(memory).name
        step, alone, kept = (
            results.value(plan.HVDLITE, RANKS, case, field, "update") for field in fields
        )
        lines.append([title, milliseconds(step), milliseconds(alone), percent(kept)])
    return markdown(header, lines)


def held(results: Results, contestant, memory: str, ranks: int) -> Optional[float]:
    """Return what a host holds, as multiples of the bytes of the weights."""
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


def page_of(results: Results) -> str:
    tables = speed_table(results), floor_table(results), step_table(results), held_table(results)
    return "\n" + "\n\n".join(tables) + "\n"


def main() -> None:
    args = parser_of(__doc__).parse_args()
    show(page_of(Results(Kept(plan.KEPT).found)), args.page)


if __name__ == "__main__":
    main()

"""Which cases are measured together in one process."""

from typing import List

from hvdlite.bench import cases
from hvdlite.bench.cases import Case, parse_size

SIZES = [parse_size(text) for text in ("4K", "64K", "1M", "4M", "16M", "64M", "400MB")]
LARGE = [size for size in SIZES if size >= 2**20]


def speed() -> List[Case]:
    """What the report shows; what takes longest comes last, should there be no time left for it."""
    return [
        *cases.sweep(["allreduce"], SIZES[:-1], ["float32"], "private"),
        *cases.sweep(["allreduce"], LARGE[:-1], ["float32"], "zero-copy"),
        *(cases.tiny(memory) for memory in ("private", "trainer")),
        *(cases.step(memory) for memory in ("trainer", "zero-copy")),
        *(cases.model("resnet50", memory) for memory in ("private", "trainer", "zero-copy")),
        *(cases.one_array("allreduce", SIZES[-1], memory=m) for m in ("private", "zero-copy")),
    ]


UPDATES = {
    "update": [("lenet", "momentum"), ("resnet50", "momentum"), ("resnet50", "adam")],
    "update_large": [("vgg16", "momentum"), ("bert-base", "adam")],
}


def updates(suite: str) -> List[Case]:
    """Average and update of all parameters by each trainer."""
    trainers = ("trainer", "sharded")
    return [cases.update(n, memory, o) for n, o in UPDATES[suite] for memory in trainers]


def update() -> List[Case]:
    """The same, and training steps."""
    return [*updates("update"), *(cases.step(memory) for memory in ("zero-copy", "sharded"))]


def small() -> List[Case]:
    """One of each sort, in a moment: to see whether a library works."""
    memories = ("private", "trainer", "zero-copy")
    reduced = [cases.one_array("allreduce", 4096, memory=memory) for memory in memories]
    return [*reduced, cases.step("trainer"), cases.step("zero-copy")]


SUITES = {
    "small": small,
    "speed": speed,
    # The gradients of one model in the way that training has them.
    "memory": lambda: [cases.model("resnet50", "trainer")],
    "memory_zero_copy": lambda: [cases.model("resnet50", "zero-copy")],
    "update": update,
    "update_large": lambda: updates("update_large"),
    # One update: what a host holds for it.
    "held_trainer": lambda: [cases.update("resnet50", "trainer", "momentum")],
    "held_sharded": lambda: [cases.update("resnet50", "sharded", "momentum")],
}

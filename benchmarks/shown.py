"""What the report compares: which work of hvdlite with which of its peers."""

from typing import NamedTuple

from benchmarks import plan
from benchmarks.plan import HOROVOD, HOROVOD_TUNED, HVDLITE
from hvdlite.bench import cases


class Row(NamedTuple):
    """One work of the main table.

    :ivar ours: the case of hvdlite.
    :ivar theirs: that of Horovod.
    :ivar plain: that of those that have no trainers.
    """

    text: str
    brief: str
    ours: str
    theirs: str
    plain: str


def private(size: str) -> str:
    return cases.one_array("allreduce", cases.parse_size(size)).name


def _same(text: str, brief: str, case: str) -> Row:
    return Row(text, brief, case, case, case)


ROWS = [
    _same("4 KiB", "4 KiB", private("4K")),
    _same("64 KiB", "64 KiB", private("64K")),
    _same("64 MiB", "64 MiB", private("64M")),
    _same("400 MB", "400 MB", private("400MB")),
    _same(
        "ResNet-50, `allreduce_` one by one", "ResNet-50,\none by one", cases.model("resnet50").name
    ),
    Row(
        "ResNet-50, zero-copy, `trainer.allreduce_grads()`",
        "ResNet-50,\nzero-copy",
        cases.model("resnet50", "zero-copy").name,
        cases.model("resnet50", "trainer").name,
        cases.model("resnet50").name,
    ),
    _same(
        "500 arrays of 16 floats, `allreduce_` one by one",
        "500 arrays of\n16 floats",
        cases.tiny().name,
    ),
    Row(
        "500 arrays of 16 floats, `trainer.allreduce_grads()`",
        "500 arrays,\nby trainer",
        cases.tiny("trainer").name,
        cases.tiny("trainer").name,
        cases.tiny().name,
    ),
]
STEP, STEP_SHARED = cases.step("trainer").name, cases.step("zero-copy").name
STEPS = [
    ("hvdlite, zero-copy", HVDLITE, STEP_SHARED), ("hvdlite", HVDLITE, STEP),
    ("Horovod", HOROVOD, STEP), ("Horovod, tuned", HOROVOD_TUNED, STEP),
    ("parameter server", plan.PS, STEP), ("parameter server, tuned", plan.PS_TUNED, STEP),
]  # fmt: skip

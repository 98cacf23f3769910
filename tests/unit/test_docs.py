"""What docs/ says is true: Horovod's names, names of tests, public names, examples and links."""

import inspect
import json
import os
import re
from pathlib import Path

import pytest
from jobs import alone
from test_architecture import MODULES, ROOMS
from test_modules import FLOORS, module_name

import hvdlite as hvd
from hvdlite.core import reduce_ops

TESTS = Path(__file__).resolve().parents[1]
DOCS = TESTS.parent / "docs"

# The public names and parameters of horovod.mxnet 0.28.1; hvdlite must have the same defaults.
HOROVOD = """
init(comm=None, process_sets=None)
shutdown() is_initialized() rank() size()
local_rank() local_size() cross_rank() cross_size()
start_timeline(file_path, mark_cycles=False) stop_timeline()
mpi_threads_supported() mpi_built() mpi_enabled() gloo_built() gloo_enabled()
nccl_built() ddl_built() ccl_built() cuda_built() rocm_built()

ProcessSet(ranks_or_comm) global_process_set
add_process_set(process_set) remove_process_set(process_set)

Average Sum Min Max Product Adasum
allreduce(tensor, average=None, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0,
    process_set=hvd.global_process_set, op=None)
allreduce_(tensor, average=None, name=None, priority=0, prescale_factor=1.0, postscale_factor=1.0,
    process_set=hvd.global_process_set, op=None)
grouped_allreduce(tensors, average=None, name=None, priority=0, prescale_factor=1.0,
    postscale_factor=1.0, process_set=hvd.global_process_set, op=None)
grouped_allreduce_(tensors, average=None, name=None, priority=0, prescale_factor=1.0,
    postscale_factor=1.0, process_set=hvd.global_process_set, op=None)
allgather(tensor, name=None, priority=0, process_set=hvd.global_process_set)
grouped_allgather(tensors, name=None, priority=0, process_set=hvd.global_process_set)
broadcast(tensor, root_rank, name=None, priority=0, process_set=hvd.global_process_set)
broadcast_(tensor, root_rank, name=None, priority=0, process_set=hvd.global_process_set)
alltoall(tensor, splits=None, name=None, priority=0, process_set=hvd.global_process_set)
reducescatter(tensor, op=hvd.Average, name=None, priority=0, process_set=hvd.global_process_set,
    prescale_factor=1.0, postscale_factor=1.0)
grouped_reducescatter(tensors, op=hvd.Average, name=None, priority=0,
    process_set=hvd.global_process_set, prescale_factor=1.0, postscale_factor=1.0)

broadcast_object(obj, root_rank=0, name=None) allgather_object(obj, name=None)
Compression Compression.none.compress(tensor) Compression.none.decompress(tensor, ctx)
Compression.fp16.compress(tensor) Compression.fp16.decompress(tensor, ctx)

DistributedOptimizer(optimizer, gradient_predivide_factor=1.0, num_groups=0,
    process_set=hvd.global_process_set)
DistributedTrainer(params, optimizer, optimizer_params=None, compression=hvd.Compression.none,
    gradient_predivide_factor=1.0, prefix=None, num_groups=0, process_set=hvd.global_process_set)
broadcast_parameters(params, root_rank=0, prefix=None)
"""
SIGNATURES = dict(re.findall(r"([\w.]+)(?:\((.*?)\))?\s", HOROVOD, re.S))


def split(parameters: str) -> list:
    return [p.strip() for p in parameters.split(",")] if parameters else []


# Several tests check what this code prints. It runs in a new process, because it imports MXNet.
LOOK = r"""
import inspect, json, re, reference, sys, hvdlite as hvd
from pathlib import Path
from test_docs import arguments, constructor

def parameters(name):
    value = hvd
    for part in name.split("."):
        value = getattr(value, part)
    if inspect.isclass(value):
        value = constructor(value)
    return arguments(value) if inspect.isroutine(value) else []

EVERYWHERE = {"name", "priority", "process_set", "out"}  # the introductions describe these

def untold(value):
    doc = inspect.getdoc(value) or ""
    function = constructor(value) if inspect.isclass(value) else value
    if "as for :class:" in doc or ":func:" in doc or not inspect.isroutine(function):
        return [] if doc else ["what it is"]
    names = {argument.partition("=")[0].lstrip("*") for argument in arguments(function)}
    names -= {name for name in names if re.search(rf"\b{name}\b", doc)}
    return sorted(names - EVERYWHERE - {""})

folder = Path(sys.argv[2])
reference.write(folder)
shown = [re.findall(r"^[.][.] auto\w+:: hvdlite[.]([\w.]+)$", page.read_text(), re.M)
         for page in folder.glob("*.rst")]
public = [name for names in hvd._DEFINED_IN.values() for name in names]
values = {name: getattr(hvd, name) for name in public}
values.update({f"numpy.{n}": getattr(hvd.numpy, n) for n in reference.numpy_functions()})
print(json.dumps({
    "parameters": {name: parameters(name) for name in json.loads(sys.argv[1])},
    "shown": sum(shown, []),
    "public": public,
    "untold": {name: untold(value) for name, value in values.items() if untold(value)},
}))
"""


def default(parameter) -> str:
    value = parameter.default
    if parameter.name == "op" and isinstance(value, int):
        return f"hvd.{reduce_ops.NAMES[value]}"
    if value is hvd.Compression.none:
        return "hvd.Compression.none"
    return "hvd.global_process_set" if value is hvd.global_process_set else repr(value)


def arguments(function) -> list:
    texts, star = [], False
    for p in inspect.signature(function).parameters.values():
        if p.name in ("self", "cls"):
            continue
        if p.kind == p.KEYWORD_ONLY and not star:
            texts.append("*")
            star = True
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        star = star or prefix == "*"
        shown = "" if p.default is p.empty else f"={default(p)}"
        texts.append(f"{prefix}{p.name}{shown}")
    return texts


def constructor(kind):
    return next((vars(kind)[name] for name in ("__new__", "__init__") if name in vars(kind)), None)


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """Return the values that LOOK prints; LOOK fails if hvdlite lacks a name of Horovod."""
    path = os.pathsep.join(map(str, (DOCS, TESTS, TESTS / "unit")))
    given = json.dumps(list(SIGNATURES)), str(tmp_path_factory.mktemp("reference"))
    return json.loads(alone(LOOK, *given, PYTHONPATH=path).splitlines()[-1])


@pytest.mark.parametrize("name", SIGNATURES)
def test_functions_begin_with_horovods_parameters(name, found):
    theirs, ours = split(SIGNATURES[name]), found["parameters"][name]
    assert ours[: len(theirs)] == theirs
    for more in ours[len(theirs) :]:
        assert "=" in more or more == "*", f"{more} has no default"


def tables() -> list:
    """Return the rows of docs/horovod.md for MXNet; tests/frameworks checks the other tables."""
    page = (DOCS / "horovod.md").read_text(encoding="utf-8")
    page = page.partition("\n## The names of the other frameworks\n")[0]
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("|")]
    return [row for row in rows if not set("".join(row)) <= set("-")]


def test_the_docs_list_every_name_of_horovod():
    named = []
    for row in tables():
        if len(row) == 3 and row[0].strip().startswith("`"):
            named += re.findall(r"`(\w+)`", row[0])
    assert len(named) == len(set(named))
    assert set(named) == {name.partition(".")[0] for name in SIGNATURES}


def test_every_row_of_the_horovod_table_names_a_test():
    rows = [row for row in tables() if row[-1].strip() != "shown by"]
    assert len(rows) > 50
    for row in rows:
        assert re.search(r"`[\w/]+\.py::test_\w+`", row[-1]), row


def test_tests_that_the_docs_name_exist():
    for page in DOCS.glob("*.md"):
        for file, test in re.findall(r"([\w/]+\.py)::(\w+)", page.read_text(encoding="utf-8")):
            assert f"\ndef {test}(" in (TESTS / file).read_text(encoding="utf-8"), (page.name, test)


def test_every_public_name_is_on_one_page_of_the_reference(found):
    shown = found["shown"]
    assert len(shown) == len(set(shown))
    assert set(found["public"]) < set(shown)
    assert "numpy.allreduce" in shown


def test_docstrings_describe_every_parameter(found):
    assert found["untold"] == {}


TRIED = """
import doctest, importlib, sys
for name in sys.argv[1:]:
    assert not doctest.testmod(importlib.import_module(name)).failed, name
"""


def test_examples_in_docstrings_are_true():
    """Left out: hvdlite.torch and hvdlite.xgboost, whose examples need other environments."""
    own = [m for m in MODULES if m.parent.name not in ("torch", "xgboost")]
    names = [module_name(m) for m in own if ">>> " in m.read_text(encoding="utf-8")]
    assert len(names) > 20
    alone(TRIED, *names)


def test_the_picture_in_design_md_has_the_layers_in_the_enforced_order():
    picture = (DOCS / "design.md").read_text(encoding="utf-8").split("```")[1]
    python, c = re.split(r"\n-----.*\nhvdlite/csrc/\n", picture)
    python = python.replace("hvdlite/", " " * 8)
    names = [
        re.findall(r"^ {2,8}((?:[a-z_]+(?:/|\.py|\.h) ?)+) ", part, re.M) for part in (python, c)
    ]
    modules, rooms = ([w.rstrip("/").partition(".")[0] for w in " ".join(n).split()] for n in names)
    assert ["" if room == "hvd" else room for room in rooms] == ROOMS[::-1]
    floor_of = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    floors = [floor_of.pop(name) for name in modules]
    assert floors == sorted(floors, reverse=True)
    assert set(floor_of) == {"as_horovod", "__main__", "_build"}


def anchors(page: Path) -> set:
    """Return the anchors of a page's headings, as GitHub and the documentation site name them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_have_targets():
    pages = [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]
    assert len(pages) > 12
    for page in pages:
        for link in re.findall(r"\]\(([^):]+)\)", page.read_text(encoding="utf-8")):
            file, _, anchor = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("example", ["mnist", "module_mnist", "imagenet", "make_records"])
def test_examples_import_hvdlite_before_mxnet_for_numpy_2(example):
    """With NumPy 2, MXNet 1 can only be imported after hvdlite."""
    text = (TESTS.parent / "examples" / f"{example}.py").read_text(encoding="utf-8")
    imported = re.findall(r"^(?:import|from) (hvdlite|mxnet)\b", text, re.M)
    assert imported[0] == "hvdlite" and "mxnet" in imported

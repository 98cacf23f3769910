"""The examples; which modules import which frameworks; training when a rank is killed."""

import importlib.util
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
from jobs import ROOT, TESTS, alone, assert_passed, mpirun
from places import results_without, start_ranks


class Example(NamedTuple):
    library: str  # the library that the program needs
    ending: str  # the last line that the program prints
    accuracy: float  # the accuracy must be above this
    accuracy_alone: float = 0  # the same for one process without hvdlite
    arguments: tuple = ()
    arguments_alone: tuple = ()


EXAMPLES = {
    "pytorch_mnist": Example(
        "torch", r"^[\d,]+ images/s, accuracy (\S+), \S+ s, ranks: (\d+)$", 0.9, 0,
        ("--epochs", "10"), ("--epochs", "2"),
    ),
    "keras_mnist": Example(
        "keras", r"^\w+: [\d,]+ images/s, accuracy (\S+), ranks: (\d+)$", 0.92, 0.92,
        ("--epochs", "6"),
    ),
    "xgboost_libsvm": Example(
        "xgboost", r"^30 rounds, accuracy (\S+), \S+ s, ranks: (\d+)$", 0.93, 0.93
    ),
}  # fmt: skip


@pytest.fixture(params=EXAMPLES)
def name(request) -> str:
    if importlib.util.find_spec(EXAMPLES[request.param].library) is None:
        pytest.skip(f"{EXAMPLES[request.param].library} is not installed")
    return request.param


def test_each_example_learns_on_two_ranks(name):
    example = EXAMPLES[name]
    job = assert_passed(mpirun(2, f"examples/{name}.py", *example.arguments, timeout=250))
    print(job.output)
    ((accuracy, shown),) = re.findall(example.ending, job.output, re.M)
    assert float(accuracy) > example.accuracy and int(shown) == 2


def test_an_example_without_lines_marked_hvdlite_trains_on_one_process(name, tmp_path):
    example = EXAMPLES[name]
    lines = (ROOT / "examples" / f"{name}.py").read_text().splitlines(keepends=True)
    alone = "".join(line for line in lines if not line.endswith("# hvdlite\n"))
    assert "hvd." not in alone.split('"""')[2]
    assert 4 <= len(lines) - alone.count("\n") <= 9
    (tmp_path / "alone.py").write_text(alone)
    command = [sys.executable, str(tmp_path / "alone.py"), *example.arguments_alone]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stderr
    ((accuracy, _),) = re.findall(example.ending, ended.stdout, re.M)
    assert float(accuracy) > example.accuracy_alone


# ---- hvdlite imports no framework, even if all are installed ----

FRAMEWORKS = ("torch", "tensorflow", "keras", "jax", "xgboost", "lightgbm")


@pytest.mark.parametrize("module", ["hvdlite", "hvdlite.numpy", "hvdlite.launch.cli"])
def test_hvdlite_imports_no_framework(module):
    code = f"import {module}, sys; print(*[f for f in {FRAMEWORKS} if f in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=99)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == []


def test_hvdlite_bench_without_mxnet_names_the_omitted_cases():
    bench = ["-m", "hvdlite", "bench", "--seconds=0.01", "--sizes=4K", "--idle=0"]
    job = assert_passed(mpirun(2, *bench))
    assert "not installed, so not measured: mxnet\n" in job.output
    assert "numpy    allreduce private" in job.output


# ---- ranks are killed and training goes on ----

MODELS = str(TESTS / "scripts" / "elastic_models.py")


@pytest.mark.parametrize("dead, where", [(0, "after backward"), (1, "in backward")])
def test_survivors_go_on_with_torch_from_the_last_commit(dead, where):
    results = results_without({dead}, start_ranks(3, MODELS, "torch", str(dead), "5", where))
    # A rank that died after backward may have sent all gradients: then the others commit the step.
    commits = [[0, 4]] if where == "in backward" else [[0, 4], [0, 6]]
    for result in results.values():
        assert result["went_on"] in commits
        assert result["size"] == 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend, dead", [("tensorflow", 0), ("jax", 2)])
def test_survivors_go_on_with_keras_fit_from_the_last_commit(backend, dead):
    """A rank is killed after batch 3 of the second epoch; every second batch is committed.

    With TensorFlow and JAX, a compiled graph raises the survivors' error. The test takes 25 s.
    """
    ended = start_ranks(
        3, MODELS, "keras", str(dead), "7", "", timeout=500, env={"KERAS_BACKEND": backend}
    )
    for result in results_without({dead}, ended).values():
        assert result == {"went_on": [[0, 0], [1, 2]], "size": 2}


ALONE = """
import numpy, hvdlite, hvdlite.jax, hvdlite.torch, hvdlite.tensorflow, hvdlite.keras, torch
from hvdlite import lightgbm, xgboost
for hvd in (hvdlite.jax, hvdlite.torch, hvdlite.tensorflow, hvdlite.keras):
    hvd.init()
    make = torch.ones if hvd is hvdlite.torch else numpy.ones
    print("ALONE", hvd.size(), numpy.asarray(hvd.allreduce(make(1), op=hvdlite.Sum)))
xgboost.rabit.init()
print("ALONE", xgboost.rabit.get_world_size(), lightgbm.network_parameters()["num_machines"])
xgboost.rabit.finalize()
"""


def test_one_process_needs_no_libmpi():
    """mpi4py is installed, but its MPI library is missing."""
    done = alone(ALONE, MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert re.findall("^ALONE (.*)", done, re.M) == ["1 [1.]"] * 4 + ["1 1"], done

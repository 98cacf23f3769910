"""Run tests/contract and tests/frameworks/parallel in MPI jobs of 1 to 4 ranks.

All libraries send through hvdlite.numpy, which tests/test_parallel.py tests on 1 to 4 ranks.
Keras and TensorFlow share a job, because importing TensorFlow takes longer than most of their
tests. PyTorch and JAX have separate jobs.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Sequence

import pytest
from jobs import (
    MPI_SETTINGS,
    ROOT,
    assert_blocks_run,
    assert_passed,
    assert_program_learns,
    mpirun,
    rank_commands,
    whole_program,
)

FILES = sorted((Path(__file__).parent / "parallel").glob("test_*.py"))
TOGETHER = {
    "torch": ("torch",),
    "tensorflow": ("keras", "tensorflow"),
    "keras": ("keras",),
    "jax": ("jax",),
}

# On one rank, libraries skip some of their work; other tests of the contract do not see that.
ON_ONE = [f"tests/contract/test_{name}.py" for name in ("guards", "saved", "trainers", "verbs")]

# All tests run on 2 ranks. On 3 ranks, averages are rounded, and a process set may be neither one
# rank nor all.
ON_THREE = ["tests/contract/test_guards.py"]
ON_THREE += [
    f"tests/contract/test_trainers.py::test_{name}"
    for name in (
        "training_equals_one_process_on_the_joined_batch",
        "a_layer_that_only_some_ranks_use_is_updated_on_all_ranks",
        "ranks_with_fewer_batches_may_join_early",
        "only_ranks_of_a_process_set_train_together",
        "two_process_sets_can_train_two_different_networks",
    )
]
ON_THREE += [
    f"tests/contract/test_verbs.py::test_{name}"
    for name in (
        "gradients_equal_finite_differences",
        "only_ranks_of_the_process_set_take_part",
        "averages_count_only_ranks_that_have_not_joined",
        "unnamed_calls_match_again_after_all_ranks_have_joined",
    )
]
OF_GROUPS = [  # process groups of PyTorch, in which two ranks may behave differently from three
    "tests/contract/test_prepared.py",
    *(
        f"tests/frameworks/parallel/test_torch_{name}.py"
        for name in ("arguments", "backend", "delegate", "groups", "messages", "parts")
    ),
]

OF_JAX = ("refusals", "trainers", "verbs")

CONTRACT_OF = {
    "torch": ("numpy torch", "tests/contract"),
    "tensorflow": ("tensorflow keras", "tests/contract"),
    "keras": ("keras", "tests/contract/test_trainers.py"),
    "jax": ("jax", " ".join(f"tests/contract/test_{x}.py" for x in OF_JAX)),
}

pytestmark = pytest.mark.timeout(1000)  # each job has a shorter time limit


def framework_of(file: Path) -> str:
    return file.stem.split("_")[1]


def files_of(framework: str) -> list:
    return [str(f.relative_to(ROOT)) for f in FILES if framework_of(f) in TOGETHER[framework]]


def passed(framework: str, ranks: int, only: Sequence[str] = (), **env: str) -> None:
    libraries, contract = CONTRACT_OF[framework]
    env["CONTRACT_OF"] = libraries
    run = rank_commands(only or [*contract.split(), *files_of(framework)])
    job = assert_passed(mpirun(ranks, *run, timeout=900, env=env))
    for line in job.output.splitlines():
        if "PARITY" in line or " passed" in line:
            print(f"{framework}, {ranks} ranks: {line}")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_files_of_a_framework_pass_on_several_ranks(framework, ranks):
    of_groups = OF_GROUPS if framework == "torch" else []
    only = {1: [*ON_ONE, *files_of(framework)], 2: [], 3: [*ON_THREE, *of_groups]}
    passed(framework, ranks, only[ranks])


def test_gpu_tensors_are_delegated_to_gloo_on_4_ranks():
    passed("torch", 4, ["tests/frameworks/parallel/test_torch_delegate.py"])


@pytest.mark.parametrize("ranks", [1, 4])  # 4: a mesh of 2 x 2 ranks
def test_jax_files_pass_on_several_ranks(ranks):
    passed("jax", ranks)


def test_every_framework_test_file_is_run():
    assert {framework_of(file) for file in FILES} == {*TOGETHER}


@pytest.mark.parametrize("backend", ["torch", "jax"])
def test_keras_tests_pass_on_other_backends(backend):
    """Other tests use TensorFlow, the default backend."""
    passed("keras", 2, KERAS_BACKEND=backend)


# test_commands_of_the_docs_pages_run tests the program for PyTorch
@pytest.mark.parametrize("framework", ["keras", "xgboost"])
def test_the_whole_program_of_the_docs_learns(framework, tmp_path):
    assert_program_learns(framework, tmp_path)


@pytest.mark.parametrize("pages", ["pytorch backend", "tensorflow", "trees", "jax"])
def test_the_python_code_of_each_page_runs(pages, tmp_path):
    assert assert_blocks_run(pages, tmp_path) > 0


START = (
    r"(?:[A-Z_]+=\S+ )?(?:python|mpirun|torchrun|hvdlite run|hvdliterun) [^#\n]*?train\.py[^#\n]*"
)
# Commands that need other hosts, MXNet's servers or a second terminal.
MORE = re.compile(r" -H | -s |--nnodes|--kvstore|RANK=|--as-horovod")


def commands() -> set:
    """Return the pages' commands that start train.py on one host, with 2 ranks, no arguments."""
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    lines = [re.findall(rf"^(?:    )?(?:\$ )?({START})", page.read_text(), re.M) for page in pages]
    here = [line for line in sum(lines, []) if not MORE.search(line)]
    return {
        re.sub(r"(-n|-node) \d", r"\1 2", line.split("train.py")[0]) + "train.py" for line in here
    }


# These commands run the whole program. All other commands test only the launcher: they run COUNTED.
WHOLE = re.compile("(|mpirun -n 2 |hvdliterun -n 2 )python train.py|torchrun.*")
COUNTED = """
import numpy, hvdlite as hvd
hvd.init()
total = hvd.numpy.allreduce(numpy.ones(1), op=hvd.Sum)
if hvd.rank() == 0: print(f"epoch 2: accuracy 0.9, ranks: {total[0]:.0f}")
"""


@pytest.mark.parametrize("command", sorted(commands()))
def test_commands_of_the_docs_pages_run(command, tmp_path):
    code = whole_program("torch") if WHOLE.fullmatch(command) else COUNTED
    (tmp_path / "train.py").write_text(code)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, shell=True, cwd=tmp_path, env={**os.environ, **MPI_SETTINGS, "PATH": path},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    ranks = 2 if " 2 " in command else r"\d"
    assert re.search(rf"epoch 2: accuracy 0\.9\d*, ranks: {ranks}\n", done.stdout), done

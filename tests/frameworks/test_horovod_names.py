"""Names of Horovod for PyTorch, TensorFlow and Keras: the tables of docs/horovod.md are true."""

import json
import re

import pytest
from jobs import ROOT, alone

PAGES = {
    "torch": "pytorch.md",
    "tensorflow": "tensorflow.md",
    "keras": "tensorflow.md",
    "tensorflow.keras": "tensorflow.md",
}
# One process imports all modules; each test checks a part of its findings.
LOOK = """
import importlib, inspect, json, sys
from hvdlite import keras, tensorflow, torch
from hvdlite.core.lazy_names import NEUTRAL

def there(module, name):
    module = importlib.import_module(f"hvdlite.{module}")
    return getattr(module, name, None) is not None and name in dir(module)

tables, lines = json.loads(sys.argv[1])
names = [(each, n) for each in (keras, tensorflow, torch) for n in {*each.__all__} - {*NEUTRAL}]
found = {
    "there": {m: {n: there(m, n) for n in names} for m, names in tables.items()},
    "untold": [f"{each.__name__} {n}" for each, n in names if not inspect.getdoc(getattr(each, n))],
    "failed": {},
}

import hvdlite.as_horovod
for line in lines:
    try:
        exec(line, {})
    except Exception as error:
        found["failed"][line] = f"{type(error).__name__}: {error}"
from horovod.common.util import gpu_available
found["gpu"] = [gpu_available("torch"), gpu_available("tensorflow")]
found["cuda"] = __import__("torch").cuda.is_available()
print(json.dumps(found))
"""
pytestmark = pytest.mark.xdist_group("names")


def tables() -> dict:
    """Return module -> "same", "differs" or "missing" -> names, from the tables of the page."""
    page = (ROOT / "docs" / "horovod.md").read_text(encoding="utf-8")
    found: dict = {}
    for line in page.splitlines():
        head = re.match(r"\| `horovod\.([\w.]+)` \| names \|", line)
        row = re.match(r"\| (same|differs|missing) \| (.*) \|", line)
        if head:
            module = found[head[1]] = {}
        elif row:
            module[row[1]] = re.findall(r"`(\w+)`", row[2])
    return found


@pytest.fixture(scope="module")
def found() -> dict:
    names = {module: sum(rows.values(), []) for module, rows in tables().items()}
    rows = [line.split() for line in IMPORTS.strip().splitlines()]
    lines = [f"import horovod.{module}" for module, *_ in rows]
    lines += [f"from horovod.{row[0]} import {', '.join(row[1:])}" for row in rows if row[1:]]
    lines += ["from horovod import run", *(f"import {name}" for name in ABSENT)]
    said = alone(LOOK, json.dumps([names, lines]), TF_CPP_MIN_LOG_LEVEL="3")
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("module", PAGES)
def test_the_table_of_horovods_names_is_true(module, found):
    rows = tables()[module]
    assert rows.keys() == {"same", "differs", "missing"}
    names = sum(rows.values(), [])
    assert len(names) == len(set(names)) > 30
    wrong = [name for name in names if found["there"][module][name] == (name in rows["missing"])]
    assert not wrong, f"docs/horovod.md is wrong about {', '.join(wrong)} of hvdlite.{module}"


@pytest.mark.parametrize("module", PAGES)
def test_a_table_row_explains_each_name_that_differs_from_horovods(module):
    page = (ROOT / "docs" / PAGES[module]).read_text(encoding="utf-8")
    described = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| "))
    names = tables()[module]["differs"]
    assert names
    wrong = [name for name in names if not re.search(rf"`({name}|{name}\.\w+)`", described)]
    assert not wrong, f"docs/{PAGES[module]} has no row of {', '.join(wrong)}"


# Imports in programs for Horovod; tests/test_as_horovod.py has those of horovod.mxnet.
IMPORTS = """
common
common.basics HorovodBasics
common.elastic State ObjectState run
common.exceptions HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError
common.exceptions get_version_mismatch_message
common.process_sets ProcessSet global_process_set add_process_set remove_process_set
common.util check_extension gloo_built mpi_built nccl_built env is_iterable split_list
common.util num_rank_is_power_2 extension_available is_version_greater_equal_than
data BaseDataLoader AsyncDataLoaderMixin
data.data_loader_base BaseDataLoader AsyncDataLoaderMixin
keras callbacks
keras.callbacks LearningRateWarmupCallback
keras.elastic KerasState CommitStateCallback
run run
runner run
runner.launch run_commandline
tensorflow
tensorflow.compression Compression
tensorflow.elastic run TensorFlowKerasState TensorFlowState
tensorflow.functions broadcast_object broadcast_variables allgather_object
tensorflow.keras callbacks
tensorflow.keras.callbacks BroadcastGlobalVariablesCallback MetricAverageCallback
tensorflow.keras.elastic UpdateBatchStateCallback UpdateEpochStateCallback
tensorflow.mpi_ops rank_op size_op local_rank_op
tensorflow.sync_batch_norm SyncBatchNormalization
tensorflow.util vars_to_refs refs_to_vars
torch allreduce mpi_ops elastic
torch.compression Compression
torch.elastic run TorchState ElasticSampler
torch.elastic.sampler ElasticSampler
torch.elastic.state TorchState
torch.functions broadcast_parameters broadcast_optimizer_state broadcast_object allgather_object
torch.mpi_ops allreduce allreduce_async_ synchronize poll size rank Average Adasum Sum rocm_built
torch.mpi_ops gpu_available
torch.optimizer DistributedOptimizer
torch.sync_batch_norm SyncBatchNorm
"""
ABSENT = ("horovod.spark", "horovod.ray", "horovod.tensorflow.data")


def test_lines_that_import_horovod_work(found):
    failed = found["failed"]
    assert sorted(failed) == sorted(f"import {name}" for name in ABSENT)
    for line, text in failed.items():
        assert text.startswith(f"ModuleNotFoundError: no {line[7:]}: ") and "hvdliterun" in text


def test_gpu_available_is_true_only_for_pytorch_with_a_gpu(found):
    assert found["gpu"] == [found["cuda"], False]


def test_every_public_name_of_a_framework_has_a_docstring(found):
    """docs/reference.md lists only names with a docstring."""
    assert found["untold"] == []

"""The tables of docs/horovod.md for PyTorch, TensorFlow and Keras: are those names there?"""

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
LOOK = """
import importlib, json, sys

def there(module, name):
    module = importlib.import_module(f"hvdlite.{module}")
    return getattr(module, name, None) is not None and name in dir(module)

tables = json.loads(sys.argv[1])
print(json.dumps({m: {n: there(m, n) for n in names} for m, names in tables.items()}))
"""


def tables() -> dict:
    """The names of each module under each of same, differs and missing."""
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
def there() -> dict:
    names = {module: sum(rows.values(), []) for module, rows in tables().items()}
    return json.loads(alone(LOOK, json.dumps(names), TF_CPP_MIN_LOG_LEVEL="3").splitlines()[-1])


@pytest.mark.parametrize("module", PAGES)
def test_names_are_there_or_are_not_as_the_table_says(module, there):
    rows = tables()[module]
    assert rows.keys() == {"same", "differs", "missing"}
    names = sum(rows.values(), [])
    assert len(names) == len(set(names)) > 30
    wrong = [name for name in names if there[module][name] == (name in rows["missing"])]
    assert not wrong, f"docs/horovod.md on hvdlite.{module}: not so of {', '.join(wrong)}"


@pytest.mark.parametrize("module", PAGES)
def test_a_name_that_differs_has_a_row_that_says_how(module):
    page = (ROOT / "docs" / PAGES[module]).read_text(encoding="utf-8")
    described = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| "))
    names = tables()[module]["differs"]
    assert names
    wrong = [name for name in names if not re.search(rf"`({name}|{name}\.\w+)`", described)]
    assert not wrong, f"docs/{PAGES[module]} has no row of {', '.join(wrong)}"


# What programs for Horovod import of it, beside horovod.mxnet (tests/test_as_horovod.py).
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
TRY = """
import json, sys
import hvdlite.as_horovod
failed = {}
for line in json.loads(sys.argv[1]):
    try:
        exec(line, {})
    except Exception as error:
        failed[line] = f"{type(error).__name__}: {error}"
print(json.dumps(failed))
"""


def test_lines_that_import_horovod_work():
    rows = [line.split() for line in IMPORTS.strip().splitlines()]
    every = [f"import horovod.{module}" for module, *_ in rows]
    every += [f"from horovod.{row[0]} import {', '.join(row[1:])}" for row in rows if row[1:]]
    every += ["from horovod import run", *(f"import {name}" for name in ABSENT)]
    failed = json.loads(alone(TRY, json.dumps(every), TF_CPP_MIN_LOG_LEVEL="3").splitlines()[-1])
    assert sorted(failed) == sorted(f"import {name}" for name in ABSENT)
    for line, text in failed.items():
        assert text.startswith(f"ModuleNotFoundError: no {line[7:]}: ") and "hvdliterun" in text

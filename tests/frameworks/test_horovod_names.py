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


# What programs for Horovod import, beside horovod.mxnet (tests/test_as_horovod.py).
IMPORTS = """
from horovod import run
import horovod
import horovod.common
from horovod.common.basics import HorovodBasics
from horovod.common.elastic import State, ObjectState, run
import horovod.common.elastic
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt
from horovod.common.exceptions import get_version_mismatch_message, HorovodVersionMismatchError
from horovod.common.process_sets import ProcessSet, global_process_set, add_process_set
from horovod.common.process_sets import remove_process_set
from horovod.common.util import check_extension, gloo_built, mpi_built, nccl_built, env, is_iterable
from horovod.common.util import split_list, num_rank_is_power_2, extension_available
from horovod.common.util import is_version_greater_equal_than
from horovod.data import BaseDataLoader, AsyncDataLoaderMixin
from horovod.data.data_loader_base import BaseDataLoader, AsyncDataLoaderMixin
from horovod.keras import callbacks
import horovod.keras as hvd
from horovod.keras.callbacks import LearningRateWarmupCallback
from horovod.run import run
import horovod.run
from horovod.runner import run
import horovod.runner
from horovod.runner.launch import run_commandline
import horovod.tensorflow as hvd
from horovod.tensorflow.compression import Compression
from horovod.tensorflow.functions import broadcast_object, broadcast_variables, allgather_object
from horovod.tensorflow.keras import callbacks
import horovod.tensorflow.keras as hvd
from horovod.tensorflow.keras.callbacks import BroadcastGlobalVariablesCallback
from horovod.tensorflow.keras.callbacks import MetricAverageCallback
import horovod.tensorflow.keras.callbacks
from horovod.tensorflow.mpi_ops import rank_op, size_op, local_rank_op
from horovod.tensorflow.sync_batch_norm import SyncBatchNormalization
from horovod.tensorflow.util import vars_to_refs, refs_to_vars
from horovod.torch import allreduce, mpi_ops
import horovod.torch as hvd
import horovod.torch as hvd; hvd.elastic.run; hvd.elastic.TorchState; hvd.mpi_ops.allreduce
from horovod.torch.compression import Compression
from horovod.torch.elastic import run, TorchState, ElasticSampler
from horovod.tensorflow.elastic import run, TensorFlowKerasState, TensorFlowState
from horovod.keras.elastic import KerasState, CommitStateCallback
from horovod.tensorflow.keras.elastic import UpdateBatchStateCallback, UpdateEpochStateCallback
import horovod.torch.elastic as elastic
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.torch.functions import broadcast_parameters, broadcast_optimizer_state
from horovod.torch.functions import broadcast_object, allgather_object
from horovod.torch.mpi_ops import allreduce_async_, synchronize, poll, size, rank, Average, Adasum
from horovod.torch.mpi_ops import Sum, rocm_built
from horovod.torch.mpi_ops import gpu_available
import horovod.torch.mpi_ops as mpi_ops
from horovod.torch.optimizer import DistributedOptimizer
from horovod.torch.sync_batch_norm import SyncBatchNorm
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
    every = [*IMPORTS.strip().splitlines(), *(f"import {name}" for name in ABSENT)]
    failed = json.loads(alone(TRY, json.dumps(every), TF_CPP_MIN_LOG_LEVEL="3").splitlines()[-1])
    assert sorted(failed) == sorted(f"import {name}" for name in ABSENT)
    for line, text in failed.items():
        assert text.startswith(f"ModuleNotFoundError: no {line[7:]}: ") and "hvdliterun" in text

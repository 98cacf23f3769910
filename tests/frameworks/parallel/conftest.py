"""Fixtures of the tests of PyTorch, Keras, TensorFlow and JAX that all ranks run together.

tests/frameworks/test_ranks.py finds the framework of a file by its name, as in test_torch_*.py.
``mpirun -n 3 .venv-frameworks/bin/pytest tests/frameworks/parallel`` runs all tests.
"""

import datetime
import os

import pytest
from meeting import *  # noqa: F403


@pytest.fixture(scope="module")
def groups():
    """Yield two process groups of all ranks, one with hvdlite and one with Gloo."""
    import torch.distributed as dist

    import hvdlite.torch.backend  # noqa: F401

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # tests/contract/torch_trainers.py may already have made a group
    new = not dist.is_initialized()
    if new:
        dist.init_process_group("hvdlite", init_method="hvdlite://")
    yield dist.new_group(backend="hvdlite"), dist.new_group(backend="gloo")
    if new:
        dist.destroy_process_group()


@pytest.fixture
def short(groups):
    """Return a group of all ranks that has a minute to open; its calls time out after 300 ms."""
    import torch
    import torch.distributed as dist

    group = dist.new_group(backend="hvdlite", timeout=datetime.timedelta(minutes=1))
    backend = group._get_backend(torch.device("cpu"))
    backend._set_default_timeout(datetime.timedelta(milliseconds=300))
    return group

"""Tests of the bindings to PyTorch, Keras and others that every rank runs, at any number of ranks.

A file is named for its framework, test_torch_*.py, as tests/frameworks/test_ranks.py picks them by
that; ``mpirun -n 3 .venv-frameworks/bin/pytest tests/frameworks/parallel`` runs them all.
"""

import os

import pytest
from meeting import *  # noqa: F403


@pytest.fixture(scope="module")
def groups():
    """PyTorch's groups of all ranks: one over hvdlite, one over Gloo."""
    import torch.distributed as dist

    import hvdlite.torch.backend  # noqa: F401 - test_torch_backend.py beside this folder does without

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # tests/contract/torch_trainers.py may have made a group already
    new = not dist.is_initialized()
    if new:
        dist.init_process_group("hvdlite", init_method="hvdlite://")
    yield dist.new_group(backend="hvdlite"), dist.new_group(backend="gloo")
    if new:
        dist.destroy_process_group()

"""Tests that hold for each library and any number of ranks.

``mpirun -n 3 python -m pytest tests/contract`` runs them for all installed libraries.
"""

import contextlib

with contextlib.suppress(ImportError):  # scripts, too, import this module before MPI starts
    import hvdlite.mxnet as hvd  # noqa: F401

# isort: split
from meeting import *  # noqa: F403

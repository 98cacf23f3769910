"""The contracts that each library keeps, at any number of ranks.

``mpirun -n 3 python -m pytest tests/contract`` runs these tests for the libraries that are
installed.
"""

import contextlib

with contextlib.suppress(ImportError):  # before MPI begins, as scripts import it
    import hvdlite.mxnet as hvd  # noqa: F401

# isort: split
from meeting import *  # noqa: F403

"""Tests of the bindings to PyTorch, Keras and others that every rank runs, at any number of ranks.

A file is named for its framework, test_torch_*.py, as tests/frameworks/test_ranks.py picks them by
that; ``mpirun -n 3 .venv-frameworks/bin/pytest tests/frameworks/parallel`` runs them all.
"""

from meeting import *  # noqa: F403

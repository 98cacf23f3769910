"""In the path of ranks that are to start where mpi4py is not installed."""

import sys

sys.modules["mpi4py"] = None  # an import of it raises ModuleNotFoundError

"""Writes hvdlite/jax/mpi_names.txt: the names that MPItrampoline looks up in an MPI's library.

python tools/jax_abi.py MPITRAMPOLINE     a checkout of github.com/eschnett/MPItrampoline, v5.3.1,
                                          the version that jaxlib contains
"""

import runpy
import sys
import textwrap
from pathlib import Path


def main(checkout: str) -> None:
    names = []
    for kind in "constants", "functions":
        rows = runpy.run_path(f"{checkout}/mpiabi/mpi_{kind}.py")[kind]
        names += [row[1].replace("MPI_", "") for row in rows]
    path = Path(__file__).parents[1] / "hvdlite" / "jax" / "mpi_names.txt"
    path.write_text(textwrap.fill(" ".join(dict.fromkeys(names)), 100) + "\n")


main(sys.argv[1])

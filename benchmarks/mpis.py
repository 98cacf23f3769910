"""The MPIs that the benchmarks measure: settings, launchers, and the reason if one is left out."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Dict, List

from benchmarks.harness import ROOT

# Open MPI allocates memory in each large allreduce. Without these settings malloc returns the
# memory to the kernel, and page faults take half of the time.
KEEP_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
    "MALLOC_TRIM_THRESHOLD_": "4000000000",
    "MALLOC_TOP_PAD_": "256000000",
}
OPEN_MPI = "Open MPI"
COMPONENTS = {"Open MPI, HAN": "han", "Open MPI, XHC": "xhc"}  # components for allreduces
HOMES = {"Intel MPI": ROOT / ".venv-intel", "MPICH": ROOT / ".venv-mpich"}


def _hydra(mpi: str, **settings: str) -> Dict[str, str]:
    """Return the settings, plus those that each MPI with mpiexec.hydra needs.

    MPI4PY_LIBMPI names the MPI library that mpi4py's wheel loads.
    """
    library = str(HOMES[mpi] / "lib" / "libmpi.so.12")
    return {"HYDRA_LAUNCHER": "fork", "MPI4PY_LIBMPI": library, **settings}


# With these settings each MPI was fastest: for Open MPI, malloc keeps memory; for Intel MPI,
# shared memory and no pinning.
SETTINGS: Dict[str, Dict[str, str]] = {
    OPEN_MPI: KEEP_MEMORY,
    **{n: {**KEEP_MEMORY, f"OMPI_MCA_coll_{c}_priority": "100"} for n, c in COMPONENTS.items()},
    "Intel MPI": _hydra("Intel MPI", I_MPI_FABRICS="shm", I_MPI_PIN="0"),
    "MPICH": _hydra("MPICH"),
}


def launcher(mpi: str, python: Path = Path(sys.executable)) -> List[str]:
    """Return the command that starts unbound ranks; -n and the number of ranks follow.

    :param python: the ranks' Python; Open MPI's mpirun lies beside it, or in PATH.
    """
    if mpi in HOMES:
        return [str(HOMES[mpi] / "bin" / "mpiexec.hydra")]
    beside = python.with_name("mpirun")
    return [str(beside) if beside.exists() else "mpirun", "--bind-to", "none", "--oversubscribe"]


def left_out(python: Path = Path(sys.executable)) -> Dict[str, str]:
    """Return the MPIs of SETTINGS that can't run here, each with the reason."""
    missing = {
        mpi: f"{home.name} is missing: run `make small-peers`"
        for mpi, home in HOMES.items()
        if not home.is_dir()
    }
    start = launcher(OPEN_MPI, python)
    if not shutil.which(start[0]):
        return {**missing, **dict.fromkeys([OPEN_MPI, *COMPONENTS], "PATH has no mpirun")}
    environment = {**os.environ, "OMPI_MCA_coll_base_verbose": "20"}
    for name in COMPONENTS:
        environment.update(SETTINGS[name])
    done = subprocess.run(
        ["timeout", "60", *start, "-n", "2", str(python), "-c", "from mpi4py import MPI"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        why = f"mpirun does not work: {done.stdout.strip()[-200:]}"
        return {**missing, **dict.fromkeys([OPEN_MPI, *COMPONENTS], why)}
    return {**missing, **refused(done.stdout)}


def refused(log: str) -> Dict[str, str]:
    """Return the names of COMPONENTS that Open MPI does not use, each with the reason.

    Without this check, a row with such a name would silently show Open MPI's other components.

    :param log: what Open MPI writes with coll_base_verbose=20 while 2 ranks start.
    """
    reasons = {}
    for name, component in COMPONENTS.items():
        if re.search(rf"selecting +{component},", log):
            continue
        query = rf"coll:{component}:comm_query \(\S+/MPI_COMM_WORLD\): ([^;\n]*)"
        said = re.search(query, log)
        reasons[name] = f"Open MPI refuses {component}: {said[1]}" if said else (
            f"this Open MPI has no component {component}"
        )  # fmt: skip
    return reasons

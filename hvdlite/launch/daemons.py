"""Mends Open MPI 5's daemons for elastic jobs on several hosts: see daemons.c."""

import os
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple

_VARIABLE = "LD_PRELOAD"
_LIBRARY = "_daemons_openmpi"


class Mend(NamedTuple):
    """What mpirun needs: options, and variables of its own."""

    options: List[str]
    env: Dict[str, str]


def mend() -> Mend:
    """Return what makes mpirun and its daemons on other hosts load the library."""
    library = next(map(str, Path(__file__).parent.glob(f"{_LIBRARY}*.so")), None)
    if not library or " " in library:  # PRRTE splits its agent's command at spaces
        return Mend([], {})
    agent = f"env {_VARIABLE}={library} prted"
    libraries = [library, *filter(None, [os.environ.get(_VARIABLE)])]
    return Mend(["--prtemca", "prte_launch_agent", agent], {_VARIABLE: ":".join(libraries)})


def without(env: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables of a rank: mpirun's own without the library."""
    libraries = [each for each in env.get(_VARIABLE, "").split(":") if _LIBRARY not in each]
    rest = {name: value for name, value in env.items() if name != _VARIABLE}
    return {**rest, _VARIABLE: ":".join(libraries)} if any(libraries) else rest

"""Mends Open MPI's daemons, for elastic jobs on several hosts and for all on one: see daemons.c."""

import os
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Tuple

_VARIABLE = "LD_PRELOAD"
_LIBRARY = "_daemons_openmpi"
_LOOPBACK = "HVDLITE_LOOPBACK"


class Mend(NamedTuple):
    """What mpirun needs: options, and variables of its own."""

    options: List[str]
    env: Dict[str, str]


def mend() -> Mend:
    """Return what makes mpirun and its daemons on other hosts load the library."""
    library, env = _loaded()
    if not library or " " in library:  # PRRTE splits its agent's command at spaces
        return Mend([], {})
    agent = f"env {_VARIABLE}={library} prted"
    return Mend(["--prtemca", "prte_launch_agent", agent], env)


def on_one_host() -> Dict[str, str]:
    """Return the variables with which mpirun listens on the loopback."""
    env = _loaded()[1]
    return {**env, _LOOPBACK: "1"} if env else {}


def _loaded() -> Tuple[str, Dict[str, str]]:
    library = next(map(str, Path(__file__).parent.glob(f"{_LIBRARY}*.so")), "")
    libraries = [library, *filter(None, [os.environ.get(_VARIABLE)])]
    return library, {_VARIABLE: ":".join(libraries)} if library else {}


def without(env: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables of a rank: mpirun's own without the library."""
    libraries = [each for each in env.get(_VARIABLE, "").split(":") if _LIBRARY not in each]
    rest = {name: value for name, value in env.items() if name not in (_VARIABLE, _LOOPBACK)}
    return {**rest, _VARIABLE: ":".join(libraries)} if any(libraries) else rest

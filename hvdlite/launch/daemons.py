"""Mends Open MPI's daemons, for elastic jobs on several hosts and for all on one: see daemons.c."""

from __future__ import annotations

import glob
import os
from collections import namedtuple
from collections.abc import Mapping

_VARIABLE = "LD_PRELOAD"
_LIBRARY = "_daemons_openmpi"
_LOOPBACK = "HVDLITE_LOOPBACK"


Mend = namedtuple("Mend", ("options", "env"))  # what mpirun needs: options, variables of its own


def mend() -> Mend:
    """Return what makes mpirun and its daemons on other hosts load the library."""
    library, env = _loaded()
    if not library or " " in library:  # PRRTE splits its agent's command at spaces
        return Mend([], {})
    agent = f"env {_VARIABLE}={library} prted"
    return Mend(["--prtemca", "prte_launch_agent", agent], env)


def on_one_host() -> dict[str, str]:
    """Return the variables with which mpirun listens on the loopback."""
    env = _loaded()[1]
    return {**env, _LOOPBACK: "1"} if env else {}


def _loaded() -> tuple[str, dict[str, str]]:
    library = next(glob.iglob(f"{os.path.dirname(__file__)}/{_LIBRARY}*.so"), "")
    libraries = [library, *filter(None, [os.environ.get(_VARIABLE)])]
    return library, {_VARIABLE: ":".join(libraries)} if library else {}


def without(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a rank: mpirun's own without the library."""
    libraries = [each for each in env.get(_VARIABLE, "").split(":") if _LIBRARY not in each]
    rest = {name: value for name, value in env.items() if name not in (_VARIABLE, _LOOPBACK)}
    return {**rest, _VARIABLE: ":".join(libraries)} if any(libraries) else rest

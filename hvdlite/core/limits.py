"""The limits that users set by environment variables."""

import contextlib
import os
from typing import Mapping, Optional

from hvdlite.core.agent_protocol import FEWEST, MOST, RESETS

LIMIT = "HVDLITE_HOST_TIMEOUT_SECONDS"  # seconds of silence until a host counts as lost
ELASTIC_LIMIT = "HVDLITE_ELASTIC_HOST_TIMEOUT_SECONDS"  # the same limit in elastic training
# seconds in which the living ranks must find each other after a death
PATIENCE = "HVDLITE_ELASTIC_TIMEOUT_SECONDS"
INIT = "HVDLITE_INIT_TIMEOUT_SECONDS"  # seconds in which all ranks must call init(); 0: no limit
# longest time in seconds that a failed rank waits for the other ranks to learn of its failure
EXIT = "HVDLITE_EXIT_TIMEOUT_SECONDS"
DEFAULTS = {LIMIT: 120.0, ELASTIC_LIMIT: 3.0, PATIENCE: 600.0, INIT: 600.0, EXIT: 5.0}
_MAY_BE_0 = (INIT, EXIT)
_A_YEAR = 365 * 86400.0  # longest limit, because sockets and locks refuse very long waits


def limit_of(variable: str, environ: Optional[Mapping[str, str]] = None) -> float:
    """Return the seconds that the variable or its default sets, at most a year.

    :param environ: variables that replace those of this process.
    :raises ValueError: the variable is not a number of seconds.
    """
    text = (os.environ if environ is None else environ).get(variable) or str(DEFAULTS[variable])
    may_be_0 = variable in _MAY_BE_0
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf") or (may_be_0 and float(text) == 0):
            return min(float(text), _A_YEAR)
    least = "of at least 0" if may_be_0 else "over 0"
    raise ValueError(f"{variable} is '{text}': expected a number of seconds {least}")


def check() -> None:
    """Raise ValueError for a wrong environment variable. Every rank calls this before its job."""
    for variable in DEFAULTS:
        limit_of(variable)
    for variable in (FEWEST, MOST, RESETS):
        text = os.environ.get(variable) or "0"
        if not text.isdecimal():
            raise ValueError(f"{variable} is '{text}': expected a whole number")

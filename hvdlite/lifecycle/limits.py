"""How long processes wait for lost hosts and ranks, as the user has set it."""

import contextlib
import os

LIMIT = "HVDLITE_HOST_TIMEOUT_SECONDS"  # how long a silent host is waited for
ELASTIC_LIMIT = "HVDLITE_ELASTIC_HOST_TIMEOUT_SECONDS"  # the same, in elastic training
PATIENCE = "HVDLITE_ELASTIC_TIMEOUT_SECONDS"  # after a death, how long for a rank to go on
DEFAULTS = {LIMIT: 120.0, ELASTIC_LIMIT: 3.0, PATIENCE: 600.0}


def limit_of(variable: str) -> float:
    """Return the limit that the user has set.

    :raises ValueError: it is no number of seconds over 0.
    """
    text = os.environ.get(variable) or str(DEFAULTS[variable])
    with contextlib.suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise ValueError(f"{variable} is '{text}': expected a number of seconds over 0")


def check() -> None:
    """Raise ValueError if a limit is wrong: so all ranks do, before one begins."""
    for variable in DEFAULTS:
        limit_of(variable)

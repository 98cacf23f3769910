"""How often the job has begun anew after deaths, and when that is too often; what ranks vote."""

import os

from hvdlite.core.native import HvdliteError
from hvdlite.lifecycle.watched import FEWEST, RESETS

SOMETHING_FAILED, ALL_IS_DONE, LET_NEWCOMERS_IN = 0, 1, 2  # votes: bits
_count = 0


def count() -> int:
    """Return the number, the same on every rank."""
    return _count


def set_count(number: int) -> None:
    """Set it; a newcomer learns it from the first rank."""
    global _count
    _count = number


def begin_with(left: int) -> None:
    """Count one more, with so many ranks left.

    :raises HvdliteError: these are too few, or ranks have died too often.
    """
    set_count(_count + 1)
    fewest = int(os.environ.get(FEWEST) or 1)
    if left < fewest:
        raise HvdliteError(
            f"{left} of the ranks are left, and elastic training goes on with {fewest} at least "
            f"({FEWEST}, --min-np)"
        )
    limit = os.environ.get(RESETS)
    if limit and _count > int(limit):
        raise HvdliteError(
            f"ranks have died {_count} times, and elastic training goes on {limit} times at most "
            f"({RESETS}, --reset-limit): see why they die, above, or raise the limit"
        )

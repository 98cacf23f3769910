"""What ``newcomers`` has, for jobs into which nobody comes: those without MPI."""

from typing import List


def begin() -> None:
    """Do nothing."""


def call_first() -> None:
    """Do nothing."""


def homes() -> List[str]:
    """Return no hosts."""
    return []


def call(homes: List[str], present: List[str]) -> None:
    """Do nothing."""

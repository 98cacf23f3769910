"""How values of a state are copied, put back, and begun anew in another job, by their kind."""

import copy
from typing import Any


class Part:
    """A value of a state; this one is replaced by copies of itself."""

    def take(self, value) -> Any:
        """Return a copy of what training changes in the value; pickle takes it."""
        return copy.deepcopy(value)

    def give(self, value, taken) -> Any:
        """Return the value as it was when ``taken`` was taken, here or on another rank."""
        return copy.deepcopy(taken)

    def reset(self, value) -> None:
        """Begin anew in a job with other ranks. Not collective."""


class StateDict(Part):
    """An object with ``state_dict`` and ``load_state_dict``, which stays the same object."""

    def take(self, value) -> Any:
        return copy.deepcopy(value.state_dict())

    def give(self, value, taken) -> Any:
        value.load_state_dict(copy.deepcopy(taken))
        return value

    def reset(self, value) -> None:
        getattr(value, "reset", lambda: None)()


def part_of(value) -> Part:
    has_dict = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    return StateDict() if has_dict else Part()

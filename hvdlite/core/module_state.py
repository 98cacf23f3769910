"""The state that modules keep between calls. One object, ``process``, owns all of this state.

A module with state makes one object of a subclass of :class:`ModuleState`. No other list, dict or
class attribute keeps state (tests/unit/test_modules.py).
"""

from __future__ import annotations

import os


class ModuleState:
    """The state of one module of this process. A subclass sets all attributes in ``begin``."""

    def __init__(self) -> None:
        process.states.append(self)
        self.begin()

    def begin(self) -> None:
        """Set the attributes for a process that has just started."""

    def begin_job(self) -> None:
        """Drop the state of the earlier job, before the first collective of a new job."""

    def begin_child(self) -> None:
        """In a child made by os.fork: drop the state that belongs to the parent."""


class Process:
    """The states of all modules."""

    def __init__(self) -> None:
        self.states: list[ModuleState] = []

    def begin_job(self) -> None:
        for state in self.states:
            state.begin_job()

    def begin_child(self) -> None:
        for state in self.states:
            state.begin_child()


process = Process()
os.register_at_fork(after_in_child=process.begin_child)

"""How each framework (MXNet, PyTorch, ...) finishes its queued work when a job waits or ends.

When a framework's package is imported, the package registers functions by ``at_exit.at_end``. This
module names no framework.
"""

from typing import Callable, List, NamedTuple

from hvdlite.core.module_state import ModuleState


class Framework(NamedTuple):
    """Functions of a framework, to wait for queued work, to submit it, and to end after the job."""

    wait: Callable[[], None]
    submit: Callable[[], None]
    after_exit: Callable[[], None]


class _Frameworks(ModuleState):
    def begin(self) -> None:
        self.registered: List[Framework] = []


_frameworks = _Frameworks()


def register(framework: Framework) -> None:
    """Make wait_all(), submit_all() and after_exit() also call this framework's functions."""
    _frameworks.registered.append(framework)


def wait_all() -> None:
    """Wait until the frameworks have done all queued work; raise their errors."""
    for framework in _frameworks.registered:
        framework.wait()


def submit_all() -> None:
    """Submit all work that frameworks have queued, before this process leaves the job."""
    for framework in _frameworks.registered:
        framework.submit()


def after_exit() -> None:
    """Tell frameworks that this process has left the job for good."""
    for framework in _frameworks.registered:
        framework.after_exit()

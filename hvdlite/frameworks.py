"""What each framework (MXNet, PyTorch, ...) does with its queued work when a job waits or ends.

A framework's folder registers itself by ``lifecycle.at_end`` when it is imported; nothing here
knows any framework.
"""

from typing import Callable, List, NamedTuple


class _Framework(NamedTuple):
    wait: Callable[[], None]
    submit: Callable[[], None]
    after_exit: Callable[[], None]


_frameworks: List[_Framework] = []


def register(
    wait: Callable[[], None], submit: Callable[[], None], after_exit: Callable[[], None]
) -> None:
    """Register how a framework waits for its work, submits it, and ends after the job at exit."""
    _frameworks.append(_Framework(wait, submit, after_exit))


def wait_all() -> None:
    """Wait until all that frameworks have queued is done; raises their errors."""
    for framework in _frameworks:
        framework.wait()


def submit_all() -> None:
    """Submit all that frameworks have queued, while the job still stands."""
    for framework in _frameworks:
        framework.submit()


def after_exit() -> None:
    """Tell frameworks that this process has left the job for good."""
    for framework in _frameworks:
        framework.after_exit()

"""Reports a rank's own work to the flight recorder: updates, and waits for input."""

import contextlib
import sys
import time
from typing import Any, Iterator

from torch.nn.modules import module

from hvdlite.core.native import lib


class _State:
    """Of this process."""

    since = 0.0  # the end of the last update
    hook: Any = None  # its handle; None: a forward has begun since


@contextlib.contextmanager
def update() -> Iterator[None]:
    """Record an update; the time from its end to the next forward counts as input."""
    begin = time.monotonic()
    yield
    _State.since = time.monotonic()
    lib.hvd_note(b"update", begin, _State.since)
    if _State.hook is None and not _compiles():
        _State.hook = module.register_module_forward_pre_hook(_forward_begins)


def _compiles() -> bool:
    """Return True if torch.compile has compiled anything: torch.compile warns about our hooks."""
    utils = sys.modules.get("torch._dynamo.utils")
    return bool(utils and utils.counters.get("frames"))


def _forward_begins(*_: Any) -> None:
    """Record the input and remove this hook, which costs time in each call of a module."""
    hook, _State.hook = _State.hook, None
    if hook is not None:
        hook.remove()
        lib.hvd_note(b"input", _State.since, time.monotonic())

"""Records a rank's own work in the flight recorder: updates, and waits for input."""

import contextlib
import sys
import time
from typing import Any, Iterator

from torch.nn.modules import module

from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import lib


class _Update(ModuleState):
    """The last update."""

    def begin(self) -> None:
        self.since = 0.0  # when the update ended
        self.hook: Any = None  # handle of the hook; None: a forward has begun after the update


_update = _Update()


@contextlib.contextmanager
def update() -> Iterator[None]:
    """Record an update. The time from its end to the next forward is recorded as input."""
    begin = time.monotonic()
    yield
    _update.since = time.monotonic()
    lib.hvd_note(b"update", begin, _update.since)
    if _update.hook is None and not _compiles():
        _update.hook = module.register_module_forward_pre_hook(_forward_begins)


def _compiles() -> bool:
    """Return True if torch.compile has compiled anything: then it warns about forward hooks."""
    utils = sys.modules.get("torch._dynamo.utils")
    return bool(utils and utils.counters.get("frames"))


def _forward_begins(*_: Any) -> None:
    """Record the input, and remove this hook because it costs time in each call of a module."""
    hook, _update.hook = _update.hook, None
    if hook is not None:
        hook.remove()
        lib.hvd_note(b"input", _update.since, time.monotonic())

"""Logs the progress of long operations: the broadcast of a large model, a checkpoint."""

import contextlib
import threading
import time
from typing import Callable, ContextManager, Iterator, Sequence

from hvdlite.core import topology
from hvdlite.core.log import logger
from hvdlite.core.native import call, ffi, lib

EVERY = 5.0  # seconds before the first line of the log, and between two lines


@contextlib.contextmanager
def log_progress(what: str, state: Callable[[], str]) -> Iterator[None]:
    """Log every EVERY seconds what the block does, and the state that ``state`` returns."""
    ended, began = threading.Event(), time.monotonic()

    def tell() -> None:
        while not ended.wait(EVERY):
            logger.warning("%s: %s after %.0f s", what, state(), time.monotonic() - began)

    thread = threading.Thread(target=tell, name="hvdlite-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # so that the thread never calls state() after the `with` block


def of_broadcast(root_rank: int, sizes: Sequence[int]) -> ContextManager[None]:
    """Log on rank ``root_rank`` how many tensors are broadcast; ``sizes``: the tensors' bytes."""
    if topology.rank() != root_rank:
        return contextlib.nullcontext()
    before = _tensors_done()
    what = f"broadcast of {len(sizes)} tensors, {sum(sizes) / 1e6:,.0f} MB"
    return log_progress(what, lambda: f"{_tensors_done() - before} are done")


def _tensors_done() -> int:
    counts = ffi.new("hvd_stats *")
    call(lib.hvd_get_stats, counts)
    return counts.tensors

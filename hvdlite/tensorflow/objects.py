"""Sends Python objects between ranks, with the arguments of Horovod's functions for TensorFlow."""

from typing import Any, Callable, List, Optional

from hvdlite.core import objects
from hvdlite.core.process_set import ProcessSet, global_process_set


def broadcast_object(
    obj: Any, root_rank: int = 0, session=None, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Do what ``hvdlite.broadcast_object`` does; ``session`` is ignored."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session=None, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:  # fmt: skip
    """Return a function that does what :func:`.broadcast_object` does, with these arguments."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session=None, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:  # fmt: skip
    """Do what ``hvdlite.allgather_object`` does; ``session`` is ignored."""
    return objects.allgather_object(obj, name, process_set)

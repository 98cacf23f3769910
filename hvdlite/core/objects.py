"""Sends Python objects between ranks by pickle."""

import pickle
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple

import numpy as np

from hvdlite.core import topology
from hvdlite.core.collectives import run
from hvdlite.core.error_text import error_text
from hvdlite.core.grouped import gather_bytes
from hvdlite.core.names import tensor_name
from hvdlite.core.native import FAILED, HvdliteError, lib
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of


def broadcast_object(
    obj: Any, root_rank: int = 0, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Return rank ``root_rank``'s object on every rank; the objects of other ranks are ignored.

    :param obj: anything that ``pickle`` takes; with cloudpickle installed also lambdas, closures
        and classes defined in a notebook.
    :param root_rank: a rank of the job, even if ``process_set`` is given.
    :param name: matches the ranks' calls; default: the line of the script that makes the call.
    :param process_set: the ranks that take part; only these ranks make the call.
    :raises ValueError: before ``init()``; ``root_rank`` is not in the set.
    :raises hvdlite.HvdliteError: a rank has left; or, on the other ranks, ``root_rank`` can't
        pickle its object. On ``root_rank`` itself, pickle's own error is raised.

    >>> import hvdlite as hvd
    >>> hvd.init()
    >>> hvd.broadcast_object({"epoch": 3})
    {'epoch': 3}
    """
    name = tensor_name("object", name, process_set)
    is_root = topology.rank() == root_rank
    data, error = _pack(lambda: obj) if is_root else (b"", None)
    data = _broadcast_bytes(data, root_rank, name, process_set)
    if error:
        raise error
    return obj if is_root else _unpack(f"tensor '{name}'", {root_rank: data})[0]


def _broadcast_bytes(data: bytes, root_rank: int, name: str, process_set: ProcessSet):
    """Return the root's bytes as an array of uint8, which pickle reads without another copy."""
    mine = np.frombuffer(data, np.uint8).copy()
    length = np.array([len(mine)])
    of_root = {"root": process_set.number_of(root_rank), "group": group_of(process_set)}
    run(lib.HVD_BROADCAST, f"{name}.length", length, length, **of_root)
    if topology.rank() != root_rank:
        mine = np.empty(length, np.uint8)
    run(lib.HVD_BROADCAST, name, mine, mine, **of_root)
    return mine


def allgather_object(
    obj: Any, name: Optional[str] = None, process_set: ProcessSet = global_process_set
) -> List[Any]:
    """Return a list of the objects of all ranks, in the order of ranks.

    :param obj: as for :func:`.broadcast_object`; its type may differ between ranks.
    :param name: this, ``process_set`` and the errors are as for :func:`.broadcast_object`.
    """
    name = tensor_name("object", name, process_set)
    data, error = _pack(lambda: obj)
    everyone = gather_bytes(data, name, process_set)
    if error:
        raise error
    return _unpack(f"tensor '{name}'", dict(zip(process_set.ranks, everyone)))


class _Unsent(NamedTuple):
    """Sent in place of an object that can't be pickled, so that other ranks do not wait for it."""

    text: str


def _pack(make: Callable[[], Any]) -> Tuple[bytes, Optional[Exception]]:
    """Return the pickle of ``make()`` and None; or the pickle of an _Unsent and the error."""
    try:
        return _dumps(make()), None
    except Exception as error:
        return pickle.dumps(_Unsent(error_text(error))), error


def _unpack(what: str, data: Dict[int, Any], cause: Optional[Exception] = None) -> List[Any]:
    """Return the objects; raise HvdliteError with the ranks whose objects could not be pickled."""
    objects = [pickle.loads(each) for each in data.values()]
    unsent = {rank: obj.text for rank, obj in zip(data, objects) if type(obj) is _Unsent}
    if unsent:
        texts = "; ".join(f"rank {rank} raised {text}" for rank, text in unsent.items())
        raise HvdliteError(f"{what}: {texts}", kind=FAILED, ranks=tuple(unsent)) from cause
    return objects


def _dumps(obj: Any) -> bytes:
    """Pickle the object; if pickle fails, use cloudpickle, which copies a script's own classes."""
    try:
        return pickle.dumps(obj)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        try:
            import cloudpickle
        except ImportError:
            remedy = "to send the object, run `pip install cloudpickle`"
            raise ValueError(f"{error}: {remedy}") from error
        return cloudpickle.dumps(obj)


def result_of_root(function: Callable[[], Any], root_rank: int, name: str) -> Any:
    """Return on every rank what ``function()`` returns on rank ``root_rank``. Collective.

    :raises HvdliteError: on every rank, with the error of the function or of pickle on the root.
    """
    data, cause = _pack(function) if topology.rank() == root_rank else (b"", None)
    full = tensor_name("object", name, global_process_set)
    data = _broadcast_bytes(data, root_rank, full, global_process_set)
    return _unpack(name, {root_rank: data}, cause)[0]

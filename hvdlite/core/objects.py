"""Sends Python objects between ranks by pickle, and checks that all ranks agree."""

import hashlib
import pickle
import zlib
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from hvdlite.core import topology
from hvdlite.core.collectives import run, run_all
from hvdlite.core.error_text import error_text
from hvdlite.core.names import meeting_name, tensor_name
from hvdlite.core.native import FAILED, MISMATCH, HvdliteError, lib
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of
from hvdlite.core.rows import gather_bytes


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
    data, error = _packed(lambda: obj) if is_root else (b"", None)
    data = _broadcast_bytes(data, root_rank, name, process_set)
    if error:
        raise error
    return obj if is_root else _unpacked(f"tensor '{name}'", {root_rank: data})[0]


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
    data, error = _packed(lambda: obj)
    everyone = gather_bytes(data, name, process_set)
    if error:
        raise error
    return _unpacked(f"tensor '{name}'", dict(zip(process_set.ranks, everyone)))


class _Unsent(NamedTuple):
    """Sent in place of an object that can't be pickled, so that other ranks do not wait for it."""

    text: str


def _packed(make: Callable[[], Any]) -> Tuple[bytes, Optional[Exception]]:
    """Return the pickle of ``make()`` and None; or the pickle of an _Unsent and the error."""
    try:
        return _dumps(make()), None
    except Exception as error:
        return pickle.dumps(_Unsent(error_text(error))), error


def _unpacked(what: str, data: Dict[int, Any], cause: Optional[Exception] = None) -> List[Any]:
    """Return the objects; raise HvdliteError that names the ranks that could not send theirs."""
    objects = [pickle.loads(each) for each in data.values()]
    unsent = {rank: obj.text for rank, obj in zip(data, objects) if type(obj) is _Unsent}
    if unsent:
        texts = "; ".join(f"rank {rank} raised {text}" for rank, text in unsent.items())
        raise HvdliteError(f"{what}: {texts}", kind=FAILED, ranks=tuple(unsent)) from cause
    return objects


def _dumps(obj: Any) -> bytes:
    """Use pickle; or cloudpickle if pickle fails, because cloudpickle copies a script's classes."""
    try:
        return pickle.dumps(obj)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        try:
            import cloudpickle
        except ImportError:
            raise ValueError(f"{error}: to send it, run `pip install cloudpickle`") from error
        return cloudpickle.dumps(obj)


def result_of_root(function: Callable[[], Any], root_rank: int, name: str) -> Any:
    """Return on every rank what ``function()`` returns on rank ``root_rank``. Collective.

    :raises HvdliteError: on every rank, with the error of the function or of pickle on that rank.
    """
    data, cause = _packed(function) if topology.rank() == root_rank else (b"", None)
    full = tensor_name("object", name, global_process_set)
    data = _broadcast_bytes(data, root_rank, full, global_process_set)
    return _unpacked(name, {root_rank: data}, cause)[0]


def agree(
    what: str, lines: Sequence[str], shown: Optional[Sequence[str]] = None,
    process_set: ProcessSet = global_process_set,
    remedy: str = "Build the same network on every rank.", apart: bool = False,
) -> None:  # fmt: skip
    """Raise the same HvdliteError on every rank unless all ranks give the same lines. Collective.

    The ranks first compare hashes, in one small allgather, and send the lines only if those differ.

    :param what: what the lines describe, such as ``trainer0``; the ranks must also agree on this.
    :param shown: texts that the error shows in place of the lines; None: the lines.
    :param remedy: what the error tells the user to do.
    :param apart: True: calls with different numbers in ``what`` do not meet, because a rank may
        have given up an earlier call.
    """
    digest = hashlib.sha256("\n".join([what, *lines]).encode()).digest()
    common = f"check.{what if apart else meeting_name(what)}"
    name = tensor_name("allgather", common, process_set)
    if len(set(gather_bytes(digest, name, process_set))) == 1:
        return
    everyone = allgather_object((what, list(lines), list(shown or lines)), common, process_set)
    owners, *_ = zip(*everyone)
    if len(set(owners)) > 1:
        values = _of_ranks(process_set, owners)
        raise HvdliteError(
            f"{meeting_name(what)}: ranks disagree on its number: {values}. {_ORDER}",
            kind=MISMATCH,
        )
    nothing = ["nothing"] * max(len(theirs) for _, theirs, _ in everyone)
    columns = zip(*(theirs + nothing[len(theirs) :] for _, theirs, _ in everyone))
    at = next(i for i, column in enumerate(columns) if len(set(column)) > 1)
    values = _of_ranks(process_set, [(theirs + nothing)[at] for *_, theirs in everyone])
    text = f"{what}: ranks disagree on entry {at}: {values}. {remedy}"
    raise HvdliteError(text, kind=MISMATCH)


_ORDER = (
    "Each process numbers the optimizers, trainers and layers that it makes: make the same ones "
    "on all ranks, and use them in the same order"
)


def _of_ranks(process_set: ProcessSet, texts: Sequence[str]) -> str:
    return "; ".join(f"rank {rank}: {text}" for rank, text in zip(process_set.ranks, texts))


def meet(owner: str, met: int, process_set: ProcessSet = global_process_set) -> int:
    """Raise on every rank unless all ranks call this for the same owner; return the job's number.

    ``met`` is the earlier result of :func:`meet` for this owner, or -1. If it is this job's number,
    do nothing; otherwise the call is collective.
    """
    job = topology.job_number()
    if met != job:
        agree(owner, [], process_set=process_set)
    return job


def digest_of_bytes(pieces: Iterable[bytes]) -> int:
    """Return a number above 0 that a request can carry: equal bytes have equal numbers."""
    digest = 0
    for piece in pieces:
        digest = zlib.crc32(piece, digest)
    return digest % (2**31 - 1) + 1


def announce(names: Sequence[str], digest: int, process_set: ProcessSet) -> None:
    """Raise HvdliteError on every rank unless all ranks announce the same digest. Collective.

    A rank whose script has changed something calls this. A rank that has changed nothing does
    not. The next requests of that rank for these names fail, because they carry another digest.

    :param names: full names of the tensors that an unchanged rank sends next, all of them.
    :param digest: of the change, from :func:`digest_of_bytes`.
    """
    arrays = [np.zeros(1, np.float32) for _ in names]
    members = {"op": lib.HVD_SUM, "group": group_of(process_set), "states": -digest}
    run_all(lib.HVD_ALLREDUCE, names, arrays, arrays, [members] * len(names))

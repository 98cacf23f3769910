"""Checks that all ranks give equal values."""

import hashlib
import zlib
from typing import Iterable, Optional, Sequence

import numpy as np

from hvdlite.core import topology
from hvdlite.core.collectives import run_all
from hvdlite.core.grouped import gather_bytes
from hvdlite.core.names import meeting_name, tensor_name
from hvdlite.core.native import MISMATCH, HvdliteError, lib
from hvdlite.core.objects import allgather_object
from hvdlite.core.process_set import ProcessSet, global_process_set, group_of


def agree(
    what: str, lines: Sequence[str], shown: Optional[Sequence[str]] = None,
    process_set: ProcessSet = global_process_set,
    remedy: str = "Build the same network on every rank.", apart: bool = False,
) -> None:  # fmt: skip
    """Raise the same HvdliteError on every rank unless all ranks give the same lines. Collective.

    The ranks first compare hashes, in one small allgather, and send lines only if hashes differ.

    :param what: what the lines describe, such as ``trainer0``; must be equal on all ranks, too.
    :param shown: texts that the error shows in place of the lines; None: the lines.
    :param remedy: what the error tells the user to do.
    :param apart: True: calls match only if ``what`` has the same number, because a rank may have
        given up an earlier call, for example after a timeout.
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
    """Return the job's number; raise on every rank if ranks make this call for different owners.

    :param owner: the name of an optimizer, a trainer, ...
    :param met: the last result for this owner, or -1. If ``met`` is the number of this job, the
        call does nothing; otherwise the call is collective.
    """
    job = topology.job_number()
    if met != job:
        agree(owner, [], process_set=process_set)
    return job


def digest_of_bytes(pieces: Iterable[bytes]) -> int:
    """Return a number from 1 to 2^30 - 1; equal bytes have equal numbers."""
    digest = 0
    for piece in pieces:
        digest = zlib.crc32(piece, digest)
    return digest % (lib.HVD_DIVISORS - 1) + 1


def announce(names: Sequence[str], digest: int, process_set: ProcessSet) -> None:
    """Raise HvdliteError on every rank unless all ranks announce the same digest. Collective.

    A rank makes this call when its script has changed a setting. A rank without the change submits
    its next tensors instead, under the same names but with another digest, so all ranks raise.

    :param names: full names of all tensors that a rank without the change submits next.
    :param digest: the result of :func:`digest_of_bytes` for the change.
    """
    arrays = [np.zeros(1, np.float32) for _ in names]
    members = {"op": lib.HVD_SUM, "group": group_of(process_set), "states": -digest}
    run_all(lib.HVD_ALLREDUCE, names, arrays, arrays, [members] * len(names))

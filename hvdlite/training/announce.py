"""Tells the other ranks that this rank's script has changed something that ranks must agree on."""

import zlib
from typing import Iterable, Sequence

import numpy as np

from hvdlite.core.collectives import run_all
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, group_of


def digest_of_bytes(pieces: Iterable[bytes]) -> int:
    """Return a number above 0 that a request can carry: equal bytes have equal numbers."""
    digest = 0
    for piece in pieces:
        digest = zlib.crc32(piece, digest)
    return digest % (2**31 - 1) + 1


def announce(names: Sequence[str], digest: int, process_set: ProcessSet) -> None:
    """Raise HvdliteError on every rank unless all ranks announce the same digest. Collective.

    A rank that has changed nothing does not make this call. That rank's next requests of these
    names fail, because they carry another digest.

    :param names: full names of the tensors that an unchanged rank sends next, all of them.
    :param digest: of the change, from :func:`digest_of_bytes`.
    """
    arrays = [np.zeros(1, np.float32) for _ in names]
    members = {"op": lib.HVD_SUM, "group": group_of(process_set), "states": -digest}
    run_all(lib.HVD_ALLREDUCE, names, arrays, arrays, [members] * len(names))

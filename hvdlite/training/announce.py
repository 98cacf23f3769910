"""Tells the other ranks that this rank's script has changed something that ranks must agree on."""

from typing import Sequence

import numpy as np

from hvdlite.core.collectives import run_all
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, group_of


def announce(names: Sequence[str], digest: int, process_set: ProcessSet) -> None:
    """Raise HvdliteError on every rank unless all ranks announce the same digest. Collective.

    A rank that has changed nothing does not make this call. That rank's next requests of these
    names fail, because they carry another digest.

    :param names: full names of the tensors that an unchanged rank sends next, all of them.
    :param digest: of the change; above 0.
    """
    arrays = [np.zeros(1, np.float32) for _ in names]
    how = {"op": lib.HVD_SUM, "group": group_of(process_set), "states": -digest}
    run_all(lib.HVD_ALLREDUCE, names, arrays, arrays, [how] * len(names))

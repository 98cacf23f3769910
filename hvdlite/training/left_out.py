"""What compression leaves out of each gradient on a rank, and adds to the rank's next gradient.

Each rank has its own values, so the states that rank 0 saves lack those of the other ranks.
"""

import pickle
import warnings
from typing import Any, Dict, List, Sequence

import numpy as np

from hvdlite.core import rows, topology
from hvdlite.core.names import tensor_name
from hvdlite.core.process_set import global_process_set

_REMEDY = (
    ". To keep it, save the optimizer's states on every rank, and load on each rank what it has "
    "saved, in a job of equally many ranks"
)
KEY = "hvdlite_left_out"  # key in an optimizer's saved states


def tagged(left_out: Dict[Any, Any]) -> Dict[str, Any]:
    """Return what this rank saves: its rank and size, and the values by the names of gradients."""
    return {"rank": topology.rank(), "size": topology.size(), "left_out": left_out}


def own_of(saved: Dict[str, Any]) -> Dict[Any, Any]:
    """Return what this rank has saved; if another rank has saved it, warn and return nothing."""
    if (saved["rank"], saved["size"]) == (topology.rank(), topology.size()):
        return saved["left_out"]
    warn(f"rank {saved['rank']} of {saved['size']} has saved these states")
    return {}


def collected(own: Dict[str, Any], name: str) -> List[bytes]:
    """Return on rank 0 what each rank has, or b"" for nothing. Collective.

    :param own: what this rank has, by the names of trainers.
    """
    data = pickle.dumps(own) if any(own.values()) else b""
    came = _exchanged([data] + [b""] * (topology.size() - 1), name)
    return came if not topology.rank() else []


def dealt(each: Sequence[bytes], name: str) -> Dict[str, Any]:
    """Return what rank 0 has collected of this rank, by the names of trainers. Collective.

    :param each: on rank 0 what ``collected`` has returned; ignored elsewhere.
    """
    data, *_ = _exchanged(each if not topology.rank() else [b""] * topology.size(), name)
    return pickle.loads(data) if data else {}


def _exchanged(to_each: Sequence[bytes], name: str) -> List[bytes]:
    sent = np.frombuffer(b"".join(to_each), np.uint8)
    name = tensor_name("alltoall", f"{name}.left_out", global_process_set)
    splits = [len(data) for data in to_each]
    came, counts = rows.exchange(name, sent, splits, global_process_set).synchronize()
    return [part.tobytes() for part in np.split(came, np.cumsum(counts)[:-1])]


def warn(why: str, remedy: str = _REMEDY) -> None:
    """Warn that this rank trains on without what compression had left out."""
    warnings.warn(
        f"rank {topology.rank()} of {topology.size()}: what compression had left out of this "
        f"rank's gradients is lost: {why}{remedy}",
        stacklevel=4,
    )


def refuse_begun(passes: int, begun: bool) -> None:
    """Raise RuntimeError if some of a step's passes have been done: their sum is not saved."""
    if passes > 1 and begun:
        raise RuntimeError(
            f"backward has added up gradients of some of a step's {passes} passes, which are not "
            "saved with the optimizer's states: save after the step that ends the last of them"
        )

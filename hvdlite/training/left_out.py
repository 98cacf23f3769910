"""Saves and loads compression residuals: what compression has left out of a rank's gradients.

Compression adds a residual to the next gradient. Residuals differ between ranks, so the optimizer's
states that rank 0 saves do not contain the residuals of the other ranks.
"""

import pickle
import warnings
from typing import Any, Dict, List, Sequence

import numpy as np

from hvdlite.core import grouped, topology
from hvdlite.core.names import tensor_name
from hvdlite.core.process_set import global_process_set

_REMEDY = (
    ". To keep them, save the optimizer's states on every rank, and let each rank load its own "
    "file, in a job with the same number of ranks"
)
KEY = "hvdlite_left_out"  # in an optimizer's saved states: what compression has not sent


def tagged(left_out: Dict[Any, Any]) -> Dict[str, Any]:
    """Return the value for KEY: this rank's residuals by gradient, with its rank and the size."""
    return {"rank": topology.rank(), "size": topology.size(), "left_out": left_out}


def own_of(saved: Dict[str, Any]) -> Dict[Any, Any]:
    """Return the residuals from the value for KEY; {} and a warning if another rank saved them."""
    if (saved["rank"], saved["size"]) == (topology.rank(), topology.size()):
        return saved["left_out"]
    warn(f"rank {saved['rank']} of {saved['size']} has saved these states")
    return {}


def collect_residuals(own: Dict[str, Any], name: str) -> List[bytes]:
    """Return on rank 0 the pickled residuals of each rank, b"" if a rank has none. Collective.

    :param own: this rank's residuals, by the names of trainers.
    """
    data = pickle.dumps(own) if any(own.values()) else b""
    received = _exchange([data] + [b""] * (topology.size() - 1), name)
    return received if not topology.rank() else []


def scatter_residuals(each: Sequence[bytes], name: str) -> Dict[str, Any]:
    """Return this rank's residuals, by the names of trainers. Rank 0 sends them. Collective.

    :param each: on rank 0 the result of :func:`collect_residuals`; ignored on other ranks.
    """
    data, *_ = _exchange(each if not topology.rank() else [b""] * topology.size(), name)
    return pickle.loads(data) if data else {}


def _exchange(to_each: Sequence[bytes], name: str) -> List[bytes]:
    sent = np.frombuffer(b"".join(to_each), np.uint8)
    name = tensor_name("alltoall", f"{name}.left_out", global_process_set)
    splits = [len(data) for data in to_each]
    received, counts = grouped.exchange(name, sent, splits, global_process_set).synchronize()
    return [part.tobytes() for part in np.split(received, np.cumsum(counts)[:-1])]


def warn(why: str, remedy: str = _REMEDY) -> None:
    """Warn that the residuals of this rank are lost."""
    warnings.warn(
        f"rank {topology.rank()} of {topology.size()} has lost the parts of its gradients that "
        f"compression had left out: {why}{remedy}",
        stacklevel=4,
    )


def refuse_begun(passes: int, begun: bool) -> None:
    """Refuse to save states between the backward passes of a step: they lack the gradients' sum."""
    if passes > 1 and begun:
        raise RuntimeError(
            f"only some of this step's {passes} backward passes are done, and their gradients are "
            "not saved with the optimizer's states: save after the step"
        )

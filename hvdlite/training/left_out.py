"""What compression leaves out of each gradient on a rank, which it adds to that rank's next one.

It is a rank's own: the states that rank 0 saves have none of the other ranks'.
"""

import warnings
from typing import Any, Dict

from hvdlite.core import topology

_REMEDY = (
    ". To keep it, save the optimizer's states on every rank, and load on each rank what it has "
    "saved, in a job of equally many ranks"
)
KEY = "hvdlite_left_out"  # beside an optimizer's states


def tagged(left_out: Dict[Any, Any]) -> Dict[str, Any]:
    """Return what this rank saves: whose it is, and that by the names of gradients."""
    return {"rank": topology.rank(), "size": topology.size(), "left_out": left_out}


def own_of(saved: Dict[str, Any]) -> Dict[Any, Any]:
    """Return what this rank has saved; where another has, warn, and return nothing."""
    if (saved["rank"], saved["size"]) == (topology.rank(), topology.size()):
        return saved["left_out"]
    warn(f"rank {saved['rank']} of {saved['size']} has saved these states")
    return {}


def warn(why: str, remedy: str = _REMEDY) -> None:
    """Warn that this rank trains on without what compression had left out."""
    warnings.warn(
        f"rank {topology.rank()} of {topology.size()}: what compression had left out of this "
        f"rank's gradients is lost: {why}{remedy}",
        stacklevel=4,
    )


def warn_of_a_commit() -> None:
    """Warn so in elastic training, which goes back to a commit."""
    warn("elastic training goes on from the states of one rank", "")


def refuse_begun(passes: int, begun: bool) -> None:
    """Raise RuntimeError if some of a step's passes have been done: their sum is not saved."""
    if passes > 1 and begun:
        raise RuntimeError(
            f"backward has added up gradients of some of a step's {passes} passes, which are not "
            "saved with the optimizer's states: save after the step that ends the last of them"
        )

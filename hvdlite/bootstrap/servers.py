"""The bootstrap of a job with a scheduler and servers, started by MXNet's launcher launch.py.

launch.py starts the user's command as scheduler, servers and workers, and waits for the scheduler.
In the scheduler and servers ``import mxnet`` returns only when all workers have connected and
disconnected. So each worker connects, learns where the other workers are, and disconnects.
"""

import importlib
import os
import sys

from hvdlite.core import agent_protocol, member, places, start
from hvdlite.core.launchers import OPEN_MPI, PMI, SRUN
from hvdlite.core.native import HvdliteError

_MODULE = "hvdlite.mxnet.servers"  # imports MXNet
# Variables with a worker's number.
_NUMBERS = ("DMLC_TASK_ID", *(each.rank for each in (OPEN_MPI, PMI, SRUN)))


def serve() -> None:
    """If this process was started as a server or the scheduler, serve and exit.

    :raises HvdliteError: MXNet can't be imported.
    """
    role = os.environ.get("DMLC_ROLE")
    if role in ("server", "scheduler"):
        _import(f"is MXNet's {role}", "mxnet")
        raise HvdliteError(f"init(): DMLC_ROLE={role}: this process is not a rank. {_way_out()}")


def rendezvous(patience: float) -> None:
    """Connect to the scheduler as one of the workers. Collective among the workers.

    Under hvdliterun do nothing, because hvdliterun tells each worker where the other workers are.

    :param patience: seconds; 0: no limit.
    :raises HvdliteError: workers are missing after ``patience``; MXNet can't be imported.
    """
    _warn_of_tracker()
    if places.is_of_servers(member.own_environment()) and not agent_protocol.by_an_agent():
        _import("learns from MXNet's scheduler where the other workers are", _MODULE)
        place = sys.modules[_MODULE].rendezvous(patience)
        known = start.without_mpi()
        if known is not None and known.launcher == places.SERVERS:
            start.set_place(place)


def _warn_of_tracker() -> None:
    """Warn, on one worker of a job without servers, that dmlc's tracker will not end by itself."""
    of_tracker = os.environ.get("DMLC_ROLE") == "worker" and "DMLC_TRACKER_URI" in os.environ
    is_first = all(os.environ.get(name, "0") == "0" for name in _NUMBERS)
    if of_tracker and is_first and "DMLC_PS_ROOT_URI" not in os.environ:
        print(
            "hvdlite: dmlc-submit, or launch.py with `-s 0`, waits for workers of Rabit even after "
            f"this job: end it by Ctrl-C. {_way_out()}",
            file=sys.stderr,
            flush=True,
        )


def leave(patience: float = 0) -> None:
    """Disconnect. The scheduler and the servers end when all workers have disconnected.

    :param patience: seconds to wait for the other workers; 0: no limit.
    """
    if _MODULE in sys.modules:
        sys.modules[_MODULE].leave(patience)


def _import(what: str, name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        text = f"init(): this process {what}, but MXNet cannot be imported: {error}. {_way_out()}"
        raise HvdliteError(text) from error


def _way_out() -> str:
    workers = os.environ.get("DMLC_NUM_WORKER", "N")
    return f"Start the job by `hvdliterun -n {workers} python train.py`, without servers"

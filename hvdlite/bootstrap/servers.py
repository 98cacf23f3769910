"""What a job does with MXNet's servers, where MXNet's own launcher, launch.py, has started it.

launch.py starts a scheduler and servers beside the workers, all by the user's command, and waits
for the scheduler. These serve inside ``import mxnet``, until all workers have come and gone. So
each worker comes and goes, though it needs no server, and learns where the other workers are.
"""

import importlib
import os
import sys

from hvdlite.core import agent_protocol, start
from hvdlite.core.native import HvdliteError

_MODULE = "hvdlite.mxnet.servers"  # imports MXNet
_NUMBERS = ("DMLC_TASK_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")  # of a process


def serve() -> None:
    """Serve, then exit, if this process was started as a server or the scheduler; else return.

    :raises HvdliteError: there is no MXNet.
    """
    role = os.environ.get("DMLC_ROLE")
    if role in ("server", "scheduler"):
        _import(f"is MXNet's {role}", "mxnet")
        raise HvdliteError(f"init(): DMLC_ROLE={role}: this process is no rank. {_way_out()}")


def come(patience: float) -> None:
    """Report to the scheduler as one of the workers. Collective, among the workers.

    hvdliterun ends its servers itself, and tells its workers where they are.

    :param patience: seconds; 0: no limit.
    :raises HvdliteError: some have not come in time; there is no MXNet.
    """
    _warn_of_tracker()
    if start.is_of_servers() and not agent_protocol.by_an_agent():
        _import("learns from MXNet's scheduler where the others are", _MODULE)
        place = sys.modules[_MODULE].come(patience)
        known = start.without_mpi()
        if known is not None and known.launcher == start.SERVERS:
            start.give(place)


def _warn_of_tracker() -> None:
    """Print, as one worker, that dmlc's tracker for jobs without servers outlives the job."""
    of_tracker = os.environ.get("DMLC_ROLE") == "worker" and "DMLC_TRACKER_URI" in os.environ
    is_first = all(os.environ.get(name, "0") == "0" for name in _NUMBERS)
    if of_tracker and is_first and "DMLC_PS_ROOT_URI" not in os.environ:
        print(
            "hvdlite: dmlc-submit, or launch.py with `-s 0`, waits for workers of Rabit even after "
            f"this job: end it by Ctrl-C. {_way_out()}",
            file=sys.stderr,
            flush=True,
        )


def go(patience: float = 0) -> None:
    """Let the scheduler and the servers end, once the other workers do the same.

    :param patience: seconds to wait for these; 0: no limit.
    """
    if _MODULE in sys.modules:
        sys.modules[_MODULE].go(patience)


def _import(what: str, name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError as error:
        text = f"init(): this process {what}, and MXNet cannot be imported: {error}. {_way_out()}"
        raise HvdliteError(text) from error


def _way_out() -> str:
    workers = os.environ.get("DMLC_NUM_WORKER", "N")
    return f"Start the job by `hvdliterun -n {workers} python train.py`, without servers"

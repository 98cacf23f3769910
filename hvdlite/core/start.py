"""How a job starts: by MPI, or by a launcher that only gives each process a rank and an address.

Launchers of the second kind are torchrun (all five of its variables must be set), a launcher that
sets JAX's three variables, Slurm's srun, and MXNet's launch.py. launch.py gives a worker only the
address of MXNet's scheduler; the scheduler gives the worker its rank. hvdlite uses the variables of
these launchers if no MPI launcher started the process. With HVDLITE_TRANSPORT=tcp, hvdlite always
uses these variables; with HVDLITE_TRANSPORT=mpi, it never does. If hvdlite uses them, or finds no
launcher, it loads neither mpi4py nor a libmpi. The first init() decides this, not an import.
"""

from typing import Any, Optional

from hvdlite.core import member, mpi
from hvdlite.core.member import TRANSPORT, TRANSPORTS
from hvdlite.core.module_state import ModuleState
from hvdlite.core.places import ALONE, Place, place_in

NEEDS_MPI = f"{{}} needs MPI: start the job by `hvdliterun` or mpirun, without {TRANSPORT}=tcp"


class _Start(ModuleState):
    def begin(self) -> None:
        # rank, size and rank 0's address, if the program or MXNet's scheduler has chosen them
        self.chosen: Optional[Place] = None
        self.is_decided = False  # True after decide(), which the first init() calls
        # rank, size and rank 0's address, as decide() has found them; None: the job uses MPI
        self.place: Optional[Place] = None


_start = _Start()


def place() -> Optional[Place]:
    """Return where the ranks of this job meet without MPI; None: the job uses MPI.

    :raises ValueError: a variable has a wrong value.
    """
    if is_by_mpi():
        return None
    environ = member.own_environment()
    return _start.chosen or place_in(environ, with_mpi=bool(environ.get(TRANSPORT)))


def is_by_mpi() -> bool:
    """Return True if the user chose MPI, or by default if an MPI launcher started this process."""
    environ = member.own_environment()
    chosen = environ.get(TRANSPORT, "")
    if chosen and chosen not in TRANSPORTS:
        raise ValueError(f"{TRANSPORT} is '{chosen}': expected {' or '.join(TRANSPORTS)}")
    return chosen == "mpi" or (not chosen and member.has_launcher_of_mpi())


def has_mpi_ranks() -> bool:
    """Return True if MPI runs with several ranks, or :func:`is_by_mpi` is True."""
    return mpi.ranks() > 1 or is_by_mpi()


def can_decide_at_end(well: bool) -> bool:
    """Return True if this process can join its job when its script has ended without init().

    :param well: the script has not failed. If it has failed, the launcher ends ranks in MPI_Init.
    """
    can_begin_mpi = well and member.has_launcher_of_mpi()
    return without_mpi() is not None or mpi.is_running() or can_begin_mpi


def set_place(found: Place) -> None:
    """Set the place where the ranks meet, as the program or MXNet's scheduler has chosen it.

    A program must call this before the first init().
    """
    _start.chosen = found
    if _start.is_decided:
        _start.place = found


def decide(comm: Any = None) -> None:
    """Decide how this process's job starts; a second call does nothing.

    :param comm: the argument of init(): a communicator, or a list of MPI's ranks, or None.
    """
    if not _start.is_decided:
        _start.place, _start.is_decided = _find_place(comm), True


def is_decided() -> bool:
    return _start.is_decided


def without_mpi() -> Optional[Place]:
    """Return the place that decide() has found, or now finds; None: the job uses MPI."""
    return _start.place if _start.is_decided else _find_place()


def transport() -> str:
    """Return the transport that decide() has found, or now finds: a name of TRANSPORTS."""
    return "mpi" if without_mpi() is None else member.own_environment().get(TRANSPORT) or "tcp"


def _find_place(comm: Any = None) -> Optional[Place]:
    if member.own_environment().get(TRANSPORT, "") not in ("", "mpi"):
        return place()
    ranks = mpi.ranks()
    found = None if ranks > 1 else place()
    return None if found == ALONE and (ranks or comm is not None) else found

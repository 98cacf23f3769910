"""run: calls a training function again, from the last commit, when ranks have died."""

import functools
from typing import Any, Callable, Optional

from mpi4py import MPI

from hvdlite import frameworks, names, topology
from hvdlite.elastic.state import State
from hvdlite.lifecycle import job, members
from hvdlite.numpy import barrier
from hvdlite.objects import allgather_object
from hvdlite.process_sets import registry


def run(function: Callable) -> Callable:
    """Decorate a training function, so that training goes on when ranks die.

    ::

        @hvd.elastic.run
        def train(state):
            while state.epoch < epochs:
                ...
                state.epoch += 1
                state.commit()

        train(hvd.elastic.GluonState(net=net, trainer=trainer, epoch=0))

    The function's first argument is a :class:`State`. Each call begins with ``state.sync()``. If a
    rank dies, the others leave the function at their next collective, take the state back to the
    newest commit that any of them has, and call the function again. It ends when the function has
    returned on all ranks that are left.

    That needs Open MPI 5 and ``mpirun --with-ft ulfm``; other launchers end the job with a rank.
    Whatever the function raises here, but for the failure of a collective, ends this rank alone.

    :raises hvdlite.HvdliteError: a collective failed though no rank has died; or a rank that lives
        did not come to go on together within HVDLITE_ELASTIC_TIMEOUT_SECONDS (600).
    """

    @functools.wraps(function)
    def wrapper(state: State, *args, **kwargs) -> Any:
        members.be_elastic()
        members.begin(topology.communicator())
        left: Optional[_Left] = None  # the job that had a death
        while True:
            well, result = False, None
            try:
                if left:
                    left.begin_anew()
                    left = None
                    state.on_reset()
                state.sync()
                result = function(state, *args, **kwargs)
                frameworks.wait_all()
                barrier()
                well = True
            except RuntimeError:  # those of hvdlite, of MPI and of the frameworks are
                if not members.is_seen(members.NEWS_SECONDS):
                    raise
            if members.agreed(well):
                return result
            members.revoke()
            left = left or _Left()
            job.leave_broken()
            state.restore()
            members.shrink()

    return wrapper


class _Left:
    """What a process takes from a job with a dead rank to the next job."""

    def __init__(self) -> None:
        self._group = topology.communicator().group
        self._owners = names.owners()
        self._sets = {p.process_set_id: p for p in registry.process_sets() if p.process_set_id}
        self._ranks = {number: p.ranks for number, p in self._sets.items()}

    def begin_anew(self) -> None:
        """Join a job of those that are left, with the same names and process sets."""
        job.leave_broken()
        job.init()
        for owners in allgather_object(self._owners, "owners"):
            names.count_owners(owners)
        new = MPI.Group.Translate_ranks(self._group, None, members.world().group)
        left = {
            number: [new[rank] for rank in ranks if new[rank] != MPI.UNDEFINED]
            for number, ranks in self._ranks.items()
        }
        registry.renumber(self._sets, left)

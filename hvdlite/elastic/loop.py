"""run: calls a training function again, from the last commit, when ranks have died or come."""

import functools
from typing import Any, Callable, Optional

import numpy as np

from hvdlite.core import frameworks, names, registry, topology
from hvdlite.core.collectives import run as run_collective
from hvdlite.core.native import HvdliteError, failure_of, lib
from hvdlite.core.objects import allgather_object
from hvdlite.core.reduce_ops import Sum
from hvdlite.elastic.exceptions import HostsUpdatedInterrupt
from hvdlite.elastic.state import State
from hvdlite.lifecycle import job, resets
from hvdlite.lifecycle import socket_members as members


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

    Under ``hvdliterun --elastic`` new ranks are started for those that have died. They make ready
    while the others train on, and come in at a commit; the function is called again on all ranks.

    It does not run over MPI, which ends all ranks with one; docs/elastic.md tells what does.
    Whatever the function raises here, but for the failure of a collective, ends this rank alone.

    :raises hvdlite.HvdliteError: MPI has started this process; or a collective failed though no
        rank has died; or a rank that lives did not come to go on together within
        HVDLITE_ELASTIC_TIMEOUT_SECONDS (600); or fewer ranks are left than
        HVDLITE_ELASTIC_MIN_RANKS; or ranks have died more often than HVDLITE_ELASTIC_RESET_LIMIT;
        or only new ranks are left, which have no state yet.
    """

    @functools.wraps(function)
    def wrapper(state: State, *args, **kwargs) -> Any:
        topology.size()  # or the error that init() was not called
        world = topology.world()
        if job.door().TRANSPORT == "mpi":
            job.door().refuse_elastic()
            state.sync()
            return function(state, *args, **kwargs)
        members.begin(world)
        left: Optional[_Left] = None  # the job that had a death, or is to have newcomers
        has_state = not members.is_newcomer()  # of training
        if has_state:
            members.wait_for_newcomers()
        else:
            left = _Left()
            members.come_in()
        while True:
            vote, result, cause = resets.SOMETHING_FAILED, None, None
            try:
                if left:
                    left.begin_anew(has_state)
                    left = None
                    state.on_reset()
                state.sync()
                has_state = True
                result = function(state, *args, **kwargs)
                frameworks.wait_all()
                _return_together()
                vote = resets.ALL_IS_DONE
            except HostsUpdatedInterrupt:
                vote = resets.LET_NEWCOMERS_IN
            except Exception as error:  # TensorFlow's alone are no RuntimeErrors
                failed = failure_of(error)
                if not failed and not isinstance(error, RuntimeError):
                    raise
                if failed and failed.kind == "rank left":
                    job.begin_to_leave()  # else that rank would wait for this one before it ends
                if not members.have_caused(error):
                    raise
                job.begin_to_leave()
                cause = error
            try:
                verdict = members.agreed(vote)
            except HvdliteError as late:
                raise late from cause  # which names the ranks
            if verdict == resets.ALL_IS_DONE:
                return result
            left = left or _Left()
            if verdict == resets.LET_NEWCOMERS_IN:
                job.leave_broken()
                members.go_on()
                continue
            job.leave_broken()
            state.restore()
            members.shrink()

    return wrapper


def _return_together() -> None:
    """Wait for all ranks' return; an error on all, if others wait for a rank that is here."""
    nothing = np.empty(0, np.uint8)
    name = "end of the function of hvd.elastic.run"
    run_collective(lib.HVD_ALLREDUCE, name, nothing, nothing, op=Sum, last=1)


class _Left:
    """What a process takes from a job with a dead rank to the next job."""

    def __init__(self) -> None:
        self._members = topology.world().members()
        self._owners = names.owners()
        self._sets = {p.process_set_id: p for p in registry.process_sets() if p.process_set_id}
        self._ranks = {number: p.ranks for number, p in self._sets.items()}

    def begin_anew(self, has_state: bool) -> None:
        """Join a job of those that are left, with the same names and process sets.

        :raises hvdlite.HvdliteError: they are new, and none has the state of training.
        """
        job.leave_broken()
        job.init()
        own = self._owners, has_state
        owners, have_state = zip(*allgather_object(own, "elastic.ranks"))
        if not any(have_state):
            raise HvdliteError(
                "all ranks that had the state of training have died before the new ones got it: "
                "start the job again, from its last checkpoint"
            )
        for each in owners:
            names.count_owners(each)
        new = topology.world().ranks_of(self._members)
        left = {
            number: [rank for rank in map(new.__getitem__, ranks) if rank is not None]
            for number, ranks in self._ranks.items()
        }
        registry.renumber(self._sets, left)

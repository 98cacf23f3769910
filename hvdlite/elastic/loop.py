"""run: calls a training function again, from the last commit, when ranks have died or joined."""

import functools
from typing import Any, Callable, Optional, Tuple

import numpy as np

from hvdlite import job
from hvdlite.core import frameworks, names, registry, topology
from hvdlite.core.collectives import run as run_collective
from hvdlite.core.membership import ALL_IS_DONE, LET_REPLACEMENTS_IN, SOMETHING_FAILED
from hvdlite.core.native import RANK_LEFT, HvdliteError, failure_of, lib
from hvdlite.core.objects import allgather_object
from hvdlite.core.reduce_ops import Sum
from hvdlite.elastic.state import HostsUpdatedInterrupt, State


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

    Under ``hvdliterun --elastic`` the launcher starts a replacement for each dead rank. The
    replacement prepares while the others train on, and joins at a commit; then the function is
    called again on all ranks.

    Elastic training does not run over MPI, where one death ends all ranks; see docs/elastic.md. An
    exception of the function that is not the failure of a collective ends this rank alone.

    :raises hvdlite.HvdliteError: MPI has started this process; or a collective failed though no
        rank has died; or a rank that lives did not meet the others within
        HVDLITE_ELASTIC_TIMEOUT_SECONDS (600); or fewer ranks are left than
        HVDLITE_ELASTIC_MIN_RANKS; or ranks have died more often than HVDLITE_ELASTIC_RESET_LIMIT;
        or only new ranks are left, which have no state yet.
    """

    @functools.wraps(function)
    def wrapper(state: State, *args, **kwargs) -> Any:
        topology.size()  # raises if init() was not called
        training = _Training(state, functools.partial(function, state, *args, **kwargs))
        training.begin()
        while True:
            verdict, result = training.attempt()
            if verdict == ALL_IS_DONE:
                return result
            training.leave_job(verdict)

    return wrapper


class _Training:
    """A training function and the ranks that run it.

    :param function: without arguments.
    """

    def __init__(self, state: State, function: Callable[[], Any]) -> None:
        self._state, self._function = state, function
        self._members = job.membership()
        # the state of the job that this process has left, after a death or for replacements
        self._left: Optional[_Left] = None
        self._has_state = True  # True: this rank has the state of training

    def begin(self) -> None:
        """Prepare for deaths; join the running job if this rank is a replacement."""
        self._members.begin(topology.world())
        if self._members.is_replacement():
            self._has_state = False
            self._left = _Left()
            self._members.come_in()
        else:
            self._members.wait_for_replacements()

    def attempt(self) -> Tuple[int, Any]:
        """Run the function once; return what the ranks have agreed on, and the function's result.

        :raises Exception: what the function has raised, if no death has caused it.
        """
        result, cause = None, None
        try:
            result = self._train()
            vote = ALL_IS_DONE
        except HostsUpdatedInterrupt:
            vote = LET_REPLACEMENTS_IN
        # all exceptions, because TensorFlow's errors are no RuntimeErrors
        except Exception as error:
            if not self._is_of_a_death(error):
                raise
            job.begin_to_leave()
            vote, cause = SOMETHING_FAILED, error
        try:
            return self._members.agree(vote), result
        except HvdliteError as late:
            raise late from cause  # the failure that caused the exception names the ranks

    def _train(self) -> Any:
        if self._left:
            self._left.begin_anew(self._has_state)
            self._left = None
            self._state.on_reset()
        self._state.sync()
        self._has_state = True
        result = self._function()
        frameworks.wait_all()
        _return_together()
        return result

    def _is_of_a_death(self, error: Exception) -> bool:
        failed = failure_of(error)
        if not failed and not isinstance(error, RuntimeError):
            return False
        if failed and failed.kind == RANK_LEFT:
            # otherwise the failed rank would wait for this rank before it ends
            job.begin_to_leave()
        return self._members.have_caused(error)

    def leave_job(self, verdict: int) -> None:
        """Leave the job for the next one, without the dead ranks or with replacements."""
        self._left = self._left or _Left()
        job.leave_broken()
        if verdict == LET_REPLACEMENTS_IN:
            self._members.go_on()
        else:
            self._state.restore()
            self._members.shrink()


def _return_together() -> None:
    """Wait until all ranks have returned; raise on all if another rank still needs this one."""
    nothing = np.empty(0, np.uint8)
    name = "end of the function of hvd.elastic.run"
    run_collective(lib.HVD_ALLREDUCE, name, nothing, nothing, op=Sum, last=1)


class _Left:
    """The state that a process takes from one job to the next."""

    def __init__(self) -> None:
        self._members = topology.world().members()
        self._owners = names.owners()
        self._sets = {p.process_set_id: p for p in registry.process_sets() if p.process_set_id}
        self._ranks = {number: p.ranks for number, p in self._sets.items()}

    def begin_anew(self, has_state: bool) -> None:
        """Join the job of the ranks that are left, with the same names and process sets.

        :raises hvdlite.HvdliteError: only replacements are left, which have no state yet.
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

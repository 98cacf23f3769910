"""run: calls a training function again, from the last commit, when ranks have died or joined."""

import functools
from typing import Any, Callable, Optional, Tuple

import numpy as np

from hvdlite import job
from hvdlite.core import frameworks, names, registry, topology
from hvdlite.core.collectives import run as run_collective
from hvdlite.core.membership import ALL_IS_DONE, LET_REPLACEMENTS_IN, SOMETHING_FAILED
from hvdlite.core.native import HvdliteError, failure_of, lib
from hvdlite.core.objects import allgather_object
from hvdlite.core.reduce_ops import Sum
from hvdlite.elastic.state import HostsUpdatedInterrupt, State
from hvdlite.joined import membership


def run(function: Callable) -> Callable:
    """Decorate a training function, so that training continues when ranks die.

    ::

        @hvd.elastic.run
        def train(state):
            while state.epoch < epochs:
                ...
                state.epoch += 1
                state.commit()

        train(hvd.elastic.GluonState(net=net, trainer=trainer, epoch=0))

    The function's first argument is a :class:`State`. Before each call of the function, ``run``
    calls ``state.sync()``. If a rank dies, the next collective raises on all other ranks. These
    ranks restore the newest commit of all of them, and ``run`` calls the function again. Training
    ends when the function has returned on all remaining ranks.

    Under ``hvdliterun --elastic`` the launcher starts a replacement for each dead rank. The
    replacement starts while the other ranks train, and joins at a commit; then ``run`` calls the
    function again on all ranks.

    Elastic training does not run over MPI, where one death ends all ranks; see docs/elastic.md. If
    the function raises an exception, and no failed collective is its cause, only this rank ends.

    :raises hvdlite.HvdliteError: MPI has started this process; or a collective failed, but no rank
        has died; or a living rank did not meet the others within
        HVDLITE_ELASTIC_TIMEOUT_SECONDS (600); or fewer ranks are left than
        HVDLITE_ELASTIC_MIN_RANKS; or ranks have died more often than HVDLITE_ELASTIC_RESET_LIMIT;
        or all ranks that are left are replacements, which have no state yet.
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
    """Runs a training function without arguments, again in each new job."""

    def __init__(self, state: State, function: Callable[[], Any]) -> None:
        self._state, self._function = state, function
        self._members = membership()
        # Set after this process has left a job, until it has joined the next job.
        self._left: Optional[_Left] = None
        self._has_state = True  # False on a replacement before its first sync()

    def begin(self) -> None:
        """Prepare for deaths; join the running job if this rank is a replacement."""
        self._members.begin(topology.world())
        if self._members.is_replacement():
            self._has_state = False
            self._left = _Left()
            self._members.join()
        else:
            self._members.wait_for_replacements()

    def attempt(self) -> Tuple[int, Any]:
        """Run the function; return how it ended on all ranks (ALL_IS_DONE, ...), and its result.

        :raises Exception: the function's exception, unless the death of a rank has caused it.
        """
        result, cause = None, None
        try:
            result = self._train()
            vote = ALL_IS_DONE
        except HostsUpdatedInterrupt:
            vote = LET_REPLACEMENTS_IN
        # Catch Exception, because TensorFlow's errors are not RuntimeErrors.
        except Exception as error:
            is_failure = failure_of(error) is not None or isinstance(error, RuntimeError)
            if not (is_failure and self._members.have_caused(error)):
                raise
            job.begin_to_leave()
            vote, cause = SOMETHING_FAILED, error
        try:
            return self._members.agree(vote), result
        except HvdliteError as late:
            raise late from cause  # the text of `cause` names the dead ranks

    def _train(self) -> Any:
        if self._left:
            self._left.begin_anew(self._has_state)
            self._left = None
            self._state.on_reset()
        self._state.sync()
        self._has_state = True
        result = self._function()
        frameworks.wait_all()
        # wait until the function returns on all ranks; if a rank still submits tensors, all raise
        nothing = np.empty(0, np.uint8)
        name = "end of the function of hvd.elastic.run"
        run_collective(lib.HVD_ALLREDUCE, name, nothing, nothing, op=Sum, last=1)
        return result

    def leave_job(self, verdict: int) -> None:
        """Leave the job. The next job begins with the replacements, or without the dead ranks."""
        self._left = self._left or _Left()
        job.leave_broken()
        if verdict == LET_REPLACEMENTS_IN:
            self._members.accept_meeting()
        else:
            self._state.restore()
            self._members.drop_dead()


class _Left:
    """Names and process sets of a job that this process has left, for use in the next job."""

    def __init__(self) -> None:
        self._members = topology.world().members()
        self._owners = names.owners()
        self._sets = {p.process_set_id: p for p in registry.process_sets() if p.process_set_id}
        self._ranks = {number: p.ranks for number, p in self._sets.items()}

    def begin_anew(self, has_state: bool) -> None:
        """Join the next job; continue the old job's names and process sets there. Collective.

        :raises hvdlite.HvdliteError: all ranks are replacements, which have no state yet.
        """
        job.leave_broken()
        job.init()
        own = self._owners, has_state
        owners, have_state = zip(*allgather_object(own, "elastic.ranks"))
        if not any(have_state):
            raise HvdliteError(
                "all ranks that had the training state have died before a new rank received the "
                "state: start the job again from the last checkpoint"
            )
        for each in owners:
            names.count_owners(each)
        new = topology.world().ranks_of(self._members)
        left = {
            number: [rank for rank in map(new.__getitem__, ranks) if rank is not None]
            for number, ranks in self._ranks.items()
        }
        registry.renumber(self._sets, left)

"""States: values that training keeps when ranks die, and sends to all ranks before it goes on.

A state has parts. A part knows how to copy a value of its kind, restore it, and reset it for
another job.
"""

import copy
from typing import Any, Callable, Dict, Iterable, List, Tuple

import numpy as np

from hvdlite import job
from hvdlite.core import topology
from hvdlite.core.membership import Membership
from hvdlite.core.native import HvdliteError, call, lib
from hvdlite.core.objects import broadcast_object
from hvdlite.core.reduce_ops import Max
from hvdlite.numpy import allgather, allreduce
from hvdlite.training import left_out

HorovodInternalError = HvdliteError  # Horovod's name


class HostsUpdatedInterrupt(RuntimeError):
    """Replacements join the job: ``commit`` raises it on all ranks, and ``run`` goes on with them.

    :param skip_sync: True: the present ranks need no new values.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("the hosts have changed")
        self.skip_sync = skip_sync


class State:
    """Values that :func:`hvdlite.elastic.run` takes back to a commit: a base class.

    A subclass has ``save()``, which keeps a copy of what training has changed; ``restore()``, which
    puts the copy back; and ``sync()``, which makes all ranks equal. The last two are also called
    after a death, and with replacements.
    """

    def __init__(self) -> None:
        self._reset_callbacks: List[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Call these functions when the ranks have changed, before ``sync``.

        For example, to set the learning rate for the new ``hvd.size()``.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Take part in a new job: ``reset()``, then the callbacks. ``run`` calls it."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keep the state as it is now: a death takes training back to the last commit.

        Call it at the same place on every rank. It waits for the work under way and copies the
        state, so it need not follow every step.

        :raises hvdlite.HvdliteError: a rank has died; the last commit stays.
        :raises HostsUpdatedInterrupt: replacements join the job; ``run`` goes on with them.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Look for replacements that are ready to join. Collective.

        :raises HostsUpdatedInterrupt: on all ranks; ``run`` goes on with the replacements.
        """
        if topology.is_initialized() and _are_ready(job.membership()):
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Keep a copy of the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Put the copy back. Not collective."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make the state, and its copy, equal on all ranks. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt to a new job, with other ranks."""


class Part:
    """The way in which a state keeps a value. This class replaces the value by copies of it."""

    def take(self, value) -> Any:
        """Return a copy of what training changes in the value; it can be pickled."""
        return copy.deepcopy(value)

    def give(self, value, taken) -> Any:
        """Return the value as it was when ``taken`` was taken, here or on another rank."""
        return copy.deepcopy(taken)

    def own(self, value) -> Any:
        """Return a copy of the part of the value that no other rank has, such as residuals."""
        gradients = self._gradients(value)
        return gradients.left_out() if gradients else {}

    def give_own(self, value, own) -> None:
        """Restore after ``give`` what :meth:`own` returned; None: this rank has nothing."""
        gradients = self._gradients(value)
        if gradients:
            gradients.leave_out(own or {})

    def _gradients(self, value) -> Any:
        """Return the gradients that the value's compression leaves parts out of; None: none."""

    def reset(self, value) -> None:
        """Prepare the value for a job with other ranks. Not collective."""


class StateDict(Part):
    """An object with ``state_dict`` and ``load_state_dict``, which stays the same object."""

    def take(self, value) -> Any:
        return copy.deepcopy(value.state_dict())

    def give(self, value, taken) -> Any:
        value.load_state_dict(copy.deepcopy(taken))
        return value

    def reset(self, value) -> None:
        getattr(value, "reset", lambda: None)()


class ObjectState(State):
    """A state of named values, which are its attributes: numbers, arrays, whatever pickle takes.

    ::

        state = hvd.elastic.ObjectState(weights=weights, step=0)
        state.step += 1

    A value with ``state_dict`` and ``load_state_dict``, such as an :class:`ElasticSampler`, stays
    the same object. If it has ``reset``, that is called when the ranks have changed.

    :param bcast_object: and ``get_rank``: accepted for Horovod's scripts, and not used.
    :param values: the same names on every rank.
    """

    def __init__(self, bcast_object=None, get_rank=None, **values) -> None:
        super().__init__()
        self._parts: Dict[str, Part] = {name: self._part(value) for name, value in values.items()}
        for name, value in values.items():
            setattr(self, name, value)
        self._saved, self._kept = self._take()
        self._commits = 0

    def _part(self, value) -> Part:
        has_dict = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
        return StateDict() if has_dict else Part()

    def save(self) -> None:
        """Keep a copy of the values.

        :raises hvdlite.HvdliteError: a rank has died; the last copy stays.
        """
        taken = self._take()
        if topology.is_initialized():
            call(lib.hvd_check)  # raises if work has failed, whose results must not be kept
        self._saved, self._kept = taken
        self._commits += 1

    def restore(self) -> None:
        self._give()

    def sync(self) -> None:
        """Give all ranks the newest commit that any of them has; at first, rank 0's values."""
        commits = allgather(np.array([self._commits]), "elastic.commits")
        newest = int(commits.argmax())
        if not self._commits:
            self._saved, self._kept = self._take()
        self._saved = broadcast_object(self._saved, newest, "elastic.state")
        if self._commits != commits[newest]:
            if any(self._kept.values()):
                left_out.warn(f"rank {newest} has a newer commit, from which training goes on", "")
            self._kept = {}
        self._commits = int(commits[newest])
        self._give()

    def reset(self) -> None:
        for name, part in self._parts.items():
            part.reset(getattr(self, name))
            part.give_own(getattr(self, name), self._kept.get(name))

    def _take(self) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Return what all ranks get of each value, and what is this rank's own."""
        parts = [(name, part, getattr(self, name)) for name, part in self._parts.items()]
        taken = {name: part.take(value) for name, part, value in parts}
        return taken, {name: part.own(value) for name, part, value in parts}

    def _give(self) -> None:
        for name, value in self._saved.items():
            part = self._parts[name]
            setattr(self, name, part.give(getattr(self, name), value))
            part.give_own(getattr(self, name), self._kept.get(name))


def _are_ready(members: Membership) -> bool:
    """Return True if rank 0 knows ready replacements, and the job may grow. Collective."""
    if not members.may_grow():
        return False
    ready = not topology.rank() and members.are_ready()
    return bool(allreduce(np.array([int(ready)]), name="elastic.replacements", op=Max)[0])

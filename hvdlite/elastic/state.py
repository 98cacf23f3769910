"""States: what training keeps when ranks die, and sends to all ranks before it goes on.

A state has parts: how a value is copied, put back, and begun anew in another job, by its kind.
"""

import copy
from typing import Any, Callable, Dict, Iterable, List

import numpy as np

from hvdlite import job
from hvdlite.core import topology
from hvdlite.core.membership import Membership
from hvdlite.core.native import call, lib
from hvdlite.core.objects import broadcast_object
from hvdlite.core.reduce_ops import Max
from hvdlite.elastic.exceptions import HostsUpdatedInterrupt
from hvdlite.numpy import allgather, allreduce


class State:
    """What :func:`hvdlite.elastic.run` takes back to a commit. A base class, for states of a kind.

    A subclass has ``save()``, which keeps a copy of what training has changed, ``restore()``, which
    puts the copy back, and ``sync()``, which makes all ranks equal; the last two may be called with
    ranks dead or new.
    """

    def __init__(self) -> None:
        self._reset_callbacks: List[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Call these functions when the ranks have changed, before ``sync``.

        One may set the learning rate for the new ``hvd.size()``, for example.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Take part in a new job: ``reset()``, then the callbacks. ``run`` calls it."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Keep the state as it is now: no death takes training further back than this.

        Call it at the same place on every rank. It waits for the work under way and copies the
        state, so it need not follow every step.

        :raises hvdlite.HvdliteError: a rank has died; the commit before stays.
        :raises HostsUpdatedInterrupt: ranks come into the job; ``run`` goes on with them.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Look for ranks that come into the job, in the place of those that have died. Collective.

        :raises HostsUpdatedInterrupt: on all ranks; ``run`` goes on with those that come.
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
    """A value of a state; this one is replaced by copies of itself."""

    def take(self, value) -> Any:
        """Return a copy of what training changes in the value; pickle takes it."""
        return copy.deepcopy(value)

    def give(self, value, taken) -> Any:
        """Return the value as it was when ``taken`` was taken, here or on another rank."""
        return copy.deepcopy(taken)

    def reset(self, value) -> None:
        """Begin anew in a job with other ranks. Not collective."""


class StateDict(Part):
    """An object with ``state_dict`` and ``load_state_dict``, which stays the same object."""

    def take(self, value) -> Any:
        return copy.deepcopy(value.state_dict())

    def give(self, value, taken) -> Any:
        value.load_state_dict(copy.deepcopy(taken))
        return value

    def reset(self, value) -> None:
        getattr(value, "reset", lambda: None)()


def part_of(value) -> Part:
    has_dict = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
    return StateDict() if has_dict else Part()


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
        self._saved = self._take()
        self._commits = 0

    def _part(self, value) -> Part:
        return part_of(value)

    def save(self) -> None:
        """Keep a copy of the values.

        :raises hvdlite.HvdliteError: a rank has died; the copy before stays.
        """
        taken = self._take()
        if topology.is_initialized():
            call(lib.hvd_check)  # else work that failed might be kept
        self._saved = taken
        self._commits += 1

    def restore(self) -> None:
        self._give(self._saved)

    def sync(self) -> None:
        """Give all ranks the newest commit of any; at first, rank 0's values."""
        commits = allgather(np.array([self._commits]), "elastic.commits")
        newest = int(commits.argmax())
        if not self._commits:
            self._saved = self._take()
        self._saved = broadcast_object(self._saved, newest, "elastic.state")
        self._commits = int(commits[newest])
        self._give(self._saved)

    def reset(self) -> None:
        for name, part in self._parts.items():
            part.reset(getattr(self, name))

    def _take(self) -> Dict[str, Any]:
        return {name: part.take(getattr(self, name)) for name, part in self._parts.items()}

    def _give(self, values: Dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, self._parts[name].give(getattr(self, name), value))


def _are_ready(members: Membership) -> bool:
    """Tell whether the first rank knows of replacements, and there is room for them. Collective."""
    if not members.may_grow():
        return False
    ready = not topology.rank() and members.are_ready()
    return bool(allreduce(np.array([int(ready)]), name="elastic.replacements", op=Max)[0])

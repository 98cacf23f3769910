"""States: values that survive the death of ranks, and that all ranks get before training continues.

A state has a Part for each value. The Part can copy the value, restore it from the copy, and reset
it for another job.
"""

import copy
from typing import Any, Callable, Dict, Iterable, List, Tuple

import numpy as np

from hvdlite.core import topology
from hvdlite.core.agreement import agree
from hvdlite.core.membership import Membership
from hvdlite.core.native import HvdliteError, call, lib
from hvdlite.core.objects import broadcast_object
from hvdlite.core.reduce_ops import Max
from hvdlite.elastic.sampler import ElasticSampler
from hvdlite.joined import membership
from hvdlite.numpy import allgather, allreduce
from hvdlite.training import left_out

HorovodInternalError = HvdliteError  # Horovod's name
_REMEDY = "Give the states of all ranks the same values, and samplers the same arguments."


class HostsUpdatedInterrupt(RuntimeError):
    """``commit`` raises this on all ranks when replacements join; ``run`` catches it.

    :param skip_sync: Horovod's argument; True: the ranks that raise this error need no new values.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__("replacements join: call commit() inside a hvd.elastic.run function")
        self.skip_sync = skip_sync


class State:
    """Base class of values that :func:`hvdlite.elastic.run` restores from a commit.

    A subclass has three methods. ``save()`` copies what training changes. ``restore()`` restores
    the copy after a death. ``sync()`` makes the values equal on all ranks: at the start, after a
    death, and when replacements have joined.
    """

    def __init__(self) -> None:
        self._reset_callbacks: List[Callable[[], Any]] = []

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Register functions that are called before ``sync`` when the ranks have changed.

        For example, a function can adapt the learning rate to the new ``hvd.size()``.
        """
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Call ``reset()``, then the callbacks. ``run`` calls this method in a new job."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the state; after a death training continues from the last commit.

        Every rank must commit at the same place. A commit waits for pending operations and copies
        the state, so committing after every step may be slow.

        :raises hvdlite.HvdliteError: a rank has died; the previous commit remains.
        :raises HostsUpdatedInterrupt: replacements join the job; ``run`` catches this.
        """
        self.save()
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Check whether replacements are ready to join. Collective.

        :raises HostsUpdatedInterrupt: on all ranks, if replacements join; ``run`` catches this.
        """
        if topology.is_initialized() and _are_ready(membership()):
            raise HostsUpdatedInterrupt

    def save(self) -> None:
        """Copy the state."""
        raise NotImplementedError

    def restore(self) -> None:
        """Restore the state from the copy. Not collective."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make the state and its copy equal on all ranks. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Adapt the state to a new job with other ranks."""


class Part:
    """Copies and restores one kind of value. This class replaces the object by a copy."""

    def save(self, value) -> Any:
        """Return a copy of everything in the value that training changes; it can be pickled."""
        return copy.deepcopy(value)

    def restore(self, value, saved) -> Any:
        """Return the value with the contents of ``saved``, which may be from another rank."""
        return copy.deepcopy(saved)

    def own(self, value) -> Any:
        """Return a copy of the compression residuals, which differ between ranks."""
        gradients = self._gradients(value)
        return gradients.left_out() if gradients else {}

    def restore_own(self, value, own) -> None:
        """After ``restore``, restore residuals that :meth:`own` returned; None: no residuals."""
        gradients = self._gradients(value)
        if gradients:
            gradients.leave_out(own or {})

    def _gradients(self, value) -> Any:
        """Return the object that keeps the value's compression residuals, or None."""

    def reset(self, value) -> None:
        """Prepare the value for a job with other ranks. Not collective."""


class StateDict(Part):
    """Copies and restores, in place, objects that have ``state_dict`` and ``load_state_dict``."""

    def save(self, value) -> Any:
        return copy.deepcopy(value.state_dict())

    def restore(self, value, saved) -> Any:
        value.load_state_dict(copy.deepcopy(saved))
        return value

    def reset(self, value) -> None:
        getattr(value, "reset", lambda: None)()


class ObjectState(State):
    """A state whose attributes are the values: numbers, arrays, or any objects that can be pickled.

    ::

        state = hvd.elastic.ObjectState(weights=weights, step=0)
        state.step += 1

    A value with ``state_dict`` and ``load_state_dict``, such as an :class:`ElasticSampler`, stays
    the same object. If it has a method ``reset``, the state calls it when the ranks have changed.

    :param bcast_object: ignored, as is ``get_rank``: both are Horovod's arguments.
    :param values: the values by name; the names are the same on every rank.
    """

    def __init__(self, bcast_object=None, get_rank=None, **values) -> None:
        super().__init__()
        self._parts: Dict[str, Part] = {name: self._part(value) for name, value in values.items()}
        for name, value in values.items():
            setattr(self, name, value)
        self._saved, self._kept = self._copy_values()
        self._commits = 0

    def _part(self, value) -> Part:
        has_dict = hasattr(value, "state_dict") and hasattr(value, "load_state_dict")
        return StateDict() if has_dict else Part()

    def save(self) -> None:
        """Copy the values.

        :raises hvdlite.HvdliteError: a rank has died; the previous copy remains.
        """
        saved = self._copy_values()
        if topology.is_initialized():
            call(lib.hvd_check)  # raises if a collective has failed: then the values may be wrong
        self._saved, self._kept = saved
        self._commits += 1

    def restore(self) -> None:
        self._restore_values()

    def sync(self) -> None:
        """Give all ranks the newest commit that any rank has; without commits, rank 0's values.

        :raises hvdlite.HvdliteError: on all ranks, if names of values or arguments of samplers
            differ between ranks.
        """
        values = [(name, getattr(self, name)) for name in self._parts]
        names = [f"{name}={v!r}" if isinstance(v, ElasticSampler) else name for name, v in values]
        agree("state", [", ".join(sorted(names))], remedy=_REMEDY)
        commits = allgather(np.array([self._commits]), "elastic.commits")
        newest = int(commits.argmax())
        if not self._commits:
            self._saved, self._kept = self._copy_values()
        self._saved = broadcast_object(self._saved, newest, "elastic.state")
        if self._commits != commits[newest]:
            if any(self._kept.values()):
                left_out.warn(f"rank {newest} has a newer commit, from which training goes on", "")
            self._kept = {}
        self._commits = int(commits[newest])
        self._restore_values()

    def reset(self) -> None:
        for name, part in self._parts.items():
            part.reset(getattr(self, name))
            part.restore_own(getattr(self, name), self._kept.get(name))

    def _copy_values(self) -> Tuple[Dict[str, Any], Dict[str, Any]]:
        """Return each value's copy, by name, and each value's residuals, for this rank only."""
        parts = [(name, part, getattr(self, name)) for name, part in self._parts.items()]
        saved = {name: part.save(value) for name, part, value in parts}
        return saved, {name: part.own(value) for name, part, value in parts}

    def _restore_values(self) -> None:
        for name, value in self._saved.items():
            part = self._parts[name]
            setattr(self, name, part.restore(getattr(self, name), value))
            part.restore_own(getattr(self, name), self._kept.get(name))


def _are_ready(members: Membership) -> bool:
    """Return True if rank 0 knows ready replacements, and the job may grow. Collective."""
    if not members.may_grow():
        return False
    ready = not topology.rank() and members.are_ready()
    return bool(allreduce(np.array([int(ready)]), name="elastic.replacements", op=Max)[0])

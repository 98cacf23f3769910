"""Adds and removes the process sets of the job, on all ranks together."""

from typing import Dict, List, Sequence, Union

from hvdlite.core import frameworks, topology
from hvdlite.core.agreement import agree
from hvdlite.core.arguments import whole, wrong
from hvdlite.core.module_state import ModuleState
from hvdlite.core.native import BRIEFLY, lib
from hvdlite.core.objects import allgather_object
from hvdlite.core.process_set import ProcessSet, check_process_set, global_process_set, group_of


class _Sets(ModuleState):
    def begin(self) -> None:
        self.registered: Dict[int, ProcessSet] = {0: global_process_set}
        self.last_id = 0  # ids are not reused


_sets = _Sets()


def begin(process_sets: Union[None, str, Sequence[ProcessSet]]) -> None:
    """Forget the sets of an earlier job and register those of ``init(process_sets=...)``."""
    for process_set in _sets.registered.values():
        process_set.invalidate()
    _sets.begin()
    if isinstance(process_sets, str):
        if process_sets.lower() != "dynamic":
            raise ValueError(f"process_sets is '{process_sets}': expected a list or 'dynamic'")
        return
    if not isinstance(process_sets, (list, tuple, type(None))):
        raise wrong("process_sets", process_sets, "a list of process sets, or 'dynamic'")
    for process_set in process_sets or ():
        add_process_set(process_set)


def renumber(sets: Dict[int, ProcessSet], ranks: Dict[int, List[int]]) -> None:
    """Register an earlier job's sets with the ranks' numbers in this job. Collective.

    :param sets: the earlier job's sets, by their ids there. A set that some rank lacks is dropped.
    :param ranks: for each id the set's remaining ranks, as numbers in this job.
    """
    everyone = allgather_object(sorted(sets), "process_set")
    for number in sorted(set(everyone[0]).intersection(*everyone)):
        if ranks[number]:
            _register(sets[number], ranks[number])


def process_set_of(process_set_id: int) -> ProcessSet:
    """Return the registered process set with this id; raise ValueError if there is none."""
    if whole(process_set_id, "process_set_id", "a process set's number") not in _sets.registered:
        known = ", ".join(map(str, _sets.registered))
        raise ValueError(f"no process set has the id {process_set_id}: expected one of {known}")
    return _sets.registered[process_set_id]


def add_process_set(process_set: Union[ProcessSet, Sequence[int]]) -> ProcessSet:
    """Register a process set and return it. Collective: every rank of the job makes the call.

    If ranks give different communicators, the sets of all these communicators are registered.

    :param process_set: a :class:`ProcessSet`, or its ranks.

    :raises ValueError: the set is registered already, or names a rank that the job does not have.
    :raises hvdlite.HvdliteError: the ranks give different sets, or MPI was started without support
        for threads.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.process_set_id is not None:
        raise ValueError(f"{process_set} is registered already")
    if process_set.mpi_comm is not None:
        return _add_by_comm(process_set, process_set.mpi_comm)
    agree("process_set", [f"process set {process_set.ranks}"])
    _check(process_set.ranks)
    _register(process_set, process_set.ranks)
    return process_set


def _add_by_comm(own: ProcessSet, comm) -> ProcessSet:
    everyone = topology.world().ranks_in(comm)
    ranks = sorted(-1 if rank is None else rank for rank in everyone)
    for other in sorted(set(map(tuple, allgather_object(ranks, "process_set")))):
        _check(list(other))
        _register(own if list(other) == ranks else ProcessSet(other), list(other))
    return own


def _check(ranks: List[int]) -> None:
    size = topology.size()
    if not ranks or len(set(ranks)) < len(ranks) or not all(0 <= r < size for r in ranks):
        raise ValueError(f"ProcessSet({ranks}): expected distinct ranks, each from 0 to {size - 1}")
    for known in _sets.registered.values():
        if known.ranks == ranks:
            raise ValueError(f"there is a process set of ranks {ranks} already: {known}")
    topology.world().check_groups()


def _register(process_set: ProcessSet, ranks: List[int]) -> None:
    _sets.last_id += 1
    process_set.register(_sets.last_id, ranks, topology.world().open(ranks))
    _sets.registered[_sets.last_id] = process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Remove a process set and return True. Collective over the whole job.

    Tensors that all ranks of the set have submitted are still processed. For the global set, or a
    set that is not registered, do nothing and return False.

    :param process_set: a registered :class:`ProcessSet`, which can't be used afterwards.
    :raises hvdlite.HvdliteError: the ranks name different sets.
    """
    number = check_process_set(process_set).process_set_id
    if number is None or number == 0:
        return False
    agree("process_set", [f"remove {process_set}"])
    if process_set.included():
        _leave_group(group_of(process_set))
    del _sets.registered[number]
    process_set.invalidate()
    return True


def _leave_group(group: int) -> None:
    """Leave and free a group of the C library. Collective over the group's ranks."""
    frameworks.submit_all()
    lib.hvd_leave(group, b"it called remove_process_set()")
    while not lib.hvd_wait_end(group, BRIEFLY):
        pass
    lib.hvd_group_close(group)


def process_sets() -> List[ProcessSet]:
    """Return the registered sets; the global set is the first."""
    return [_sets.registered[i] for i in sorted(_sets.registered)]

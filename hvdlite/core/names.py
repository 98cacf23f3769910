"""Makes the names by which ranks match tensors. An extra call on one rank must not change them."""

import itertools
import os
import re
import sys
import threading
from collections import Counter, defaultdict
from typing import DefaultDict, Dict, Iterator, List, Optional, Sequence

from hvdlite.core.arguments import wrong
from hvdlite.core.module_state import ModuleState
from hvdlite.core.process_set import ProcessSet, check_process_set, global_process_set

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
# Unnamed blocking calls at one line of a script use this many names in turn, so that they can reuse
# prepared calls. Two calls get the same name if more threads than this wait at the line.
_RECURRING = 32


class _Counts(ModuleState):
    """Counts that start at 0 in a new job, because its ranks may come from different jobs."""

    def begin(self) -> None:
        # Counts of unnamed calls, by line of the user's script. count() is safe between threads.
        self.calls: DefaultDict[tuple, Iterator[int]] = defaultdict(itertools.count)
        self.recurring: Dict[tuple, Iterator[str]] = {}
        self.joins: Counter = Counter()  # number of calls of join() so far, by id of process set
        self.owners: Counter = Counter()  # number of trainers, optimizers, ... made so far, by kind

    begin_job = begin


_counts = _Counts()


def restart_calls(process_set: ProcessSet) -> None:
    """Count the set's unnamed calls from 0 again, because all ranks have returned from ``join()``.

    Ranks may have made different numbers of calls before. Now no call is in progress.
    """
    _counts.joins[process_set.process_set_id] += 1
    for counted in (_counts.calls, _counts.recurring):
        for place in [each for each in list(counted) if each[-1] == process_set.process_set_id]:
            counted.pop(place, None)


def joins(process_set: ProcessSet) -> int:
    """Return how many calls of ``join()`` for this set have returned in this job."""
    return _counts.joins[process_set.process_set_id]


def owners() -> Dict[str, int]:
    """Return how many trainers, optimizers, ... this process has made in the job, by kind."""
    return dict(_counts.owners)


def count_owners(counts: Dict[str, int]) -> None:
    """Raise the count of each kind to the number given for it, unless the count is higher."""
    for kind, count in counts.items():
        _counts.owners[kind] = max(_counts.owners[kind], count)


def tensor_name(
    kind: str, name: Optional[str], process_set: ProcessSet = global_process_set
) -> str:
    """Return ``kind.name``; the default name is :func:`call_name`.

    :raises ValueError: ``name`` is not a string, or ``process_set`` is not a process set.

    >>> tensor_name("allreduce", "conv0"), tensor_name("allreduce", "")
    ('allreduce.conv0', 'allreduce.')
    """
    if not isinstance(process_set, ProcessSet):
        check_process_set(process_set)
    if name is None:
        return f"{kind}.{call_name(kind, process_set)}"
    if not isinstance(name, str):
        raise wrong("name", name, "a string, or None")
    return f"{kind}.{name}"


def call_name(kind: str, process_set: ProcessSet) -> str:
    """Return a name for an unnamed call: the line of the script that makes the call, and a count.

    Each line has its own count, so an extra unnamed call on one rank does not change the names of
    other lines. Each process set has its own count, because ranks in several sets make more calls.
    """
    if not isinstance(process_set, ProcessSet):
        check_process_set(process_set)
    line = calling_line()
    return f"{line}#{next(_counts.calls[kind, line, process_set.process_set_id])}"


def recurring_name(kind: str, process_set: ProcessSet) -> str:
    """Return a name for an unnamed blocking call: its line of the script, and a number that recurs.

    The name does not depend on the tensor: if ranks' tensors differ by mistake, the names still
    match, and the error names the difference.
    """
    if not isinstance(process_set, ProcessSet):
        check_process_set(process_set)
    frame = _calling_frame()
    place = kind, frame.f_code.co_filename, frame.f_lineno, process_set.process_set_id
    names = _counts.recurring.get(place)
    if names is None:
        line = _shown(frame)
        numbered = itertools.cycle([f"{line}~{number}" for number in range(_RECURRING)])
        names = _counts.recurring.setdefault(place, numbered)
    return next(names)


def calling_line() -> str:
    """Return the file and line of the script that calls hvdlite, the same on every rank."""
    return _shown(_calling_frame())


def _calling_frame():
    frame = sys._getframe(1)
    while frame.f_back and (frame.f_code.co_filename.startswith(_PACKAGE) or _is_converted(frame)):
        frame = frame.f_back
    return frame


def _is_converted(frame) -> bool:
    """Return True for a frame of TensorFlow's autograph, or of code that autograph converted."""
    module = frame.f_globals.get("__name__", "")
    return module.startswith(("hvdlite.", "tensorflow.python.autograph."))


def _shown(frame) -> str:
    file = os.path.basename(frame.f_code.co_filename)
    # autograph's file names have random letters, which differ between ranks
    if file.startswith("__autograph_generated"):
        file = frame.f_code.co_name
    return f"{file}:{frame.f_lineno}"


class Grouped(str):
    """The name of a tensor of a grouped call; ``of`` is the number of tensors of the call."""

    of = 0


def group_names(name: str, tensors: Sequence) -> List[str]:
    """Return ``name[0]``, ...: names for the tensors of one call, each :class:`Grouped`."""
    try:
        names = [Grouped(f"{name}[{i}]") for i in range(len(tensors))]
    except TypeError:
        raise wrong("tensors", tensors, "a list of tensors") from None
    for each in names:
        each.of = len(names)
    return list(names)


def owner_number(kind: str) -> int:
    """Return 0 at the first call for this kind in the job, then 1, 2, ..."""
    _counts.owners[kind] += 1
    return _counts.owners[kind] - 1


def owner_name(kind: str, process_set: ProcessSet = global_process_set) -> str:
    """Return ``trainer0`` for the first trainer of the job, ``trainer1`` for the second, ...

    Each process set has its own count (``trainer.set2.0``), because a script may make a set's
    trainers only on the set's ranks.
    """
    if process_set is not global_process_set:
        kind = f"{kind}.set{process_set.process_set_id}."
    return f"{kind}{owner_number(kind)}"


def meeting_name(owner: str) -> str:
    """Return a name under which the ranks compare an owner: a trainer, an optimizer, ...

    The name has no number, because an extra owner on one rank changes the numbers of later owners.
    Only outside of the main thread the name keeps the number: threads may compare at the same time.

    >>> meeting_name("optimizer3")
    'optimizer'
    """
    is_main = threading.current_thread() is threading.main_thread()
    return re.sub(r"\.?\d+", "", owner) if is_main else owner


def natural_order(names: List[str]) -> List[int]:
    """Return the indices that sort the names, with numbers by value: dense9 before dense10.

    Gluon numbers the blocks of a process in the order of their creation. If one rank has made
    further blocks before the network, the network's layers have other numbers, but the same order.
    """

    def key(i: int) -> tuple:
        parts = re.split(r"(\d+)", names[i])
        return [int(part) if part.isdecimal() else part for part in parts], i

    return sorted(range(len(names)), key=key)


def shape_of_name(name: str) -> str:
    """Return the name with "#" in place of each number; the result is the same on every rank.

    >>> shape_of_name("hybridsequential12_dense3_weight")
    'hybridsequential#_dense#_weight'
    """
    return re.sub(r"\d+", "#", name)

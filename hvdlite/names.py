"""Names that pair tensors across ranks: the same on every rank, whatever else a rank has done."""

import os
import re
import sys
from collections import Counter
from typing import List, Optional

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_calls: Counter = Counter()  # unnamed calls at each place in the user's script
_owners: Counter = Counter()  # trainers, optimizers, ... made so far


def forget() -> None:
    """Count from 0 again: a new job begins, whose ranks may have taken part in different ones."""
    _calls.clear()
    _owners.clear()


def tensor_name(kind: str, name: Optional[str], process_set_id: Optional[int] = 0) -> str:
    """Return ``kind.name``; without a name, :func:`call_name` stands for it."""
    return f"{kind}.{call_name(kind, process_set_id) if name is None else name}"


def call_name(kind: str, process_set_id: Optional[int]) -> str:
    """Name an unnamed call: by the place in the script that makes it, and a count.

    The count is per place, so that one more unnamed call on some rank can't shift all later ones,
    and per process set, as ranks that are in several make more calls than others.
    """
    place = place_of_call()
    _calls[kind, place, process_set_id] += 1
    return f"{place}#{_calls[kind, place, process_set_id] - 1}"


def place_of_call() -> str:
    """Return the file and line of the script that calls hvdlite, the same on every rank."""
    frame = sys._getframe(1)
    while frame.f_back and os.path.abspath(frame.f_code.co_filename).startswith(_PACKAGE):
        frame = frame.f_back
    file = os.path.basename(frame.f_code.co_filename)
    if file.startswith("__autograph_generated"):  # by TensorFlow, with random letters in its name
        file = frame.f_code.co_name
    return f"{file}:{frame.f_lineno}"


def group_names(name: str, n: int) -> List[str]:
    """Return ``name_1of3``, ...: the names of n tensors that one call submits under a name."""
    return [f"{name}_{i + 1}of{n}" for i in range(n)]


def owner_number(kind: str) -> int:
    """Return 0, 1, ... in the order in which things of that kind are made in this job."""
    _owners[kind] += 1
    return _owners[kind] - 1


def owner_name(kind: str) -> str:
    """Return ``trainer0``, ``trainer1``, ... in the order in which they are made."""
    return f"{kind}{owner_number(kind)}"


def natural_order(names: List[str]) -> List[int]:
    """Return the positions of names sorted with numbers by value: dense9 before dense10.

    Gluon numbers its blocks in each process as they are made, so a rank that has built others
    before calls the same layer differently; their order is the same everywhere.
    """

    def key(i: int) -> tuple:
        parts = re.split(r"(\d+)", names[i])
        return [int(part) if part.isdigit() else part for part in parts], i

    return sorted(range(len(names)), key=key)


def shape_of_name(name: str) -> str:
    """Return the name with its numbers left out: what must be equal on every rank."""
    return re.sub(r"\d+", "#", name)

"""Each rank's part of a file in LibSVM's format: XGBoost would read the whole of it on each."""

import os
import re
from typing import Any, Dict, Tuple

import numpy as np
from scipy.sparse import csr_matrix

from hvdlite.core import topology
from hvdlite.core.collectives import gather_numbers

_COMMENT = re.compile(rb"#[^\n]*")
_EMPTY = re.compile(rb"^[ \t\r]*\n", re.M)
_NEW_LINE, _COLON = ord("\n"), ord(":")
_SPACES = np.zeros(256, bool)
_SPACES[list(b" \t\r\n:")] = True  # what stands between numbers


def load_libsvm(path: str) -> Tuple[csr_matrix, np.ndarray]:
    """Return this rank's part of the samples in a file. Collective.

    Parts have about as many bytes each and come in the order of ranks, so that every line is on
    one rank. A line is ``label column:value column:value``; what follows a "#" is ignored.

    :param path: of a file that every rank can read.
    :return: a float32 matrix of shape (samples, columns), with as many columns on every rank, and
        the float32 labels, of shape (samples,).
    :raises ValueError: on every rank: a line is something else, such as one with ``qid:``, or the
        file can't be read.

    >>> import hvdlite as hvd
    >>> with hvd.xgboost.communicator():
    ...     data = xgb.DMatrix(*hvd.xgboost.load_libsvm("agaricus.txt.train"))
    """
    rank, size = topology.rank(), topology.size()
    width = 0
    wrong: Dict[str, Any] = {}
    try:
        text = _EMPTY.sub(b"", _COMMENT.sub(b"", _part(path, rank, size) + b"\n"))
        labels, rows, columns, values = _parse(text)
        width = columns.max() + 1 if len(columns) else 0
    except (OSError, ValueError) as error:  # for all ranks: they wait for the widest part
        wrong["failed"] = f"{path}, part {rank} of {size}: {error}"
    width = int(gather_numbers([width], "libsvm.columns", **wrong).max())
    return csr_matrix((values.astype(np.float32), (rows, columns)), (len(labels), width)), labels


def _part(path: str, rank: int, ranks: int) -> bytes:
    """Return the lines that begin in this rank's bytes of the file."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        ends = [_line_from(file, size * part // ranks) for part in (rank, rank + 1)]
        file.seek(ends[0])
        return file.read(ends[1] - ends[0])


def _line_from(file, offset: int) -> int:
    """Return where the first line begins that begins at the offset or after it."""
    if offset:
        file.seek(offset - 1)
        file.readline()
        return file.tell()
    return 0


def _parse(text: bytes) -> Tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, and the row, column and value of each entry."""
    byte = np.frombuffer(text, np.uint8)
    gap = _SPACES[byte]
    ends_number = gap[1:] & ~gap[:-1]
    numbers = _at_line_ends(byte, np.concatenate([[False], ends_number]))
    entries = _at_line_ends(byte, byte == _COLON)
    odd = np.flatnonzero(numbers != 1 + 2 * entries)
    if len(odd):
        line = text.split(b"\n")[odd[0]].decode(errors="replace")
        raise ValueError(f"the line '{line[:80]}' is not `label column:value ...`")
    found = np.array(text.replace(b":", b" ").split(), np.float64)
    firsts = np.cumsum(numbers) - numbers
    pairs = np.delete(found, firsts).reshape(-1, 2)
    columns = pairs[:, 0].astype(np.int64)
    if (columns != pairs[:, 0]).any() or (columns < 0).any():
        raise ValueError("a column is not a whole number from 0")
    rows = np.repeat(np.arange(len(entries)), entries)
    return found[firsts].astype(np.float32), rows, columns, pairs[:, 1]


def _at_line_ends(byte: np.ndarray, marks: np.ndarray) -> np.ndarray:
    """Return how many of the marks are in each line."""
    return np.diff(np.cumsum(marks)[byte == _NEW_LINE], prepend=0)

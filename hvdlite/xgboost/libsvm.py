"""Reads this rank's part of a file in LibSVM's format; XGBoost would read the whole file."""

import io
import os
from typing import Any, Dict, Tuple

import numpy as np
from scipy.sparse import csr_matrix

from hvdlite.core import topology
from hvdlite.core.collectives import gather_numbers


def load_libsvm(path: str) -> Tuple[csr_matrix, np.ndarray]:
    """Return this rank's part of the samples in a file. Collective.

    The parts, in the order of ranks, have nearly equal numbers of bytes, and each line is in one
    part. A line has the form ``label column:value column:value``; text after a "#" is ignored.

    :param path: the path of a file that every rank can read.
    :return: a float32 matrix of shape (samples, columns), with the same number of columns on every
        rank, and the float32 labels, of shape (samples,).
    :raises ValueError: on every rank: a line has another form, such as ``qid:``, or a rank can't
        read the file.

    >>> import hvdlite as hvd
    >>> with hvd.xgboost.communicator():
    ...     data = xgb.DMatrix(*hvd.xgboost.load_libsvm("agaricus.txt.train"))
    """
    rank, size = topology.rank(), topology.size()
    width = 0
    wrong: Dict[str, Any] = {}
    try:
        found, labels = _parse(_part(path, rank, size))
        width = found.indices.max() + 1 if found.nnz else 0
    except (OSError, ValueError) as error:  # gather_numbers raises the error on all ranks
        wrong["failed"] = f"{path}, part {rank} of {size}: {error}"
    width = int(gather_numbers([width], "libsvm.columns", **wrong).max())
    shape = len(labels), width
    return csr_matrix((found.data, found.indices, found.indptr), shape), labels.astype(np.float32)


def _part(path: str, rank: int, ranks: int) -> bytes:
    """Return the lines whose first byte is in this rank's range of bytes."""
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        ends = [_line_from(file, size * part // ranks) for part in (rank, rank + 1)]
        file.seek(ends[0])
        return file.read(ends[1] - ends[0])


def _line_from(file, offset: int) -> int:
    """Return the offset of the first line that begins at this offset or after it."""
    if offset:
        file.seek(offset - 1)
        file.readline()
        return file.tell()
    return 0


def _parse(lines: bytes) -> tuple:
    """Return the matrix and the labels. (scikit-learn can read a part of a file itself, but then a
    line after a comment may be in two parts.)"""
    from sklearn.datasets import load_svmlight_file  # imported here: the import takes a second

    options = {"dtype": np.float32, "zero_based": True, "query_id": True}
    matrix, labels, queries = load_svmlight_file(io.BytesIO(lines), **options)
    if len(queries):
        raise ValueError("a line has qid:, expected `label column:value ...`")
    return matrix, labels

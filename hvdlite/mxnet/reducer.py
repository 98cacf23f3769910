"""Reducer: the allreduces of one owner's tensors, with or without compression."""

import itertools
from typing import Dict, List, Sequence

import mxnet as mx
import numpy as np

from hvdlite.core.names import tensor_name
from hvdlite.core.native import lib
from hvdlite.core.process_set import ProcessSet, global_process_set
from hvdlite.core.reduce_ops import Average
from hvdlite.mxnet.collectives import allreduce_, reduction
from hvdlite.mxnet.push import push_group
from hvdlite.training.codecs import Codec, NoneCompressor, check_compression


class Reducer:
    """Reduces one owner's tensors with one compression, and keeps the residual of each tensor."""

    def __init__(self, compression=NoneCompressor) -> None:
        check_compression(compression)
        self.compression = compression
        self._residuals: Dict[str, mx.nd.NDArray] = {}

    def allreduce_(
        self, tensor, name: str, priority: int = 0, op: int = Average, scales=(1.0, 1.0),
        process_set: ProcessSet = global_process_set,
    ):  # fmt: skip
        """Reduce in place with the compression, else like ``ops.allreduce_``; return ``tensor``.

        :param scales: a factor for before the compression, and one for after the reduction.
        """
        return self.grouped_allreduce_([tensor], [name], priority, op, scales, process_set)[0]

    def grouped_allreduce_(
        self, tensors, names: Sequence[str], priority: int = 0, op: int = Average,
        scales=(1.0, 1.0), process_set: ProcessSet = global_process_set,
    ):  # fmt: skip
        """Do the same for several tensors, as one operation; return ``tensors``."""
        names = [tensor_name("allreduce", name, process_set) for name in names]
        if self.compression is NoneCompressor:
            return allreduce_(names, tensors, op, scales, priority, process_set)
        codecs = [self._codec_for(tensor) for tensor in tensors]
        coded = [codec is not None for codec in codecs]
        how = op, scales, priority, process_set
        self._allreduce_coded(*_only(coded, names, tensors, codecs), *how)
        self._allreduce_compressed(*_only([not each for each in coded], names, tensors), *how)
        return tensors

    def _codec_for(self, tensor):
        if isinstance(self.compression, Codec):  # the C core refuses dtypes other than float32
            return self.compression
        is_single = isinstance(tensor, mx.nd.NDArray) and tensor.dtype == np.float32
        return getattr(self.compression, "codec", None) if is_single else None

    def _residual(self, tensor, name: str):
        known = self._residuals.get(name)
        if known is None or known.size != tensor.size:
            with mx.util.np_shape(True):  # else a size of 0 means an unknown one
                known = mx.nd.zeros((tensor.size,), ctx=tensor.context)
            self._residuals[name] = known
        return known

    def _allreduce_coded(self, names, tensors, codecs, *how) -> None:
        residuals = [
            self._residual(tensor, name) if codec.has_residual else None
            for codec, name, tensor in zip(codecs, names, tensors)
        ]
        of_all = reduction(*how)
        details = [{**of_all, "codec": c.kind, "parameter": c.parameter} for c in codecs]
        push_group(lib.HVD_ALLREDUCE, names, tensors, details, residuals=residuals)

    def _allreduce_compressed(self, names, tensors, *how) -> None:
        compressed = [self.compression.compress(tensor) for tensor in tensors]
        allreduce_(names, [sent for sent, _ in compressed], *how)
        for tensor, (sent, context) in zip(tensors, compressed):
            if sent is not tensor:
                tensor[:] = self.compression.decompress(sent, context)


def _only(chosen: Sequence[bool], *lists: Sequence) -> List[list]:
    return [list(itertools.compress(items, chosen)) for items in lists]

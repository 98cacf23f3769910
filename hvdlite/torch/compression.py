"""Compression of PyTorch gradients: what is sent is smaller than what is kept.

float32 gradients of a DistributedOptimizer are compressed by codecs of the C core
(``training/codecs.py``), as a part of the allreduce. Any class with two static methods ``compress``
and ``decompress``, as Horovod has them, will do as well; it is given one gradient at a time.
"""

import torch

from hvdlite.core.native import lib
from hvdlite.training.codecs import Cast, Codec, Codecs


class _Cast(Cast):
    wide = (torch.float32, torch.float64)
    cast = staticmethod(torch.Tensor.to)


class FP16Compressor(_Cast):
    """Send float32 and float64 as float16; sums are made in float32 and rounded once."""

    codec = Codec(lib.HVD_CODEC_FLOAT16)
    dtype = torch.float16


class BF16Compressor(_Cast):
    """Send float32 and float64 as bfloat16, whose range is float32's."""

    codec = Codec(lib.HVD_CODEC_BFLOAT16)
    dtype = torch.bfloat16


class Compression(Codecs):
    """What ``compression=`` takes; any class with ``compress`` and ``decompress`` will do as well.

    >>> import hvdlite.torch as hvd
    >>> hvd.Compression.two_bit(threshold=0.25).parameter
    0.25
    """

    fp16 = FP16Compressor
    bf16 = BF16Compressor

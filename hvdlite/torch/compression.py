"""Compression of PyTorch gradients that ranks send to each other.

The C core compresses float32 gradients of a DistributedOptimizer inside the allreduce
(``training/codecs.py``). As in Horovod, a class with the static methods ``compress`` and
``decompress`` also works. hvdlite calls the class for one gradient at a time.
"""

import torch

from hvdlite.core.native import lib
from hvdlite.training.codecs import Cast, Codec, Codecs


class _Cast(Cast):
    wide = (torch.float32, torch.float64)
    cast = staticmethod(torch.Tensor.to)


class FP16Compressor(_Cast):
    """Send float32 and float64 values as float16; sum in float32 and round once."""

    codec = Codec(lib.HVD_CODEC_FLOAT16)
    dtype = torch.float16


class BF16Compressor(_Cast):
    """Send float32 and float64 values as bfloat16, which has the range of float32."""

    codec = Codec(lib.HVD_CODEC_BFLOAT16)
    dtype = torch.bfloat16


class Compression(Codecs):
    """The values of ``compression=``; any class with ``compress`` and ``decompress`` works too.

    >>> import hvdlite.torch as hvd
    >>> hvd.Compression.two_bit(threshold=0.25).parameter
    0.25
    """

    fp16 = FP16Compressor
    bf16 = BF16Compressor

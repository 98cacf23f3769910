"""Compression of gradients with codecs of the C core, for every framework.

The C core runs a codec inside the allreduce, from float32 to float32; ``csrc/kernels/codec.h`` has
the rules and the sources. docs/compression.md lists costs and savings of each codec.
"""

from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence, Tuple

from hvdlite.core.arguments import check_compressor
from hvdlite.core.native import lib


@dataclass(frozen=True)
class Codec:
    """A codec of the C core: its number, ``lib.HVD_CODEC_*``, and its threshold or ratio."""

    kind: int
    parameter: float = 0.0

    @property
    def has_residual(self) -> bool:
        """Return True if the codec keeps a residual: the values that a message leaves out."""
        return self.kind not in (lib.HVD_CODEC_FLOAT16, lib.HVD_CODEC_BFLOAT16)


class NoneCompressor:
    """Sends gradients without compression."""

    @staticmethod
    def compress(tensor) -> Tuple[Any, Any]:
        """Return the tensor to send, and the argument ``ctx`` for ``decompress``."""
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        """Return the reduced tensor in the form of the argument of ``compress``."""
        return tensor


class Cast:
    """Sends floats in a smaller dtype; each framework's subclass sets ``dtype``, ``cast``, ..."""

    dtype: Any  # the smaller dtype
    cast: Callable  # function of a tensor and a dtype
    wide: Tuple = ("float32", "float64")  # dtypes to cast
    dtype_of: Callable = staticmethod(lambda tensor: tensor.dtype)

    @classmethod
    def compress(cls, tensor) -> Tuple[Any, Any]:
        """Return the tensor in the smaller dtype, and its old dtype.

        A tensor whose dtype is not in ``wide`` is returned unchanged, with None.
        """
        own = cls.dtype_of(tensor)
        return (cls.cast(tensor, cls.dtype), own) if own in cls.wide else (tensor, None)

    @classmethod
    def decompress(cls, tensor, ctx):
        """Return the tensor in the dtype ``ctx``, which it had before ``compress``."""
        return tensor if ctx is None else cls.cast(tensor, ctx)


class Codecs:
    """The codecs that ``Compression`` of every framework contains."""

    none = NoneCompressor

    @staticmethod
    def two_bit(threshold: float = 0.5) -> Codec:
        """Send +threshold, -threshold or 0 for each float32 value, in 2 bits: MXNet's 2bit.

        What a message leaves out is added to the next gradient. Compression precedes the division
        by the batch size, so compare the threshold with a sum over the batch of one rank.

        :raises ValueError: the threshold is not above 0.
        """
        if not threshold > 0:
            raise ValueError(f"two_bit(threshold={threshold}): expected a threshold above 0")
        return Codec(lib.HVD_CODEC_2BIT, float(threshold))

    @staticmethod
    def one_bit(threshold: float = 0.0) -> Codec:
        """Send 1 bit for each float32 value, +1 if above the threshold, else -1: MXNet's 1bit.

        What a message leaves out is added to the next gradient.
        """
        return Codec(lib.HVD_CODEC_1BIT, float(threshold))

    @staticmethod
    def top_k(ratio: float = 0.01) -> Codec:
        """Send the ceil(ratio * n) largest of n float32 values, by magnitude, as index and value.

        The other values are added to the next gradient (Aji and Heafield, "Sparse communication for
        distributed gradient descent", EMNLP 2017). Each rank sends 2 * ratio of the gradient's
        bytes to each other rank. This saves time only if ratio * ranks is well below 1.

        :raises ValueError: the ratio is not in (0, 1].
        """
        if not 0 < ratio <= 1:
            raise ValueError(f"top_k(ratio={ratio}): expected a ratio above 0 and at most 1")
        return Codec(lib.HVD_CODEC_TOPK, float(ratio))


def codec_of(compression, is_float32: bool) -> Optional[Codec]:
    """Return the codec that the C core uses for this compression and dtype, or None."""
    # A Codec is returned for every dtype: the C core then refuses dtypes other than float32.
    if isinstance(compression, Codec):
        return compression
    return getattr(compression, "codec", None) if is_float32 else None


def compress(tensors: Sequence, compression) -> Tuple[List, Callable[[Sequence], List]]:
    """Return the tensors to send, and a function that decompresses the list of results."""
    if compression is NoneCompressor:
        return list(tensors), list
    sent = [compression.compress(tensor) for tensor in tensors]

    def decompress(results: Sequence) -> List:
        return [compression.decompress(each, context) for each, (_, context) in zip(results, sent)]

    return [tensor for tensor, _ in sent], decompress


def check_compression(compression) -> None:
    """Raise ValueError unless the argument is a Codec or has ``compress`` and ``decompress``."""
    if not isinstance(compression, Codec):
        check_compressor(compression, " a call of .two_bit(), .one_bit() or .top_k(),")

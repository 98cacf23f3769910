"""Compression of gradients by codecs of the C core, for every framework.

A codec runs inside the allreduce and takes and returns float32; ``csrc/kernels/codec.h`` has
its rules and sources. docs/compression.md says what each codec costs and saves.
"""

from dataclasses import dataclass
from typing import Any, Callable, List, Optional, Sequence, Tuple

from hvdlite.core.arguments import check_compressor
from hvdlite.core.native import lib


@dataclass(frozen=True)
class Codec:
    """A codec of the C core: one of ``lib.HVD_CODEC_*`` and its threshold or ratio."""

    kind: int
    parameter: float = 0.0

    @property
    def has_residual(self) -> bool:
        """Return True if the codec carries over what a message left out."""
        return self.kind not in (lib.HVD_CODEC_FLOAT16, lib.HVD_CODEC_BFLOAT16)


class NoneCompressor:
    """Send gradients as they are."""

    @staticmethod
    def compress(tensor) -> Tuple[Any, Any]:
        """Return the tensor to send, and the context for ``decompress``."""
        return tensor, None

    @staticmethod
    def decompress(tensor, ctx):
        """Return the reduced tensor in the form that ``compress`` was given."""
        return tensor


class Cast:
    """Sends floats in another dtype; a framework's subclass sets these members."""

    dtype: Any  # the smaller dtype
    cast: Callable  # function of a tensor and a dtype
    wide: Tuple = ("float32", "float64")  # dtypes to cast
    dtype_of: Callable = staticmethod(lambda tensor: tensor.dtype)

    @classmethod
    def compress(cls, tensor) -> Tuple[Any, Any]:
        """Return the tensor in the smaller dtype, and its own dtype; keep other dtypes."""
        own = cls.dtype_of(tensor)
        return (cls.cast(tensor, cls.dtype), own) if own in cls.wide else (tensor, None)

    @classmethod
    def decompress(cls, tensor, ctx):
        """Return the tensor in the dtype it had."""
        return tensor if ctx is None else cls.cast(tensor, ctx)


class Codecs:
    """The codecs in every framework's ``Compression``."""

    none = NoneCompressor

    @staticmethod
    def two_bit(threshold: float = 0.5) -> Codec:
        """Send +threshold, -threshold or 0 for each float32 value, 16 in 4 bytes: MXNet's 2bit.

        What a message leaves out is added to the next gradient. Gradients are compressed before
        they are divided by the batch size, so the threshold applies to the sum over the batch of
        one rank.

        :raises ValueError: a threshold that is not above 0.
        """
        if not threshold > 0:
            raise ValueError(f"two_bit(threshold={threshold}): expected a threshold above 0")
        return Codec(lib.HVD_CODEC_2BIT, float(threshold))

    @staticmethod
    def one_bit(threshold: float = 0.0) -> Codec:
        """Send +1 for each float32 value above the threshold, else -1, 32 values in 4 bytes:
        MXNet's 1bit.

        The rest is added to the next gradient.
        """
        return Codec(lib.HVD_CODEC_1BIT, float(threshold))

    @staticmethod
    def top_k(ratio: float = 0.01) -> Codec:
        """Send only the largest float32 values, ceil(ratio * n) of n, each as index and value.

        The rest is added to the next gradient (Aji and Heafield, "Sparse communication for
        distributed gradient descent", EMNLP 2017). Each rank sends 2 * ratio of the
        bytes to each other rank, which pays as long as ratio * ranks is well below 1.

        :raises ValueError: a ratio that is not in (0, 1].
        """
        if not 0 < ratio <= 1:
            raise ValueError(f"top_k(ratio={ratio}): expected a ratio above 0 and at most 1")
        return Codec(lib.HVD_CODEC_TOPK, float(ratio))


def codec_of(compression, is_float32: bool) -> Optional[Codec]:
    """Return the codec of this compression inside an allreduce; None: no codec."""
    # for every dtype, because the C core refuses dtypes other than float32
    if isinstance(compression, Codec):
        return compression
    return getattr(compression, "codec", None) if is_float32 else None


def compressed(tensors: Sequence, compression) -> Tuple[List, Callable[[Sequence], List]]:
    """Return the tensors to send, and a function from results to what the caller gets."""
    if compression is NoneCompressor:
        return list(tensors), list
    sent = [compression.compress(tensor) for tensor in tensors]

    def decompressed(results: Sequence) -> List:
        return [compression.decompress(each, context) for each, (_, context) in zip(results, sent)]

    return [tensor for tensor, _ in sent], decompressed


def check_compression(compression) -> None:
    """Raise ValueError unless the argument is a compression."""
    if not isinstance(compression, Codec):
        check_compressor(compression, " a call of .two_bit(), .one_bit() or .top_k(),")

"""Move: a tensor whose data a backend of ``torch.distributed`` moves between the ranks."""

from typing import Any, Optional, Sequence

import torch
import torch.distributed as dist

from hvdlite.core.collectives import result_of
from hvdlite.core.native import ffi, lib

OPS = {
    lib.HVD_SUM: dist.ReduceOp.SUM,
    lib.HVD_AVERAGE: dist.ReduceOp.SUM,
    lib.HVD_MIN: dist.ReduceOp.MIN,
    lib.HVD_MAX: dist.ReduceOp.MAX,
    lib.HVD_PRODUCT: dist.ReduceOp.PRODUCT,
}


class Move:
    """One tensor, which all ranks submit, and whose data a group of PyTorch then moves.

    :param out: may be the tensor itself; None: made when the number of rows is known.
    :param ready: an event of the stream that computes the tensor.
    :ivar rows: the number of rows from each rank, for an allgather or alltoall.
    :ivar ended: True or a CUDA event; None: the group has not begun.
    """

    def __init__(self, name: str, kind: int, handle, tensor, out, members: dict, ready) -> None:
        self.name, self.kind, self.handle = name, kind, handle
        self.tensor, self.out, self.members, self.ready = tensor, out, members, ready
        self.rows: Any = None
        self.ended: Any = None
        self.error: Optional[BaseException] = None

    def is_agreed(self) -> bool:
        """Return True if all ranks have submitted the tensor, or have found an error."""
        return bool(lib.hvd_finish(self.handle, 0, ffi.NULL))

    def has_ended(self) -> bool:
        """Return True if the group has moved the data or has failed."""
        return bool(self.error or self.ended is True or (self.ended and self.ended.query()))


def move_by(group, batch: Sequence[Move]) -> None:
    """Make the backend move the data of a batch, in one call if the kind allows fusion.

    NCCL queues its work on the current stream. Only code in inference mode may write to tensors
    made in inference mode. This function enters the tensors' mode, because the caller's thread may
    be in another mode.
    """
    written = [move.tensor if move.out is None else move.out for move in batch]
    with torch.inference_mode(any(each.is_inference() for each in written)), torch.no_grad():
        if len(batch) == 1:
            _move_by(group, batch[0])
        else:
            _move_fused(group, batch)


def _move_fused(group, batch: Sequence[Move]) -> None:
    """Move several tensors of one dtype in a fusion buffer, as the C library does on the host."""
    buffer = torch.cat([move.tensor.reshape(-1) for move in batch])
    first = batch[0]
    _move_by(group, Move(first.name, first.kind, None, buffer, buffer, first.members, None))
    parts = buffer.split([move.tensor.numel() for move in batch])
    outs = [move.out for move in batch]
    torch._foreach_copy_(outs, [part.view(out.shape) for part, out in zip(parts, outs)])


def _move_by(group, move: Move) -> None:
    size, kind = group.size(), move.kind
    if kind not in (lib.HVD_ALLGATHER, lib.HVD_ALLTOALL) and not move.tensor.numel():
        return
    if kind in (lib.HVD_ALLREDUCE, lib.HVD_REDUCESCATTER):
        _reduce(group, move, size)
    elif kind == lib.HVD_BROADCAST:
        if move.out is not move.tensor:
            move.out.copy_(move.tensor)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = move.members["root"], 0
        group.broadcast([move.out], options).wait()
    else:
        row = move.tensor.shape[1:]
        row_bytes = row.numel() * move.tensor.element_size()
        _, move.rows = result_of(move.handle, None, size, row_bytes)
        move.out = move.tensor.new_empty((int(move.rows.sum()), *row))
        _gather(group, move) if kind == lib.HVD_ALLGATHER else _exchange(group, move, size)


def _reduce(group, move: Move, size: int) -> None:
    members, tensor, out = move.members, move.tensor, move.out
    op, before, after = OPS[members["op"]], members["prescale"], members["postscale"]
    if move.kind == lib.HVD_ALLREDUCE:
        if before != 1:
            torch.mul(tensor, before, out=out)
        elif out is not tensor:
            out.copy_(tensor)
        _allreduce(group, out, op)
    elif len(tensor) % size == 0:
        options = dist.ReduceScatterOptions()
        options.reduceOp = op
        group._reduce_scatter_base(out, tensor * before if before != 1 else tensor, options).wait()
    else:  # NCCL's reduce-scatter needs equal parts, so reduce all rows and take a part
        whole = tensor * before if before != 1 else tensor.clone()
        _allreduce(group, whole, op)
        out.copy_(whole.tensor_split(size)[group.rank()])
    if members["op"] == lib.HVD_AVERAGE:
        after /= size
    if after != 1:
        out.mul_(after)


def _allreduce(group, tensor: torch.Tensor, op) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = op
    group.allreduce([tensor], options).wait()


def _gather(group, move: Move) -> None:
    counts = move.rows.tolist()
    if len(set(counts)) == 1:
        group._allgather_base(move.out, move.tensor).wait()
        return
    for root, part in enumerate(move.out.split(counts)):
        if not len(part):
            continue
        if root == group.rank():
            part.copy_(move.tensor)
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        group.broadcast([part], options).wait()


def _exchange(group, move: Move, size: int) -> None:
    splits = move.members.get("splits")
    own = [len(move.tensor) // size] * size if splits is None else splits.tolist()
    group.alltoall_base(move.out, move.tensor[: sum(own)], move.rows.tolist(), own).wait()

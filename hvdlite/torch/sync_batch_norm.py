"""SyncBatchNorm: batch normalization over the batches of all ranks."""

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from hvdlite.core import topology
from hvdlite.core.agreement import meet
from hvdlite.core.names import owner_name
from hvdlite.core.reduce_ops import Sum
from hvdlite.torch import ops


class SyncBatchNorm(_BatchNorm):
    """A ``torch.nn.BatchNorm1d``, ``2d`` or ``3d`` over the joined batch of all ranks.

    In training, mean and variance are computed over all ranks, whose batches may differ in size.
    Gradients are the gradients of the sum of all ranks' losses. Running statistics are the same on
    every rank. Ranks must make these layers in the same order, and run each layer equally often.
    Evaluation with running statistics does not wait for other ranks. If the mean of float32 values
    is 1000 times their deviation, output and gradient are within 1e-3 of the results in float64.

    The arguments are those of ``torch.nn.BatchNorm2d``. Input and output have shape (N, C, ...) and
    any floating-point dtype.

    Source: Ioffe and Szegedy, "Batch Normalization", 2015.
    """

    def __init__(
        self, num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self._owner, self._met = owner_name("sync_batch_norm"), -1

    def _check_input_dim(self, input):
        if input.dim() < 2:
            raise ValueError(f"{self._owner}: input is {input.dim()}-d: expected (N, C, ...)")

    def forward(self, input):
        of_batch = self.training or not self.track_running_stats
        if not of_batch or topology.size() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        self._met = meet(self._owner, self._met)
        x = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count, mean, var, centered = self._statistics(x)
        if self.training and self.track_running_stats:
            self._follow(count, mean.detach(), var.detach())
        out = centered * _along(torch.rsqrt(var + self.eps), x)
        if self.affine:
            out = out * _along(self.weight, x) + _along(self.bias, x)
        return out.to(input.dtype)

    def _statistics(self, x) -> tuple:
        """Return count, mean, biased variance of each channel over all ranks, and x minus mean."""
        axes = [axis for axis in range(x.dim()) if axis != 1]
        own = x.new_full((1,), x.numel() // x.shape[1])
        sums = self._sum_over_ranks(torch.cat([x.sum(axes), own]))
        count = sums[-1].detach()
        if count <= 1:
            raise ValueError(
                f"{self._owner}: expected more than 1 value per channel over all ranks in "
                f"training: got {int(count)}; this rank's input is of shape {tuple(x.shape)}"
            )
        mean = sums[:-1] / count
        centered = x - _along(mean, x)
        var = self._sum_over_ranks(centered.square().sum(axes)) / count
        return count, mean, var, centered

    def _sum_over_ranks(self, sums):
        # owner_name() adds a number, because the layer may run again before backward ends. In a
        # new job all ranks count from 0 again.
        return ops.allreduce(sums, name=owner_name(f"{self._owner}."), op=Sum)

    @torch.no_grad()
    def _follow(self, count, mean, var) -> None:
        self.num_batches_tracked += 1
        share = self.momentum
        if share is None:  # momentum None: the average of all batches so far
            share = 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        unbiased = var * (count / (count - 1))
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)


def _along(per_channel, x):
    """Reshape the tensor so that it broadcasts along all axes of x except the second."""
    return per_channel.reshape([1, -1] + [1] * (x.dim() - 2))

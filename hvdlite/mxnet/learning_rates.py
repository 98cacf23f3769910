"""Learning rates for N ranks."""

from typing import Optional

import mxnet as mx

from hvdlite.core import topology


class LinearScaling(mx.lr_scheduler.LRScheduler):
    """Adapts a schedule for one process to N ranks: N times as fast, at N times the rate.

    A step of N ranks processes N times the images of a step of one process. So each step advances
    the schedule by N steps, and LinearScaling multiplies the rates by N. A factor of N is too large
    at the beginning, so the factor rises from 1 to N during ``warmup_steps``. (Goyal et al. 2017,
    Accurate, Large Minibatch SGD, sections 2.1 and 2.2.) ::

        schedule = mx.lr_scheduler.MultiFactorScheduler([30000, 60000], 0.1, base_lr=0.1)
        opt = mx.optimizer.SGD(lr_scheduler=hvd.LinearScaling(schedule, warmup_steps=1000))

    A schedule that already counts steps of N ranks does not need LinearScaling: give MXNet's
    schedule ``base_lr=lr * hvd.size()``, ``warmup_begin_lr=lr`` and ``warmup_steps``.

    :param schedule: any ``mx.lr_scheduler.LRScheduler``.
    :param warmup_steps: the number of calls of ``trainer.step()`` during which the factor rises.
    :param factor: replaces N, which is ``hvd.size()``.
    :raises ValueError: ``schedule`` is not an LRScheduler.
    """

    def __init__(self, schedule, warmup_steps: int = 0, factor: Optional[float] = None) -> None:
        if not isinstance(schedule, mx.lr_scheduler.LRScheduler):
            raise ValueError(f"expected an LRScheduler, got {type(schedule).__name__}")
        self.schedule = schedule
        self.factor = topology.size() if factor is None else factor
        super().__init__(schedule.base_lr, warmup_steps)

    @property
    def base_lr(self) -> float:
        """The base rate of the wrapped schedule, for one process; an optimizer may set it."""
        return self.schedule.base_lr

    @base_lr.setter
    def base_lr(self, rate: float) -> None:
        self.schedule.base_lr = rate

    def __call__(self, num_update: int) -> float:
        """Return the learning rate of step ``num_update``."""
        factor = self.factor
        if num_update < self.warmup_steps:
            factor = 1 + (factor - 1) * num_update / self.warmup_steps
        return factor * self.schedule(int(num_update * self.factor))

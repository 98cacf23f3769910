"""ElasticSampler: divides the samples among the ranks, anew whenever ranks have died or joined."""

from typing import Any, Dict, Iterator, List

import numpy as np

from hvdlite.core import topology
from hvdlite.core.arguments import whole


class ElasticSampler:
    """Yields this rank's indices of a data set, for a DataLoader.

    ::

        sampler = hvd.elastic.ElasticSampler(images)
        state = hvd.elastic.GluonState(net=net, trainer=trainer, sampler=sampler, epoch=0)
        ...
        for i, (data, label) in enumerate(DataLoader(images, 32, sampler=sampler)):
            ...
            state.sampler.record_batch(i, 32)
            state.commit()
        state.sampler.set_epoch(state.epoch)

    The order depends only on ``seed`` and the epoch. A state restores the sampler to the last
    commit. When ranks have died or joined, the sampler divides the samples that no rank has used in
    this epoch among the ranks. If these samples do not divide evenly, the first of them are
    repeated; with ``drop_last`` the last of them are left out instead.

    :param dataset: an object with a length, or the length itself.
    :param shuffle: False: the order is 0, 1, 2, ... in every epoch.
    :param seed: from 0 to 2**32 - 1.
    :raises ValueError: ``dataset`` neither has nor is a length, or ``seed`` is out of range.
    """

    def __init__(
        self, dataset, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        self._length = _length_of(dataset)
        whole(seed, "seed", "a whole number from 0 to 2**32 - 1", range(2**32))
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self.epoch = 0
        # The number of samples that all ranks together have used in this epoch.
        self.processed_num = 0
        self.reset()

    def __repr__(self) -> str:
        options = f"shuffle={self._shuffle}, seed={self._seed}, drop_last={self._drop_last}"
        return f"ElasticSampler({self._length}, {options})"

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with all samples. Call this method at the end of the previous epoch."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that every rank has used a batch of ``batch_size`` samples."""
        self.processed_num = min(self.processed_num + batch_size * self._ranks, self._length)

    def state_dict(self) -> Dict[str, Any]:
        """Return the position in the epoch, which is equal on every rank."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Continue from a position that :meth:`state_dict` returned."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the unused samples of the epoch among the ranks of the current job."""
        joined = topology.is_initialized()
        rank, self._ranks = (topology.rank(), topology.size()) if joined else (0, 1)
        order = np.arange(self._length)
        if self._shuffle:
            np.random.RandomState([self._seed, self.epoch]).shuffle(order)
        left = order[self.processed_num :]
        over = len(left) % self._ranks
        if over and self._drop_last:
            left = left[:-over]
        elif over:
            left = np.concatenate([left, np.resize(left, self._ranks - over)])
        self._indices: List[int] = left[rank :: self._ranks].tolist()

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


def _length_of(dataset) -> int:
    if hasattr(dataset, "__len__") and not isinstance(dataset, (str, bytes)):
        return len(dataset)
    return whole(dataset, "dataset", "anything with a length, or the length itself", range(2**63))

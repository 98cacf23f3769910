"""ElasticSampler: each rank's part of the samples that no rank has trained on in this epoch."""

from typing import Any, Dict, Iterator, List

import numpy as np

from hvdlite.core import topology
from hvdlite.core.arguments import whole


class ElasticSampler:
    """This rank's indices of a data set, for a DataLoader; no sample comes twice in an epoch.

    ::

        sampler = hvd.elastic.ElasticSampler(images)
        state = hvd.elastic.GluonState(net=net, trainer=trainer, sampler=sampler, epoch=0)
        ...
        for i, (data, label) in enumerate(DataLoader(images, 32, sampler=sampler)):
            ...
            state.sampler.record_batch(i, 32)
            state.commit()
        state.sampler.set_epoch(state.epoch)

    In a state the sampler returns to the last commit. When ranks have died or joined, it divides
    the rest of the epoch among the ranks. ``seed`` and the epoch alone determine the order. If the
    rest does not divide evenly, its first samples come twice, so that all ranks have equally many;
    with ``drop_last`` its last samples are left out instead.

    :param dataset: anything with a length, or the length itself.
    :param shuffle: False: the order is 0, 1, 2, ... in every epoch.
    :param seed: the same on every rank, from 0 to 2**32 - 1.
    :raises ValueError: ``dataset`` is neither, or ``seed`` no such number.
    """

    def __init__(
        self, dataset, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        self._length = _length_of(dataset)
        whole(seed, "seed", "a whole number from 0 to 2**32 - 1", range(2**32))
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self.epoch = 0
        # number of samples of this epoch that all ranks together have trained on
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch with all samples. Call it after the last epoch has ended."""
        self.epoch, self.processed_num = epoch, 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that every rank has trained on this many more samples."""
        self.processed_num = min(self.processed_num + batch_size * self._ranks, self._length)

    def state_dict(self) -> Dict[str, Any]:
        """Return the position, the same on every rank."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Continue from a position, with the ranks of the present job."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the rest of the epoch among the ranks of the present job."""
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

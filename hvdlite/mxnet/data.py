"""Samplers and iterators that give each rank its part of the data."""

from pathlib import Path
from typing import Iterator, Optional

import mxnet as mx
import numpy as np

from hvdlite.core import topology
from hvdlite.core.agreement import agree
from hvdlite.core.arguments import whole
from hvdlite.core.names import owner_name


class DistributedSampler(mx.gluon.data.Sampler):
    """Yields this rank's part of the indices 0 ... length - 1. All ranks use the same order.

    ``gluon.data.DataLoader(images, batch_size, sampler=hvd.DistributedSampler(len(images)))``

    In the order of an epoch, rank r takes every size-th index, beginning at position r. So the
    batches of all ranks together equal a larger batch of one process. Each pass is an epoch. The
    order depends only on ``seed`` and ``epoch``; to resume, set ``epoch`` before a pass.

    Making the sampler is collective; all ranks give the same arguments.

    :param length: number of samples.
    :param shuffle: False: the order is 0, 1, 2, ... in every epoch.
    :param seed: from 0 to 2**32 - 1.
    :param even: True, for training: every rank has length // size samples. An epoch leaves out the
        length % size samples at the end of its order. False, for evaluation: each sample is on one
        rank, and some ranks have one sample more, so the loop must not call collectives.
    :raises ValueError: ``even`` is True, and there are fewer samples than ranks.
    :raises hvdlite.HvdliteError: the ranks disagree on an argument.
    """

    def __init__(self, length: int, shuffle: bool = True, seed: int = 0, even: bool = True) -> None:
        self._length = whole(length, "length", "at least 0", range(2**63))
        self._seed = whole(seed, "seed", "0 to 2**32 - 1", range(2**32))
        agree(
            owner_name("sampler"),
            [f"length {length}", f"shuffle {shuffle}", f"seed {seed}", f"even {even}"],
            remedy="Make the sampler with the same arguments on every rank.",
        )
        self._rank, self._size = topology.rank(), topology.size()
        if even and length < self._size:
            raise ValueError(
                f"{length} samples for {self._size} ranks: expected at least one for each rank: "
                "use fewer ranks"
            )
        self._used = length // self._size * self._size if even else length
        self._shuffle = shuffle
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        order = np.arange(self._length)
        if self._shuffle:
            np.random.RandomState([self._seed, self.epoch]).shuffle(order)
        self.epoch += 1
        return iter(order[self._rank : self._used : self._size].tolist())

    def __len__(self) -> int:
        return len(range(self._rank, self._used, self._size))


class DistributedRecordIter(mx.io.DataIter):
    """Yields this rank's part of a ``.rec`` file of images, in batches of ``ImageRecordIter``.

    ::

        batches = hvd.DistributedRecordIter(
            "train.rec", batch_size=32, data_shape=(3, 224, 224), shuffle=True, rand_mirror=True
        )
        for epoch in range(90):
            batches.reset()
            for batch in batches:
                train(batch.data[0], batch.label[0])

    Every epoch opens the file again. Order and augmentation depend only on ``seed``, ``epoch`` and
    the rank, so setting ``epoch`` resumes an interrupted run at that epoch. (One ImageRecordIter
    for all epochs would fill the last batch of an epoch with images of the next epoch. Then the
    number of batches changes from epoch to epoch and differs by rank, and ranks wait forever.)

    Making the iterator is collective; all ranks give the same arguments.

    :param path_imgrec: the file; its index is ``path_imgidx``, by default the ``.idx`` beside it.
    :param batch_size: the number of images in a batch of one rank.
    :param seed: from 0 to 2**32 - 1.
    :param even: True, for training: every rank has the same number of full batches, and no image
        is on two ranks. Each rank leaves out fewer than (batch_size + number of ranks) of its
        images. False, for evaluation: every image is on exactly one rank. The last ``batch.pad``
        images of a rank's last batch are repetitions; ignore them. Ranks may have different
        numbers of batches, so the loop must not call collectives.
    :param num_parts: the number of parts of the file; by default the number of ranks.
    :param part_index: the part that this rank reads; by default the number of the rank.
    :param options: of ``mx.io.ImageRecordIter``: data_shape, shuffle, rand_mirror, ...
    :raises ValueError: ``even`` is True and a part has no full batch; or ``options`` contains an
        option that this class sets.
    :raises FileNotFoundError: the file or its index is missing.
    :raises hvdlite.HvdliteError: the ranks disagree on the number of images or batches.
    """

    def __init__(
        self, path_imgrec, batch_size: int, path_imgidx=None, seed: int = 0, even: bool = True,
        num_parts: Optional[int] = None, part_index: Optional[int] = None, **options,
    ) -> None:  # fmt: skip
        super().__init__(batch_size)
        for option in ("seed_aug", "round_batch"):
            if option in options:
                raise ValueError(f"DistributedRecordIter itself sets {option}: leave {option} out")
        record, index = _files(path_imgrec, path_imgidx)
        parts = topology.size() if num_parts is None else num_parts
        part = topology.rank() if part_index is None else part_index
        with index.open("rb") as file:
            images = sum(1 for _ in file)
        agree(
            owner_name("records"),
            [f"images {images}", f"parts {parts}", f"batch_size {batch_size}", f"even {even}"],
            remedy="Give every rank the same file and arguments.",
        )
        self._batches = _batches(images, parts, part, batch_size, even)
        self._seed, self._part = seed, part
        self._options = {
            "device_id": -1,  # -1: batches are in plain CPU memory, not in pinned memory
            "verbose": False,
            **options,
            "path_imgrec": str(record),
            "path_imgidx": str(index),
            # ImageRecordIter refuses a batch size larger than the part.
            "batch_size": min(batch_size, _part_size(images, parts, part)),
            "num_parts": parts,
            "part_index": part,
        }
        self.epoch = 0

    def __len__(self) -> int:
        """Return this rank's number of batches in an epoch."""
        return self._batches

    @property
    def epoch(self) -> int:
        """The number of the current epoch; setting ``epoch`` begins that epoch."""
        return self._epoch

    @epoch.setter
    def epoch(self, number: int) -> None:
        self._epoch, self._read, self._records = number, 0, None

    def reset(self) -> None:
        """Begin the next epoch; do nothing if no batch of the current epoch was read."""
        if self._read:
            self.epoch += 1

    def next(self):
        """Return the next batch, an ``mx.io.DataBatch``."""
        if self._read == self._batches:
            raise StopIteration
        batch = self._open().next()
        self._read += 1
        return batch

    @property
    def provide_data(self):
        """The names and shapes of a batch's images, which ``mx.mod.Module`` reads."""
        return self._open().provide_data

    @property
    def provide_label(self):
        """The names and shapes of a batch's labels, which ``mx.mod.Module`` reads."""
        return self._open().provide_label

    def _open(self):
        if self._records is None:
            random = np.random.RandomState([self._seed, self._epoch, self._part])
            seed, seed_aug = random.randint(2**31 - 1, size=2).tolist()
            self._records = mx.io.ImageRecordIter(seed=seed, seed_aug=seed_aug, **self._options)
        return self._records


def _files(path_imgrec, path_imgidx):
    record = Path(path_imgrec)
    index = Path(path_imgidx) if path_imgidx is not None else record.with_suffix(".idx")
    for path in (record, index):
        if not path.is_file():
            raise FileNotFoundError(
                f"no file {path}: expected images packed by MXNet's tools/im2rec.py, and their "
                "index, which im2rec.py or tools/rec2idx.py makes"
            )
    return record, index


def _part_size(images: int, parts: int, part: int) -> int:
    """Return ImageRecordIter's number of images in a part; the last parts may have fewer."""
    most = -(-images // parts)
    return max(0, min(most, images - part * most))


def _batches(images: int, parts: int, part: int, batch_size: int, even: bool) -> int:
    if not even:
        return -(-_part_size(images, parts, part) // batch_size)
    smallest = _part_size(images, parts, parts - 1)
    if smallest < batch_size:
        raise ValueError(
            f"{images} images in {parts} parts: the smallest part has {smallest} images, less than "
            f"a batch of {batch_size}: use smaller batches, fewer ranks or more images"
        )
    return smallest // batch_size

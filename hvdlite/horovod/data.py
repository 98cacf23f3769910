"""Horovod's data loaders (horovod.data): a base class, and a mixin that reads ahead in a thread."""

import queue
import threading
from typing import Any, Iterator

_END = object()


class BaseDataLoader:
    """Yields each batch of ``_iterate``, which a subclass defines, after ``_process_batch``."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        raise NotImplementedError

    def _iterate(self) -> Iterator[Any]:
        """Yield the batches of an epoch."""
        raise NotImplementedError

    def _process_batch(self, batch: Any) -> Any:
        return batch

    def __iter__(self) -> Iterator[Any]:
        for batch in self._iterate():
            yield self._process_batch(batch)


class AsyncDataLoaderMixin:
    """Reads batches ahead in a thread. Must precede the data loader among the base classes.

    :param async_loader_queue_size: the number of batches to read ahead; 0: read without a thread.
    :param debug_data_loader: ignored; Horovod prints messages about the loader.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self._ahead = async_loader_queue_size
        self._closed = threading.Event()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the threads; an iteration in progress still yields the batches read so far."""
        self._closed.set()

    def __iter__(self) -> Iterator[Any]:
        if self._ahead <= 0:
            yield from super().__iter__()  # type: ignore[misc]
            return
        batches: queue.Queue = queue.Queue(self._ahead)
        left = threading.Event()
        reader = threading.Thread(target=self._read, args=(batches, left), daemon=True)
        reader.start()
        try:
            while True:
                batch = batches.get()
                if batch is _END:
                    return
                if isinstance(batch, _Failure):
                    raise batch.error
                yield self._process_batch(batch)  # type: ignore[attr-defined]
        finally:
            left.set()
            reader.join()

    def _read(self, batches: queue.Queue, left: threading.Event) -> None:
        try:
            for batch in self._iterate():  # type: ignore[attr-defined]
                if not self._put(batches, batch, left):
                    break
        except BaseException as error:  # __iter__ raises the error in the thread of the user
            self._put(batches, _Failure(error), left)
        self._put(batches, _END, left)

    def _put(self, batches: queue.Queue, item: Any, left: threading.Event) -> bool:
        """Wait for room and put the item into the queue; return False if the loop has ended."""
        while not left.is_set() and not (self._closed.is_set() and item is not _END):
            try:
                batches.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False


class _Failure:
    def __init__(self, error: BaseException) -> None:
        self.error = error

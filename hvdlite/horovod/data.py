"""Horovod's data loaders (horovod.data): a base class, and a mixin that reads ahead in a thread."""

import queue
import threading
from typing import Any, Iterator

_END = object()


class BaseDataLoader:
    """Batches of a subclass's ``_iterate``, each passed through its ``_process_batch``."""

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
    """Reads batches ahead of their use; it comes first among the bases: ``(..., BaseDataLoader)``.

    :param async_loader_queue_size: number of batches to read ahead; 0: none.
    :param debug_data_loader: in Horovod prints what the loader does; ignored.
    """

    def __init__(
        self, async_loader_queue_size: int = 64, debug_data_loader: bool = False, *args: Any,
        **kwargs: Any,
    ) -> None:  # fmt: skip
        self._ahead = async_loader_queue_size
        self._closed = threading.Event()
        super().__init__(*args, **kwargs)

    def close_async_loader(self) -> None:
        """End the threads that read; an iteration in progress ends after what it has read."""
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
        except BaseException as error:  # raised later, where the batches are used
            self._put(batches, _Failure(error), left)
        self._put(batches, _END, left)

    def _put(self, batches: queue.Queue, item: Any, left: threading.Event) -> bool:
        """Put the item when there is room; False: the reader has stopped."""
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

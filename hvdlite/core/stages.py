"""Collectives that begin with another: how many rows come decides the memory of the result.

A handle of such a collective gets ahead also while no thread of the user's waits for it. Else ranks
that wait for their handles in different orders would wait for each other for ever. One thread of
this process looks after all of them; it sleeps while there are none.
"""

import threading
from typing import Callable, List, Optional

from hvdlite.core import topology
from hvdlite.core.collectives import Started
from hvdlite.core.handles import Handle, failed
from hvdlite.core.native import HvdliteError

_SHORTEST, _LONGEST = 0.0002, 0.01  # seconds: the naps of the thread while something is pending
_PATIENCE = 0.1  # seconds: short waits let Ctrl-C through


def staged(first: Started, second: Callable[[], Handle]) -> Handle:
    """Return the handle of a collective that begins when another has ended.

    :param first: is on its way.
    :param second: starts the collective; any thread calls it, once. What it raises, or ``first``
        ends with, is the error of the handle.
    """
    both = _Staged(first, second)
    return Handle(both.poll, both.finish, lambda: _keeper.keep(both))


class _Staged:
    def __init__(self, first: Started, second: Callable[[], Handle]) -> None:
        self._first, self._second = first, second
        self._lock = threading.Lock()  # whoever has it looks after the first, and begins the second
        self._begun: Optional[Handle] = None
        self._job = topology.job_number()

    def advance(self) -> Optional[Handle]:
        """Begin the second if it can be; return its handle at once, None if it has not begun."""
        if self._begun is None and self._lock.acquire(blocking=False):
            try:
                self._look(0)
            finally:
                self._lock.release()
        return self._begun

    def poll(self) -> bool:
        begun = self.advance()
        return begun is not None and begun.poll()

    def finish(self):
        while self._begun is None:
            with self._lock:
                self._look(_PATIENCE)
        return self._begun.synchronize()

    def _look(self, seconds: float) -> None:
        if self._begun is None and self._first.done(seconds):
            try:
                self._first.finish()
                if self._job != topology.job_number():
                    raise HvdliteError("the job has ended while this collective waited for rows")
                self._begun = self._second()
            except Exception as error:  # for whoever waits
                self._begun = failed(error)


class _Keeper:
    def __init__(self) -> None:
        self._news = threading.Condition()  # guards what follows
        self._pending: List[_Staged] = []
        self._thread: Optional[threading.Thread] = None

    def keep(self, one: _Staged) -> None:
        """Begin its second part when it can be, whoever waits for it or not."""
        with self._news:
            self._pending.append(one)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hvdlite rows", daemon=True)
                self._thread.start()
            self._news.notify()

    def _run(self) -> None:
        nap = _SHORTEST
        while True:
            with self._news:
                came = self._news.wait(nap if self._pending else None)
                pending = list(self._pending)
            begun = [one for one in pending if one.advance()]
            with self._news:
                self._pending = [one for one in self._pending if one not in begun]
            nap = _SHORTEST if came or begun else min(2 * nap, _LONGEST)


_keeper = _Keeper()

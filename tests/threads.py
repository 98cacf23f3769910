"""Run functions concurrently in threads of one rank, for example waits for the same handles."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, List, Sequence

THREADS = 4


def in_threads(works: Sequence[Callable[[], Any]]) -> list:
    """Run each function in a separate thread; return their results or raise the first error."""
    with ThreadPoolExecutor(len(works)) as pool:
        futures = [pool.submit(work) for work in works]
        return [future.result() for future in futures]


def outcome_of(handle) -> Any:
    """Return the handle's result or error."""
    try:
        return handle.synchronize()
    except Exception as error:
        return error


def outcomes(handles: Sequence, threads: int = THREADS) -> List[Any]:
    """Return the result or error of each handle; check that several threads get the same object."""

    def ask(polls: bool) -> list:
        found = []
        for handle in handles:
            while polls and not handle.poll():
                pass
            found.append(outcome_of(handle))
            assert handle.poll()
            assert outcome_of(handle) is found[-1]
        return found

    first, *others = in_threads([lambda i=i: ask(i % 2 == 1) for i in range(threads)])
    for other in others:
        assert all(one is same for one, same in zip(first, other))
    return first


def as_threads(function, arguments) -> list:
    """Call the function with each tuple of arguments in a thread; return results or errors."""
    results = [None] * len(arguments)

    def run(i: int) -> None:
        try:
            results[i] = function(*arguments[i])
        except Exception as error:
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(arguments))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return results

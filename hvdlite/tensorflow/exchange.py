"""How TensorFlow calls collectives: at once if eager, else by two nodes of a graph.

The first node starts a collective, the second node waits for the result. TensorFlow runs only the
first nodes in the order of the program. If shapes are known, a first node never waits for other
ranks, only for its own last result. So ranks may reach their collectives in different orders.
"""

import contextlib
import itertools
import re
import weakref
from collections import Counter, deque
from typing import Callable, Dict, Iterator, List, Optional, Sequence

import numpy as np
import tensorflow as tf

from hvdlite.core.arguments import wrong
from hvdlite.core.handles import Handle
from hvdlite.core.module_state import ModuleState
from hvdlite.core.names import call_name, calling_line
from hvdlite.core.native import HvdliteError, find_failures_by
from hvdlite.core.process_set import checked

# for each graph a Counter of the names in it
_names_in: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()
_MOST_FAILURES = 64
# most results of one node that are kept, because iterations of a loop may overlap
_MOST_AWAITED = 64


class _Graphs(ModuleState):
    """What the graphs of this process have in progress."""

    def begin(self) -> None:
        self.keys = itertools.count()
        self.started: Dict[int, Handle] = {}  # handles by key, for which no node has waited so far
        self.failures: Dict[int, HvdliteError] = {}  # failures, by the number in their texts


_graphs = _Graphs()


def name_of(kind: str, name: Optional[str], process_set) -> str:
    """Return the collective's name, the same on every rank, without its kind.

    In a graph each node has its own name, which stays the same if the program is traced again. In a
    graph within a graph the name contains the inner graph's name.
    """
    checked(process_set)  # checked here, because a graph would raise only when it runs
    if name is not None and not isinstance(name, str):
        raise wrong("name", name, "a string, or None")
    if tf.executing_eagerly():
        return call_name(kind, process_set) if name is None else name
    graph = tf.compat.v1.get_default_graph()
    name = calling_line() + _within(graph) if name is None else name
    names = _names_in.setdefault(graph, Counter())
    names[kind, name] += 1
    count = names[kind, name] - 1
    return f"{name}~{count}" if count else name


def _within(graph) -> str:
    """Return the names of nested graphs, without the numbers of traces."""
    found, outer = "", getattr(graph, "outer_graph", None)
    while outer and (hasattr(outer, "outer_graph") or not _is_eager_outside()):
        found += " in " + re.sub(r"_\d+$", "", graph.name)
        graph, outer = outer, getattr(outer, "outer_graph", None)
    return found


_is_eager_outside = tf.compat.v1.executing_eagerly_outside_functions


@contextlib.contextmanager
def _numbered() -> Iterator[None]:
    """Number the failure that the block of a graph's node raises.

    TensorFlow raises an error of its own with the text, by which :func:`_failure_of` finds it.
    """
    try:
        yield
    except HvdliteError as error:
        if len(_graphs.failures) >= _MOST_FAILURES:
            del _graphs.failures[min(_graphs.failures)]
        number = next(_graphs.keys)
        # a copy, without the traceback
        _graphs.failures[number] = type(error)(*error.args, **vars(error))
        raise type(error)(f"{error} [failure {number}]", **vars(error)) from error


def _failure_of(error: BaseException) -> Optional[HvdliteError]:
    if not isinstance(error, tf.errors.OpError):
        return None
    number = re.search(r" \[failure (\d+)\]", str(error))
    return _graphs.failures.get(int(number[1])) if number else None


find_failures_by(_failure_of)


def run(
    start: Callable[[List[np.ndarray]], Handle], tensors: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType], shapes: Sequence[tf.TensorShape],
) -> List[tf.Tensor]:  # fmt: skip
    """Run a collective; its results have the given dtypes and, where known, shapes.

    :param start: starts the collective on arrays; the handle's result is a list of arrays.
    """
    if tf.executing_eagerly():
        results = start([np.asarray(tensor) for tensor in tensors]).synchronize()
        return [tf.convert_to_tensor(each, dtype) for each, dtype in zip(results, dtypes)]
    return wait([begin(start, tensors)], dtypes, shapes)


def begin(start: Callable[[List[np.ndarray]], Handle], tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the graph node that starts a collective; pass its value to :func:`wait`."""
    started: deque = deque()
    last: Optional[weakref.ref] = None

    def begin_now(*arrays):
        nonlocal last
        before, key = last and last(), next(_graphs.keys)
        if before:  # a collective of the same name, as in a loop or a function called twice
            with contextlib.suppress(Exception):  # the wait for that handle raises its error
                before.synchronize()
        with _numbered():
            _graphs.started[key] = handle = start(list(arrays))
        last = weakref.ref(handle)
        started.append(key)
        # limited, because no node waits for a result that nothing uses
        if len(started) > _MOST_AWAITED:
            _graphs.started.pop(started.popleft(), None)
        return np.int64(key)

    return tf.numpy_function(begin_now, list(tensors), tf.int64, stateful=True)


def wait(begun: Sequence[tf.Tensor], dtypes, shapes) -> List[tf.Tensor]:
    """Wait for all started collectives; return their results, one after the other."""

    def wait_now(*keys):
        handles = [_graphs.started.pop(int(key)) for key in keys]
        with _numbered():
            return [each for handle in handles for each in handle.synchronize()]

    results = tf.numpy_function(wait_now, list(begun), list(dtypes), stateful=False)
    results = list(results) if isinstance(results, (list, tuple)) else [results]
    for result, shape in zip(results, shapes):
        result.set_shape(shape)
    return results

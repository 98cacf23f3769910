"""Calls collectives from TensorFlow: directly in eager mode, with two nodes in a graph.

The first node starts a collective, and the second node waits for the collective's result.
TensorFlow runs all first nodes, because they are stateful, in the order of the program. If shapes
are known, a first node waits only for the collective that the same node has started before, not for
other ranks. So ranks may run their collectives in different orders without a deadlock.
"""

import contextlib
import itertools
import os
import re
import uuid
import weakref
from collections import Counter, deque
from typing import Callable, Dict, List, Optional, Sequence

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import script_ops

from hvdlite.core.arguments import wrong
from hvdlite.core.handles import Handle
from hvdlite.core.module_state import ModuleState
from hvdlite.core.names import call_name, calling_line
from hvdlite.core.native import failures_kept
from hvdlite.core.process_set import check_process_set

# The largest number of results that a node keeps; overlapping iterations of a loop need several.
_MOST_AWAITED = 64
_PROCESS = uuid.uuid4().hex[:12]


class _Graphs(ModuleState):
    """The nodes and the started collectives of this process's graphs."""

    def begin(self) -> None:
        # For each graph, a Counter of the names of its nodes.
        self.names_in: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        # For each outermost graph, the functions of all nodes in it and in nested graphs, because a
        # function may run after the nested graph of its node is freed. TensorFlow does the same.
        self.functions_of: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
        self.keys = itertools.count()
        self.started: Dict[int, Handle] = {}  # by key, until a graph node waits for it


_graphs = _Graphs()


def name_of(kind: str, name: Optional[str], process_set) -> str:
    """Return the collective's name, equal on every rank, without its kind ("allreduce").

    Each node of a graph gets a different name. Tracing a function again gives the same names. The
    name of a node in a nested graph contains the nested graph's name.
    """
    check_process_set(process_set)  # raises now, not when the graph first runs
    if name is not None and not isinstance(name, str):
        raise wrong("name", name, "a string, or None")
    if tf.executing_eagerly():
        return call_name(kind, process_set) if name is None else name
    graph = tf.compat.v1.get_default_graph()
    name = calling_line() + _within(graph) if name is None else name
    names = _graphs.names_in.setdefault(graph, Counter())
    names[kind, name] += 1
    count = names[kind, name] - 1
    return f"{name}~{count}" if count else name


def _within(graph) -> str:
    """Return the names of the graphs around a node, without the numbers that tracing appends."""
    found, outer = "", getattr(graph, "outer_graph", None)
    while outer and (hasattr(outer, "outer_graph") or not _is_eager_outside()):
        found += " in " + re.sub(r"_\d+$", "", graph.name)
        graph, outer = outer, getattr(outer, "outer_graph", None)
    return found


_is_eager_outside = tf.compat.v1.executing_eagerly_outside_functions


def run(
    start: Callable[[List[np.ndarray]], Handle], tensors: Sequence[tf.Tensor],
    dtypes: Sequence[tf.DType], shapes: Sequence[tf.TensorShape],
) -> List[tf.Tensor]:  # fmt: skip
    """Run a collective; return tensors of these dtypes and shapes (unknown dimensions: None).

    :param start: starts the collective on arrays; the handle's result is a list of arrays.
    """
    if tf.executing_eagerly():
        # np.asarray(tensor) fails for a 0-d bfloat16 tensor; tensor.numpy() gives a scalar.
        values = [tf.convert_to_tensor(tensor).numpy() for tensor in tensors]
        results = start([np.asarray(value) for value in values]).synchronize()
        return [tf.convert_to_tensor(each, dtype) for each, dtype in zip(results, dtypes)]
    return wait([begin(start, tensors)], dtypes, shapes)


def begin(start: Callable[[List[np.ndarray]], Handle], tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the value of a new graph node that starts a collective; pass it to :func:`wait`."""
    started: deque = deque()
    last: Optional[weakref.ref] = None

    def begin_now(*arrays):
        nonlocal last
        before, key = last and last(), next(_graphs.keys)
        if before:  # the node runs again: two collectives in progress can't have the same name
            with contextlib.suppress(Exception):  # wait_now() raises the error of that collective
                before.synchronize()
        with failures_kept():
            _graphs.started[key] = handle = start(list(arrays))
        last = weakref.ref(handle)
        started.append(key)
        # Handles whose results the graph does not use stay here, because no node waits for them.
        if len(started) > _MOST_AWAITED:
            _graphs.started.pop(started.popleft(), None)
        return np.int64(key)

    return node(begin_now, tensors, [tf.int64])[0]


def gate(
    start: Callable[[List[np.ndarray]], Handle], tensors: Sequence[tf.Tensor]
) -> List[tf.Tensor]:
    """Run a collective that only checks; operations that use the returned tensors wait for it.

    :param start: as for :func:`run`; the handle's result is a list of one np.int32.
    """
    if tf.executing_eagerly():
        return run(start, tensors, [tf.int32], [[]])
    # stateful, because TensorFlow removes a stateless node whose value no operation uses
    return wait([begin(start, tensors)], [tf.int32], [[]], stateful=True)


def wait(begun: Sequence[tf.Tensor], dtypes, shapes, stateful: bool = False) -> List[tf.Tensor]:
    """Return the results of collectives that :func:`begin` has started, in one flat list."""

    def wait_now(*keys):
        handles = [_graphs.started.pop(int(key)) for key in keys]
        with failures_kept():
            return [each for handle in handles for each in handle.synchronize()]

    results = node(wait_now, begun, dtypes, stateful)
    for result, shape in zip(results, shapes):
        result.set_shape(shape)
    return results


def node(
    function: Callable, tensors: Sequence[tf.Tensor], dtypes: Sequence, stateful: bool = True,
    name: Optional[str] = None,
) -> List[tf.Tensor]:  # fmt: skip
    """Return the results of a graph node that calls the function with NumPy arrays.

    A saved graph has only the token of a node's function. The tokens of ``tf.numpy_function`` are
    numbers: in another process the token would call whichever function has the number there.
    hvdlite's tokens are unique, and TensorFlow's error for an unknown token quotes the token.
    """
    # with the process id, because a forked child has the same _PROCESS, but makes its own nodes
    number = f"{_PROCESS}-{os.getpid()}-{next(_graphs.keys)}"
    token = (
        f"hvdlite:{number} (another process has made this graph, and hvdlite's nodes run only in "
        "the process that has made them: make the graph again with hvdlite, then restore the "
        "variables with tf.compat.v1.train.Saver or tf.train.Checkpoint)"
    )
    # Autograph must not convert what the function calls when the node runs.
    function = tf.autograph.experimental.do_not_convert(function)
    script_ops._py_funcs._funcs[token] = function  # TensorFlow keeps only a weak reference
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None):
        graph = graph.outer_graph
    _graphs.functions_of.setdefault(graph, []).append(function)
    kind = tf.raw_ops.PyFunc if stateful else tf.raw_ops.PyFuncStateless
    return list(kind(input=list(tensors), token=token, Tout=list(dtypes), name=name))

"""Broadcasts variables, in eager mode, ``tf.function`` and sessions; sends Python objects."""

from typing import Any, Callable, List, Optional, Sequence

import tensorflow as tf

from hvdlite.core import objects
from hvdlite.core.names import owner_name
from hvdlite.core.process_set import ProcessSet, check_root, global_process_set
from hvdlite.tensorflow.differentiable import start_broadcast
from hvdlite.tensorflow.exchange import name_of, run


def broadcast_variables(
    variables: Sequence, root_rank: int, process_set: ProcessSet = global_process_set,
    inplace: bool = False,
):  # fmt: skip
    """Overwrite the variables on every rank with the values of rank ``root_rank``.

    :param variables: of TensorFlow or of Keras, in the same order on every rank.
    :param root_rank: the root's rank in the job, not its rank in ``process_set``.
    :param inplace: ignored.
    :return: in a graph, the operation that broadcasts; in eager mode None.
    :raises ValueError: ``root_rank`` is not in the set.
    :raises hvdlite.HvdliteError: ranks disagree on a shape or dtype, or a rank has left.
    """
    assigned = _assign(list(variables), root_rank, None, process_set)
    return None if tf.executing_eagerly() else tf.group(*assigned)


def broadcast_(
    variables: Sequence, root_rank: int, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List:  # fmt: skip
    """Do what :func:`broadcast_variables` does; return the new values.

    :param name: the beginning of the tensors' names, the same on every rank.
    """
    with tf.control_dependencies(_assign(list(variables), root_rank, name, process_set)):
        return [tf.identity(variable) for variable in variables]


def _assign(variables: List, root_rank: int, name: Optional[str], process_set) -> List:
    if not variables:
        return []
    check_root(root_rank, process_set)  # raises before anything is sent
    if name is None:
        name = owner_name("variables", process_set) if tf.executing_eagerly() else "variables"
    name = name_of("broadcast", name, process_set)
    names = [f"{name}.{i}" for i in range(len(variables))]
    values = [tf.convert_to_tensor(variable) for variable in variables]
    arrived = run(
        lambda arrays: start_broadcast(names, arrays, root_rank, process_set),
        values, [v.dtype for v in values], [v.shape for v in values],
    )  # fmt: skip
    return [_assigned(*each) for each in zip(variables, arrived)]


def _assigned(variable, value):
    result = variable.assign(value)
    return value if result is None else result  # in a graph, Keras's assign() returns None


def broadcast_global_variables(root_rank: int):
    """Return an operation that broadcasts all global variables of the default graph.

    :param root_rank: the rank whose values all ranks get.
    :raises RuntimeError: TensorFlow is in eager mode, which has no global variables.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "there are no global variables while TensorFlow is eager: use "
            "hvd.broadcast_variables(model.variables, root_rank)"
        )
    return broadcast_variables(tf.compat.v1.global_variables(), root_rank)


class BroadcastGlobalVariablesHook(tf.compat.v1.train.SessionRunHook):
    """A hook that broadcasts the global variables of one rank when a session is made.

    Use it in ``tf.compat.v1.train.MonitoredTrainingSession(hooks=[...])``. The variables have their
    initial values or the values of a checkpoint.

    :param root_rank: the rank whose values all ranks get.
    :param device: ignored: variables are on the CPU.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self.root_rank = root_rank
        self.bcast_op = None

    def begin(self) -> None:
        """Add the broadcast to the graph, before the session makes the graph read-only."""
        if self.bcast_op is None or self.bcast_op.graph is not tf.compat.v1.get_default_graph():
            self.bcast_op = broadcast_global_variables(self.root_rank)

    def after_create_session(self, session, coord) -> None:
        """Broadcast. After an error TensorFlow makes a new session and calls this method again."""
        session.run(self.bcast_op)


def broadcast_object(
    obj: Any, root_rank: int = 0, session=None, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Any:  # fmt: skip
    """Do what ``hvdlite.broadcast_object`` does; ``session`` is ignored."""
    return objects.broadcast_object(obj, root_rank, name, process_set)


def broadcast_object_fn(
    root_rank: int = 0, session=None, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> Callable[[Any], Any]:  # fmt: skip
    """Return a function that does what :func:`.broadcast_object` does, with these arguments."""
    return lambda obj: objects.broadcast_object(obj, root_rank, name, process_set)


def allgather_object(
    obj: Any, session=None, name: Optional[str] = None,
    process_set: ProcessSet = global_process_set,
) -> List[Any]:  # fmt: skip
    """Do what ``hvdlite.allgather_object`` does; ``session`` is ignored."""
    return objects.allgather_object(obj, name, process_set)

"""Layers that only this rank has, whose gradients are not averaged: ``local_layers`` of Horovod."""

from typing import Any, Callable, Collection, List, Sequence


def weights_of(layers) -> List[Any]:
    """Return the trainable weights of a layer, of several, or of None."""
    several = isinstance(layers, (list, tuple, set))
    given = layers if several else [layers]
    return [weight for layer in given if layer is not None for weight in layer.trainable_weights]


def average_all_but(
    local: Collection[int], variables: Sequence, grads: Sequence,
    average: Callable[[List], Sequence], divide: Callable[[Any], Any],
) -> List:  # fmt: skip
    """Return the gradients of the variables, in their order.

    :param local: the ``id`` of each variable that only this rank has.
    :param average: averages the gradients of all other variables over ranks.
    :param divide: scales the gradient of a local variable like an average.
    """
    if not local:
        return list(average(list(grads)))
    is_local = [id(variable) in local for variable in variables]
    averaged = iter(average([grad for grad, own in zip(grads, is_local) if not own]))
    return [divide(grad) if own else next(averaged) for grad, own in zip(grads, is_local)]

"""Sends the states of a gluon.Trainer to other ranks: momentum, master weights, step counts."""

import pickle
from contextlib import contextmanager
from typing import Any, Dict, Iterator, List, Optional

from hvdlite.core.agreement import agree
from hvdlite.core.names import owner_name
from hvdlite.core.objects import result_of_root
from hvdlite.core.process_set import check_root, global_process_set
from hvdlite.mxnet.gradients import Gradients, Loads, common_order
from hvdlite.mxnet.optimizer import DistributedOptimizer, undistribute
from hvdlite.training import left_out


def broadcast_trainer_states(trainer, root_rank: int = 0) -> None:
    """Replace the trainer's states on every rank by those of rank ``root_rank``.

    The states are the optimizer's states of each parameter, including float32 master weights
    (``multi_precision``), and the optimizer's settings: step counts, learning rate or schedule,
    weight decay. Call this function, for example, after ``trainer.load_states(file)`` on one rank.
    If there are master weights, broadcast the parameters as well, so that parameters and master
    weights agree. Collective; waits for the states.

    :param trainer: a DistributedTrainer, or a gluon.Trainer with any optimizer.
    :raises hvdlite.HvdliteError: on every rank, if the ranks have different optimizers or numbers
        of parameters, or if the root's states can't be pickled.
    """
    check_root(root_rank, global_process_set)  # first, so that a wrong root changes nothing
    name = owner_name("states")
    kind = type(undistribute(trainer.optimizer)).__name__
    around = " in a DistributedOptimizer" if _is_distributed(trainer) else ""
    agree(
        name,
        [f"{kind}{around}, {len(trainer._params)} parameters"],
        remedy="Make the same trainer on every rank.",
    )
    whole = whole_states(trainer)
    packed = result_of_root(lambda: pack_states(trainer, whole), root_rank, name)
    unpack_states(trainer, packed)
    gradients = _of_same_states(trainer)
    if gradients is None:
        return
    gradients.loaded(0)
    # Compression residuals differ between ranks and are not broadcast.
    if packed["left_out"] and not gradients.has_left_out:
        left_out.warn(f"rank {root_rank} has loaded its parts, but this rank has loaded none")


@contextmanager
def with_left_out(gradients: Gradients, optimizer) -> Iterator[None]:
    """In the block, add the residuals to the plain optimizer, so that Gluon saves the residuals."""
    own = gradients.left_out()
    vars(optimizer).update({left_out.KEY: left_out.tagged(own)} if own else {})
    try:
        yield
    finally:
        vars(optimizer).pop(left_out.KEY, None)


def refuse_begun(trainer) -> None:
    """Refuse to save states between the backward passes of a step: they lack the gradients' sum."""
    if _is_distributed(trainer):
        own = trainer.optimizer._averaging
        left_out.refuse_begun(own.passes, bool(own.rescales))
    elif hasattr(trainer, "_passes"):
        left_out.refuse_begun(trainer._passes, 0 < trainer._pass < trainer._passes)


def whole_states(trainer) -> Dict[Any, Any]:
    """Return all states of each parameter. Collective: other ranks may have some of the states."""
    updater = _updaters(trainer)[0]
    gather = getattr(updater, "whole_states", None)
    return gather() if gather else updater.states


def pack_states(trainer, whole: Dict[Any, Any]) -> Dict[str, Any]:
    """Return the trainer's states for ``unpack_states``, without anything that can't be pickled.

    ``packed["states"]`` equals the file that ``trainer.save_states()`` writes for the plain
    optimizer. A program without hvdlite can load this file.

    :param whole: what :func:`whole_states` returned for the trainer.
    """
    scaler = getattr(trainer, "_amp_loss_scaler", None)
    updater, gradients = _updaters(trainer)[0], gradients_of(trainer)
    return {
        "states": pickle.dumps((whole, undistribute(updater.optimizer))),
        "order": _order(trainer),
        "left_out": bool(gradients and gradients.has_left_out),
        "loss_scaler": None if scaler is None else vars(scaler),
    }


def unpack_states(trainer, packed: Dict[str, Any]) -> None:
    """Give the trainer states that another rank, or another job, has packed.

    :raises ValueError: the states have another class of optimizer or number of parameters.
    """
    states, optimizer = pickle.loads(packed["states"])
    own = trainer.optimizer
    if type(optimizer) is not type(undistribute(own)):
        raise ValueError(
            f"the states are those of {type(optimizer).__name__}, but the trainer has "
            f"{type(undistribute(own)).__name__}: make the trainer with the optimizer of the states"
        )
    if len(packed["order"]) != len(trainer._params):
        raise ValueError(
            f"the states are those of {len(packed['order'])} parameters, but the trainer has "
            f"{len(trainer._params)} parameters: make the trainer with the parameters of the states"
        )
    # Indices may differ between ranks: a trainer sorts by names with numbers that a process counts.
    index = dict(zip(packed["order"], _order(trainer)))
    for counts in optimizer._all_index_update_counts.values():
        renumbered = {index.get(i, i): count for i, count in counts.items()}
        counts.clear()
        counts.update(renumbered)
    vars(own).update(optimizer.__getstate__())
    for updater in _updaters(trainer):
        states, _ = pickle.loads(packed["states"])  # unpickled again: each updater needs new arrays
        updater.states = {index.get(i, i): state for i, state in states.items()}
        updater.states_synced = dict.fromkeys(updater.states, False)
        updater.optimizer = own
    if packed["loss_scaler"] and hasattr(trainer, "_amp_loss_scaler"):
        vars(trainer._amp_loss_scaler).update(packed["loss_scaler"])


def _of_same_states(trainer) -> Any:
    """Record that all ranks have loaded equal states; return the trainer's gradients, or None."""
    if isinstance(trainer._kvstore, Loads):
        trainer._kvstore.loaded(0)
    return gradients_of(trainer)


def resume(trainer, packed: Dict[str, Any], own: Dict[str, Any]) -> None:
    """Unpack states that are the same on every rank.

    :param own: the compression residuals of this rank's gradients.
    """
    unpack_states(trainer, packed)
    gradients = _of_same_states(trainer)
    if gradients is not None:
        gradients.leave_out(own)
        gradients.loaded(0)


def _updaters(trainer) -> List[Any]:
    if not trainer._kv_initialized and trainer._kvstore_params["kvstore"] is not None:
        trainer._init_kvstore()  # decides whether the kvstore or the trainer keeps the states
    if not trainer._update_on_kvstore:
        return trainer._updaters
    updater = getattr(trainer._kvstore, "_updater", None)
    if updater is None:
        raise ValueError(
            f"the kvstore '{trainer._kvstore.type}' keeps the states where hvdlite can't reach "
            "them: make the Trainer with update_on_kvstore=False"
        )
    return [updater]


def _order(trainer) -> List[int]:
    """Return the indices of the parameters in an order that is the same on every rank."""
    return common_order(dict(enumerate(trainer._params)))


def gradients_of(trainer) -> Optional[Gradients]:
    if _is_distributed(trainer):
        return trainer.optimizer._averaging.gradients
    return getattr(trainer, "_gradients", None)


def _is_distributed(trainer) -> bool:
    return isinstance(trainer.optimizer, DistributedOptimizer)

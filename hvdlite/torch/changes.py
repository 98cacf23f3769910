"""Notices that ranks have changed an optimizer's parameters or states differently.

A rank that has changed something sends a digest of the change with its next request for each
bucket. If another rank sends no digest or a different digest, the request fails on every rank.
"""

from typing import Any, Callable, Dict, Iterable, Iterator, List, NoReturn, Optional, Sequence

import torch

from hvdlite.core.agreement import agree, announce, digest_of_bytes
from hvdlite.core.native import MISMATCH, HvdliteError
from hvdlite.core.process_set import ProcessSet
from hvdlite.training.left_out import KEY

SAME = (
    "Make the same model, freeze the same parameters, and give the optimizer the same parameters "
    "and settings, on every rank."
)
_DROPPED = "averages of the last step dropped, for example by zero_grad() before step()"


class Changes:
    """What this rank has changed in an optimizer since the ranks last compared their parameters."""

    def __init__(self, owner: str, process_set: ProcessSet, passes: int) -> None:
        self._owner, self._set = owner, process_set
        # backward_passes_per_step: the current number, and the number that ranks last compared
        self.passes = self._compared_passes = passes
        # weak reference to the method that finds and adopts new parameters of the script
        self.look: Callable[[], Optional[Callable]] = lambda: None
        # names of parameters that have required no gradient so far, or that the script has added
        self.waiting: Dict[torch.Tensor, str] = {}
        # names of parameters that the script removed: all, and those that ranks have compared
        self.removed: List[str] = []
        self._compared: List[str] = []
        self._sent: Any = None  # the changes that this step's requests carry; None: no request yet
        # True: the script has dropped averages before a step used them. The other ranks learn this
        # from the next step's requests (dropped), or from this step's requests (_sent_dropped).
        self.dropped = self._sent_dropped = False

    def now(self) -> Dict[str, List[str]]:
        """Return the changes by kind: "added", "removed" or "passes"."""
        look = self.look()
        if look is not None:
            look()
        added = [name for param, name in self.waiting.items() if param.requires_grad]
        removed = [] if self.removed == self._compared else ["removed", *self.removed]
        passes = [] if self.passes == self._compared_passes else [str(self.passes)]
        kinds = {"added": added, "removed": removed, "passes": passes}
        return {kind: texts for kind, texts in kinds.items() if texts}

    def digest(self, states: int) -> int:
        """Return the digest that this step's requests carry; later changes are for the next step.

        :param states: the digest of the states that the optimizer has just loaded.
        """
        if self._sent is None:
            self._sent = self.now()
            self._sent_dropped, self.dropped = self.dropped, False
        sent = {**self._sent, "dropped": True} if self._sent_dropped else self._sent
        return -digest_of({"loaded": states, **sent}) if sent else states

    def refuse_late(self) -> None:
        """Raise if the script has added a parameter since gradients were averaged."""
        self.now()
        for param, name in self.waiting.items():
            if param.requires_grad and param.grad is not None:
                raise RuntimeError(
                    f"parameter '{name}' was added or unfrozen between synchronize() and step(), "
                    "so its gradient was not averaged: add or unfreeze parameters before "
                    "synchronize()"
                )

    def begin(self) -> None:
        """Begin a step."""
        self._sent, self._sent_dropped = None, False

    def compare(self, changes: Dict[str, List[str]], names: Sequence[str], *facts) -> None:
        """Send the changes, unless the step's requests have carried them already.

        If another rank has not made the same changes, that rank's next requests fail.

        :param names: names of the buckets, whose requests compare the changes.
        :param facts: arguments of :meth:`facts`.
        :raises HvdliteError: on every rank, unless all ranks have made the same changes.
        """
        if changes == (self._sent or {}):
            return
        try:
            announce(names, digest_of({"loaded": 0, **changes}), self._set)
        except HvdliteError as error:
            self.explain(error, *facts)

    def settle(self, changes: Dict[str, List[str]]) -> Dict[torch.Tensor, str]:
        """Note that all ranks have made these changes; return the parameters to add."""
        if not changes:
            return {}
        added = {p: name for p, name in self.waiting.items() if name in changes.get("added", ())}
        self.waiting = {p: name for p, name in self.waiting.items() if p not in added}
        self._compared, self._sent = self.removed, {}
        self._compared_passes = self.passes
        return added

    def facts(self, names: Iterable[str], frozen: Iterable[str] = ()) -> List[str]:
        """Return texts that must be equal on all ranks: on each parameter, then on the settings.

        :param names: names of the parameters with a hook.
        :param frozen: names of parameters that the script has frozen since ranks compared them.
        """
        still = [name for p, name in self.waiting.items() if not p.requires_grad]
        marks = dict.fromkeys((*still, *frozen), " (frozen)")
        marks.update(dict.fromkeys(self.removed, " (removed)"))
        of_names = [f"{name}{marks.get(name, '')}" for name in (*names, *self.waiting.values())]
        dropped = [_DROPPED] if self._sent_dropped else []
        return [*of_names, f"backward_passes_per_step {self.passes}", *dropped]

    def explain(self, error: Exception, *facts) -> NoReturn:
        """If ranks' parameters differ, raise an error that names one; otherwise raise ``error``."""
        if getattr(error, "kind", None) == MISMATCH:  # every rank gets this error
            agree(f"{self._owner}, parameters", self.facts(*facts), None, self._set, SAME)
        raise error


_SAMPLE = 1024  # a digest reads the first values of a tensor; later differences go unnoticed


def digest_of(state: Dict[str, Any], sample: int = _SAMPLE) -> int:
    """Return a number above 0; two different states very probably have different numbers.

    :param sample: how many values of each tensor are used. With 0 only tensors of 1 value are used,
        such as step counts: other values may differ if the CPUs of two hosts round differently.
    """
    plain = {key: value for key, value in state.items() if key != KEY}
    return digest_of_bytes(_pieces(plain, sample))


def _pieces(value: Any, sample: int) -> Iterator[bytes]:
    if isinstance(value, torch.Tensor):
        count = sample if value.numel() > 1 else 1
        few = value.detach().flatten()[:count].cpu().contiguous()
        yield few.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, dict):
        for key, each in value.items():
            yield repr(key).encode()
            yield from _pieces(each, sample)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _pieces(each, sample)
    # all other types count as equal, because their repr may contain addresses
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield repr(value).encode()

"""Names of an optimizer's parameters, the same on every rank."""

from typing import Dict, Sequence

import torch


def named_of(optimizer, named_parameters) -> Dict[torch.Tensor, str]:
    """Return a name for each of the optimizer's parameters, in the same order on all ranks."""
    own = numbered(optimizer.param_groups, {})
    if named_parameters is None:
        return own
    pairs = list(named_parameters)
    if any(not isinstance(pair, tuple) for pair in pairs):
        raise ValueError(
            "named_parameters: expected pairs of names and parameters, such as those of "
            "model.named_parameters()"
        )
    names = [name for name, _ in pairs]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"named_parameters: names occur more than once: {', '.join(repeated)}")
    named = {param: name for name, param in pairs if param in own}
    unnamed = [own[param] for param in own if param not in named]
    if unnamed:
        _, group, place = unnamed[0].split(".")
        raise ValueError(
            f"named_parameters lacks {len(unnamed)} parameters of the optimizer, such as parameter "
            f"{place} of param_groups[{group}]: name all parameters of the optimizer"
        )
    return named


def numbered(groups: Sequence[dict], known: Dict[torch.Tensor, str]) -> Dict[torch.Tensor, str]:
    """Return a name for each unnamed parameter: its group's number, and its place in the group.

    A "'" follows if an earlier parameter has this name: removing a group renumbers later groups.
    """
    taken, found = set(known.values()), {}
    for i, group in enumerate(groups):
        for j, param in enumerate(group["params"]):
            if param not in known:
                name = f"noname.{i}.{j}"
                while name in taken:
                    name += "'"
                taken.add(name)
                found[param] = name
    return found


def check_groups(groups: Sequence) -> None:
    flat = [param for group in groups for param in group]
    if not all(isinstance(param, torch.Tensor) for param in flat):
        raise ValueError("groups: expected a number, or lists of parameters")
    if len({id(param) for param in flat}) < len(flat):
        raise ValueError("groups: a parameter occurs more than once")

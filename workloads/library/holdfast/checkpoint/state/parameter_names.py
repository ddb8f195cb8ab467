"""Names of an optimizer's parameters, where PyTorch itself has a place for them.

It numbers parameters by their order in the optimizer, and another start may have another order: a
set that was sorted otherwise, groups that were swapped. Shapes are often the same, so moments would
land on other parameters without an error.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

# Wrappers put these into names, and a start without the wrapper has the same parameters.
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
NAMES = "param_names"


def parameter_names(entries: Iterable[tuple[str, Any]]) -> dict[int, str]:
    """By id, for the modules of a state, with the entry in front: keys of the checkpoint's own
    tensors.
    """
    modules = [(name, value) for name, value in entries if isinstance(value, nn.Module)]
    return {
        id(p): f"{name}/{_unwrapped(key)}"
        for name, module in modules
        for key, p in module.named_parameters()
    }


def _unwrapped(key: str) -> str:
    for wrapper in _WRAPPERS:
        key = key.replace(wrapper, "")
    return key


def named(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, Any]:
    """Its state_dict() with the name of every parameter, as far as all are known and differ."""
    saved = optimizer.state_dict()
    live = [group["params"] for group in optimizer.param_groups]
    groups: list[dict[str, Any]] = saved.get("param_groups", [])
    if [len(group["params"]) for group in groups] != [len(parameters) for parameters in live]:
        return saved  # an optimizer that numbers in its own way
    found = [[names.get(id(p), "") for p in parameters] for parameters in live]
    every = [name for group in found for name in group]
    if not all(every) or len(set(every)) < len(every):
        return saved
    return saved | {
        "param_groups": [group | {NAMES: own} for group, own in zip(groups, found, strict=True)]
    }


def numbering(saved: Any) -> list[dict[str, int]] | None:
    """Numbers by name for each group of an optimizer's state; None where it has no names, or is
    none of PyTorch.
    """
    try:
        groups = [
            dict(zip(group[NAMES], group["params"], strict=True)) for group in saved["param_groups"]
        ]
        count = sum(len(group["params"]) for group in saved["param_groups"])
    except (KeyError, TypeError, ValueError):
        return None
    numbers = {name: number for group in groups for name, number in group.items()}
    sound = all(type(name) is str and type(number) is int for name, number in numbers.items())
    return groups if sound and len(set(numbers.values())) == count else None

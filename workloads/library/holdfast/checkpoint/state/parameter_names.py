"""Names of an optimizer's parameters, stored where PyTorch itself has a place for them.

PyTorch numbers parameters by their order in the optimizer, and another start may have another
order: a set that was sorted otherwise, groups that were swapped. Shapes are often the same, so
moments would be loaded into other parameters without an error.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

# Wrappers put these into names, and a start without the wrapper has the same parameters.
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
NAMES = "param_names"
Names = dict[int, str]
"""Names of parameters, by the id() of the parameter."""


def parameter_names(entries: Iterable[tuple[str, Any]]) -> Names:
    """Return the names of the parameters of a state's modules.

    A name has its entry in front, as the keys of the checkpoint's tensors have.
    """
    names: Names = {}
    for entry, value in entries:
        if isinstance(value, nn.Module):
            for key, parameter in value.named_parameters():
                names[id(parameter)] = f"{entry}/{_strip_wrappers(key)}"
    return names


def _strip_wrappers(key: str) -> str:
    for wrapper in _WRAPPERS:
        key = key.replace(wrapper, "")
    return key


def add_names(optimizer: torch.optim.Optimizer, names: Names) -> dict[str, Any]:
    """Return the optimizer's state_dict() with the name of every parameter.

    Without names if a parameter has none, or shares its name with another.
    """
    saved = optimizer.state_dict()
    saved_groups: list[dict[str, Any]] = saved.get("param_groups", [])
    live_groups = optimizer.param_groups
    if len(saved_groups) != len(live_groups):
        return saved
    named_groups: list[dict[str, Any]] = []
    all_names: list[str] = []
    for saved_group, live_group in zip(saved_groups, live_groups, strict=True):
        parameters = live_group["params"]
        # An optimizer that numbers in its own way.
        if len(saved_group["params"]) != len(parameters):
            return saved
        group_names = [names.get(id(parameter), "") for parameter in parameters]
        named_groups.append(saved_group | {NAMES: group_names})
        all_names += group_names
    has_duplicates = len(set(all_names)) < len(all_names)
    if has_duplicates or "" in all_names:
        return saved
    return saved | {"param_groups": named_groups}


def number_by_name(saved: Any) -> list[dict[str, int]] | None:
    """Return the parameters' numbers by name, for each group of an optimizer's state.

    None if the state has no names, or is not that of an optimizer of PyTorch.
    """
    groups: list[dict[str, int]] = []
    parameter_count = 0
    try:
        for group in saved["param_groups"]:
            parameters = group["params"]
            numbers_by_name = zip(
                group[NAMES],
                parameters,
                strict=True,
            )
            groups.append(dict(numbers_by_name))
            parameter_count += len(parameters)
    except (KeyError, TypeError, ValueError):
        return None
    numbers: dict[str, int] = {}
    for group in groups:
        numbers.update(group)
    for name, number in numbers.items():
        if type(name) is not str or type(number) is not int:
            return None
    return groups if len(set(numbers.values())) == parameter_count else None

"""Names of an optimizer's parameters, stored where PyTorch itself has a place for them.

PyTorch numbers parameters by their order in the optimizer, and another start may have another
order: a set that was sorted otherwise, groups that were swapped. Shapes are often the same, so
moments would be loaded into other parameters without an error. So every parameter has a name: its
name in its module, else the key of the tensor in the state that shares its memory, else its shape
if no other unnamed parameter has the same shape.

Decision: infra/decisions/0138.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from holdfast.checkpoint.state.tensors import Tensors, dtype_name, first_part, is_wrapper, to_local
from holdfast.support.errors import InputError

# Wrappers put these into names, and a start without the wrapper has the same parameters.
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")
NAMES = "param_names"
_ADD_MODULE = 'add their module to the state, or the tensors themselves: "weights": [tensor, ...]'
Place = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]


def list_parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return the parameters of an optimizer, in the order of their numbers."""
    parameters: list[torch.Tensor] = []
    for group in optimizer.param_groups:
        parameters.extend(group["params"])
    return parameters


class ParameterNames:
    """The names of parameters, by the entries of a state that hold them."""

    def __init__(self, entries: Iterable[tuple[str, Any]], tensors: Tensors) -> None:
        """`tensors` are those of every entry that is no optimizer, by their keys."""
        self._by_id: dict[int, str] = {}
        modules: list[str] = []
        for entry, value in entries:
            if isinstance(value, nn.Module):
                modules.append(f"{entry}/")
                for key, parameter in value.named_parameters():
                    self._by_id[id(parameter)] = f"{entry}/{_strip_wrappers(key)}"
        self._by_place: dict[Place, str] = {}
        self._shapes: set[tuple[int, ...]] = set()
        for key, tensor in tensors.items():
            place = _find_place(tensor)
            if place:
                self._by_place.setdefault(place, key)
            if not key.startswith(tuple(modules)):
                self._shapes.add(tuple(tensor.shape))

    def find(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter; empty if no entry has it."""
        name = self._by_id.get(id(parameter))
        if name:
            return name
        place = _find_place(parameter)
        return self._by_place.get(place, "") if place else ""

    def may_hold_copy(self, parameter: torch.Tensor) -> bool:
        """Return whether an entry that is no module has a tensor of the parameter's shape."""
        return tuple(parameter.shape) in self._shapes


def _strip_wrappers(key: str) -> str:
    for wrapper in _WRAPPERS:
        key = key.replace(wrapper, "")
    return key


def _find_place(tensor: torch.Tensor) -> Place | None:
    """Return what two tensors of the same memory have in common; None without memory."""
    plain = first_part(to_local(tensor))
    if not plain.numel() or is_wrapper(plain) or plain.layout is not torch.strided:
        return None
    return plain.data_ptr(), plain.dtype, tuple(plain.shape), plain.stride()


def add_names(
    entry: str,
    optimizer: torch.optim.Optimizer,
    names: ParameterNames,
) -> dict[str, Any]:
    """Return the optimizer's state_dict() with the name of every parameter.

    No names are added for an optimizer that numbers parameters in its own way. Raises InputError
    for a parameter whose value the state does not hold, and for two parameters that nothing
    distinguishes.
    """
    saved = optimizer.state_dict()
    saved_groups: list[dict[str, Any]] = saved.get("param_groups", [])
    live_groups = optimizer.param_groups
    if len(saved_groups) != len(live_groups):
        return saved
    named_groups: list[dict[str, Any]] = []
    owners: dict[str, int] = {}
    for saved_group, live_group in zip(saved_groups, live_groups, strict=True):
        parameters = live_group["params"]
        if len(saved_group["params"]) != len(parameters):
            return saved
        own_names = saved_group.get(NAMES) or [""] * len(parameters)
        group_names: list[str] = []
        for parameter, own_name in zip(parameters, own_names, strict=True):
            name = names.find(parameter) or own_name
            if not names.find(parameter):
                _check_held(entry, parameter, names)
            name = name or _describe(parameter)
            if owners.setdefault(name, id(parameter)) != id(parameter):
                raise _ambiguous_error(entry, name)
            group_names.append(name)
        named_groups.append(saved_group | {NAMES: group_names})
    return saved | {"param_groups": named_groups}


def _describe(parameter: torch.Tensor) -> str:
    return f"?{dtype_name(parameter.dtype)}{list(parameter.shape)}"


def _check_held(
    entry: str,
    parameter: torch.Tensor,
    names: ParameterNames,
) -> None:
    """Raise InputError if no entry can hold the value of a trained parameter."""
    if not parameter.requires_grad or names.may_hold_copy(parameter):
        return
    raise InputError(
        f"optimizer {entry} has a parameter that no entry of the state holds",
        got=(
            f"a {dtype_name(parameter.dtype)}{list(parameter.shape)}: its value would not"
            " be restored"
        ),
        allowed="parameters of modules of the state, and tensors in it",
        fix=_ADD_MODULE,
    )


def _ambiguous_error(entry: str, name: str) -> InputError:
    return InputError(
        f"optimizer {entry} has parameters that cannot be distinguished at a resume",
        got=f"two of {name.lstrip('?')}, and no module of the state has them",
        allowed="parameters of modules of the state, tensors in it, or named_parameters()",
        fix=f"{_ADD_MODULE}; or give the optimizer named_parameters()",
    )


def number_by_name(saved: Any) -> list[dict[str, int]] | None:
    """Return the parameters' numbers by name, for each group of an optimizer's state.

    None if the state has no names, or is not that of an optimizer of PyTorch.
    """
    groups: list[dict[str, int]] = []
    all_numbers: set[int] = set()
    try:
        for group in saved["param_groups"]:
            parameters = group["params"]
            numbers_by_name = zip(
                group[NAMES],
                parameters,
                strict=True,
            )
            groups.append(dict(numbers_by_name))
            all_numbers.update(parameters)
    except (KeyError, TypeError, ValueError):
        return None
    numbers: dict[str, int] = {}
    for group in groups:
        numbers.update(group)
    for name, number in numbers.items():
        if type(name) is not str or type(number) is not int:
            return None
    return groups if set(numbers.values()) == all_numbers else None

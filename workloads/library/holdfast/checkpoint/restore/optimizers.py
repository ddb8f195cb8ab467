"""Load an optimizer's state by the names of its parameters, since their numbers may differ."""

from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.restore.reader import allocate_tensor
from holdfast.checkpoint.state.first_moments import describe_first_moment, describe_moment
from holdfast.checkpoint.state.parameter_names import NAMES, list_parameters, number_by_name
from holdfast.checkpoint.state.tensors import Tensors, as_dtensor, get_dtype, is_wrapper
from holdfast.support.errors import InputError

Groups = list[dict[str, int]]
"""Numbers of parameters by name, for each group of an optimizer."""

_MOMENTS = (
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "exp_inf",
    "momentum_buffer",
    "square_avg",
    "grad_avg",
    "acc_delta",
    "sum",
    "prev",
    "step_size",
)
"""State of PyTorch's optimizers that has the shape of its parameter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Renumbering:
    """The parameters of a checkpoint's optimizer, matched with those of the live one."""

    numbers: dict[int, int]
    """Live numbers of parameters by their number in the checkpoint."""
    groups: list[tuple[int, list[int]]]
    """Index in the checkpoint, and live numbers of the parameters, for each live group."""

    def map_keys(self, name: str, live: Tensors) -> Tensors:
        """Return live tensors by their keys in the checkpoint; `name` is the optimizer's entry."""
        saved_numbers: dict[int, int] = {}
        for number, live_number in self.numbers.items():
            saved_numbers[live_number] = number
        tensors: Tensors = {}
        for key, tensor in live.items():
            saved_key = _renumber(key, name, saved_numbers)
            tensors[saved_key] = tensor
        return tensors

    def apply(self, saved: dict[str, Any]) -> dict[str, Any]:
        """Return a saved state with the numbers of the live optimizer."""
        groups: list[dict[str, Any]] = []
        for index, numbers in self.groups:
            groups.append(saved["param_groups"][index] | {"params": numbers})
        state: dict[Any, Any] = {}
        for number, entries in saved["state"].items():
            state[self.numbers.get(number, number)] = entries
        return saved | {"param_groups": groups, "state": state}


def _renumber(
    key: str,
    name: str,
    numbers: dict[int, int],
) -> str:
    prefix = f"{name}/state/"
    if not key.startswith(prefix):
        return key
    saved_number, slash, rest = key.removeprefix(prefix).partition("/")
    if not saved_number.isdigit():
        return key
    number = numbers.get(int(saved_number), saved_number)
    return f"{prefix}{number}{slash}{rest}"


def match_parameters(
    name: str,
    saved: Any,
    live: Any,
) -> Renumbering | None:
    """Match the parameters of optimizer `name` in the checkpoint with the live ones, by name.

    Returns None if the checkpoint has no names. Raises InputError if a parameter has no
    counterpart, or is in a group of other parameters.
    """
    saved_groups = number_by_name(saved)
    live_groups = number_by_name(live)
    if saved_groups is None:
        return None
    if live_groups is None:
        raise InputError(
            f"optimizer {name} was saved with the names of its parameters, and here they have none",
            got=(
                "an optimizer of parameters that no module of the state has; saved:"
                f" {_join_few(_list_names(saved_groups))}"
            ),
            allowed="parameters of modules of the state, or named_parameters()",
            fix="add their module to the state",
        )
    saved_names = _list_names(saved_groups)
    live_names = _list_names(live_groups)
    if saved_names != live_names:
        only_live = _join_few(live_names - saved_names)
        only_saved = _join_few(saved_names - live_names)
        raise _parameter_error(
            name, f"only here: {only_live}; only in the checkpoint: {only_saved}"
        )
    groups: list[tuple[int, list[int]]] = []
    live_numbers: dict[str, int] = {}
    for index, group in enumerate(live_groups):
        groups.append(
            (
                _find_group(
                    name,
                    group,
                    saved_groups,
                    index,
                ),
                list(group.values()),
            )
        )
        live_numbers.update(group)
    numbers: dict[int, int] = {}
    for group in saved_groups:
        for key, number in group.items():
            numbers[number] = live_numbers[key]
    return Renumbering(numbers=numbers, groups=groups)


def _find_group(
    name: str,
    group: dict[str, int],
    saved_groups: Groups,
    index: int,
) -> int:
    """Return the index of the saved group with the parameters of `group`, which has `index`."""
    # The same index first: two groups without parameters look alike.
    indices = range(len(saved_groups))
    for candidate in (index, *indices):
        if candidate not in indices:
            continue
        if saved_groups[candidate].keys() == group.keys():
            return candidate
    nearest: set[str] = set()
    for saved_group in saved_groups:
        common_names = saved_group.keys() & group.keys()
        if len(common_names) > len(nearest & group.keys()):
            nearest = set(saved_group)
    moved = _join_few(nearest ^ group.keys())
    raise _parameter_error(
        name, f"{moved} in another group: its learning rate would be that of other parameters"
    )


def _list_names(groups: Groups) -> set[str]:
    names: set[str] = set()
    for group in groups:
        names.update(group)
    return names


def _join_few(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)[:3]) or "none"


def _parameter_error(name: str, got: str) -> InputError:
    return InputError(
        f"optimizer {name} has other parameters than the checkpoint",
        got=got,
        allowed="the parameters that were saved, in any order, in the groups that they were in",
        fix="build the optimizer as it was saved, or choose another run name",
    )


def check_kind(
    name: str,
    optimizer: torch.optim.Optimizer,
    saved: Any,
) -> None:
    """Raise InputError if a saved group belongs to another kind of optimizer.

    It then has settings that the live one lacks, and lacks some of the live one: PyTorch would load
    it, and fail in the first step. One of the two alone is no difference, because versions and
    schedulers add settings.
    """
    for live_group, saved_group in zip(
        optimizer.param_groups,
        saved["param_groups"],
        strict=False,
    ):
        missing = live_group.keys() - saved_group.keys() - {NAMES}
        foreign = saved_group.keys() - live_group.keys() - {NAMES}
        if missing and foreign:
            live_kind = f"{type(optimizer).__name__}, with {_join_few(missing)}"
            raise _kind_error(name, f"{live_kind}; saved were {_join_few(foreign)}")
    _check_moment_kinds(name, optimizer, saved)


def _check_moment_kinds(
    name: str,
    optimizer: torch.optim.Optimizer,
    saved: Any,
) -> None:
    """Raise InputError if saved moments wrap other tensors than those of the optimizer would."""
    parameters = list_parameters(optimizer)
    for number, moments in saved.get("state", {}).items():
        if type(number) is not int or number >= len(parameters):
            continue
        live_kind = describe_first_moment(optimizer, parameters[number])
        if not live_kind:
            continue
        for moment in moments.values():
            if not isinstance(moment, torch.Tensor) or moment.shape != parameters[number].shape:
                continue
            if describe_moment(moment) != live_kind:
                kinds = f"moments of type {live_kind}; saved were {describe_moment(moment)}"
                raise _kind_error(name, f"{type(optimizer).__name__}, with {kinds}")


def _kind_error(name: str, got: str) -> InputError:
    return InputError(
        f"optimizer {name} is not of the type that was saved",
        got=got,
        allowed="the optimizer that was saved",
        fix=(
            "use the saved optimizer; or start another run from load_tensors(url,"
            " keys=[...]) of the model"
        ),
    )


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Load a saved state without its names of parameters, and with the dtypes that it was saved in.

    PyTorch would keep the names, and add_param_group() would then refuse a group without names.
    """
    groups: list[dict[str, Any]] = []
    for group in saved["param_groups"]:
        settings = dict(group)
        settings.pop(NAMES, None)
        groups.append(settings)
    optimizer.load_state_dict(saved | {"param_groups": groups})
    # load_state_dict casts to the parameter's dtype: fp32 moments of bf16 parameters would lose
    # bits. State under other keys than numbers belongs to no parameter, and is loaded as it is.
    parameters = list_parameters(optimizer)
    for index, entries in saved["state"].items():
        if type(index) is int and index < len(parameters):
            parameter = parameters[index]
            optimizer.state[parameter] = _undo_casts(optimizer.state[parameter], entries)


def _undo_casts(loaded: Any, saved: Any) -> Any:
    """Return what was loaded with the types that were saved, on the devices that it is on."""
    if isinstance(saved, torch.Tensor):
        return loaded if loaded.dtype == saved.dtype else saved.to(loaded.device)
    if isinstance(saved, dict) and isinstance(loaded, dict):
        filled = copy(saved)
        for name, value in saved.items():
            filled[name] = _undo_casts(loaded[name], value)
        return filled
    if type(saved) in (list, tuple):
        items = zip(loaded, saved, strict=True)
        return type(saved)(_undo_casts(item, value) for item, value in items)
    # A newer PyTorch turns step counts into tensors.
    return saved if type(loaded) is type(saved) else loaded


def check_moment(
    key: str,
    part: TensorPart,
    optimizer: torch.optim.Optimizer,
) -> None:
    """Raise InputError if a moment without a name has another shape than its parameter."""
    name, *_, number, moment = ["", "", *key.split("/")]
    parameters = list_parameters(optimizer)
    if moment not in _MOMENTS or not number.isdigit():
        return
    if int(number) >= len(parameters):
        return
    shape = tuple(parameters[int(number)].shape)
    if shape != part.shape:
        raise _parameter_error(name, f"{key} is {list(part.shape)}, its parameter {list(shape)}")


def new_moment(
    part: TensorPart,
    number: int,
    optimizer: torch.optim.Optimizer,
    *,
    is_inside: bool = False,
) -> torch.Tensor:
    """Allocate memory for a saved tensor like its parameter: a DTensor for a DTensor.

    `is_inside`: it is a part of a tensor, and all parts must be on one device.
    """
    parameters = list_parameters(optimizer)
    if number >= len(parameters):
        return allocate_tensor(part)
    parameter = parameters[number].detach()
    if is_inside and as_dtensor(parameter) is None:
        return allocate_tensor(part).to(parameter.device)
    is_scalar = not part.shape and as_dtensor(parameter) is None
    if tuple(parameter.shape) != part.shape or is_scalar or is_wrapper(parameter):
        return allocate_tensor(part)
    return torch.empty_like(parameter, dtype=get_dtype(part))

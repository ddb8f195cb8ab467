"""An optimizer's state into an optimizer whose parameters may be numbered in another way: matched
by their names.
"""

from dataclasses import dataclass
from typing import Any

import torch

from holdfast.checkpoint.format import TensorPart
from holdfast.checkpoint.restore.reading import empty_like_saved
from holdfast.checkpoint.state.parameter_names import NAMES, numbering
from holdfast.checkpoint.state.tensors import as_dtensor, saved_dtype
from holdfast.support.errors import InputError


@dataclass(frozen=True, kw_only=True, slots=True)
class Renumbering:
    """From a checkpoint to the optimizer that is here."""

    numbers: dict[int, int]
    groups: list[tuple[int, list[int]]]
    """For each group here, its place in the checkpoint and the numbers of its parameters here."""

    def saved_keys(self, name: str, live: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Tensors of the state, those of the optimizer `name` under their keys in the checkpoint."""
        saved = {here: number for number, here in self.numbers.items()}
        return {_renumbered(key, name, saved): tensor for key, tensor in live.items()}

    def of(self, saved: dict[str, Any]) -> dict[str, Any]:
        """The state as this optimizer numbers it."""
        groups = [
            saved["param_groups"][place] | {"params": numbers} for place, numbers in self.groups
        ]
        state = {}
        for number, entries in saved["state"].items():
            state[self.numbers.get(number, number)] = entries
        return saved | {"param_groups": groups, "state": state}


def _renumbered(key: str, name: str, numbers: dict[int, int]) -> str:
    entry, kind, number, rest = [
        *key.split("/", 3),
        "",
        "",
        "",
    ][:4]
    if (entry, kind) != (name, "state") or not number.isdigit():
        return key
    return f"{entry}/{kind}/{numbers.get(int(number), number)}/{rest}"


def renumbering(name: str, saved: Any, live: Any) -> Renumbering | None:
    """From the state of optimizer `name` in the checkpoint and its state here; None where the
    checkpoint has no names.

    Raises InputError where a parameter has no counterpart, or is in a group of other parameters.
    """
    theirs = numbering(saved)
    mine = numbering(live)
    if theirs is None:
        return None
    if mine is None:
        raise InputError(
            f"optimizer {name} was saved with the names of its parameters, and here they have none",
            got=(
                "an optimizer of parameters that no module of the state has; saved:"
                f" {_few(_names(theirs))}"
            ),
            allowed="parameters of modules of the state, or named_parameters()",
            fix="add their module to the state",
        )
    if _names(theirs) != _names(mine):
        only_here = _few(_names(mine) - _names(theirs))
        only_saved = _few(_names(theirs) - _names(mine))
        raise _other_parameters(
            name, f"only here: {only_here}; only in the checkpoint: {only_saved}"
        )
    groups = [
        (_place(name, group, theirs, at), list(group.values())) for at, group in enumerate(mine)
    ]
    here = {key: number for group in mine for key, number in group.items()}
    numbers = {number: here[key] for group in theirs for key, number in group.items()}
    return Renumbering(numbers=numbers, groups=groups)


def _place(
    name: str,
    group: dict[str, int],
    theirs: list[dict[str, int]],
    at: int,
) -> int:
    # Its own place first: two groups without parameters look the same.
    for place in (at, *range(len(theirs))):
        if place < len(theirs) and theirs[place].keys() == group.keys():
            return place
    nearest = max(theirs, key=lambda one: len(one.keys() & group.keys()), default={})
    moved = _few(group.keys() ^ nearest.keys())
    raise _other_parameters(
        name, f"{moved} in another group: its learning rate would be that of other parameters"
    )


def _names(groups: list[dict[str, int]]) -> set[str]:
    return {name for group in groups for name in group}


def _few(names: Any) -> str:
    return ", ".join(sorted(names)[:3]) or "none"


def _other_parameters(name: str, got: str) -> InputError:
    return InputError(
        f"optimizer {name} has other parameters than the checkpoint",
        got=got,
        allowed="the parameters that were saved, in any order, in the groups that they were in",
        fix="build the optimizer as it was saved, or choose another run name",
    )


def check_kind(name: str, optimizer: torch.optim.Optimizer, saved: Any) -> None:
    """Raises InputError where a saved group has settings of another optimizer and lacks this one's:
    PyTorch would take it, and fail in the first step. Versions and schedulers add settings, so that
    one kind of difference is none.
    """
    for group, theirs in zip(optimizer.param_groups, saved["param_groups"], strict=False):
        missing, foreign = (
            one.keys() - other.keys() - {NAMES} for one, other in ((group, theirs), (theirs, group))
        )
        if missing and foreign:
            raise InputError(
                f"optimizer {name} is not of the type that was saved",
                got=f"{type(optimizer).__name__}, with {_few(missing)}; saved were {_few(foreign)}",
                allowed="the optimizer that was saved",
                fix=(
                    "use the saved optimizer; or start another run from load_tensors(url,"
                    " keys=[...]) of the model"
                ),
            )


def load_optimizer(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    # PyTorch would take the names over, and add_param_group() then refuse a group without any.
    groups = [
        {key: value for key, value in group.items() if key != NAMES}
        for group in saved["param_groups"]
    ]
    optimizer.load_state_dict(saved | {"param_groups": groups})
    # load_state_dict casts to the parameter's dtype: fp32 moments of bf16 parameters would lose
    # bits.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, entries in saved["state"].items():
        loaded = optimizer.state[parameters[index]]
        for name, value in entries.items():
            if isinstance(value, torch.Tensor) and loaded[name].dtype != value.dtype:
                loaded[name] = value.to(loaded[name].device)


def new_moment(part: TensorPart, number: int, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    """Memory for a saved tensor, like the parameter that it belongs to: a DTensor for a DTensor."""
    parameters = []
    for group in optimizer.param_groups:
        for p in group["params"]:
            parameters.append(p)
    if number < len(parameters):
        parameter = parameters[number].detach()
        if tuple(parameter.shape) == part.shape and (
            part.shape or as_dtensor(parameter) is not None
        ):
            return torch.empty_like(parameter, dtype=saved_dtype(part))
    return empty_like_saved(part)

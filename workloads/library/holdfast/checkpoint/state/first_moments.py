"""Predicts which moments an optimizer will create in its first step, where that is possible.

torchao's optimizers quantize large moments. This finds moments that cannot be stored at the start,
and not at the first save.
"""

# Why it is so: infra/decisions/0206.

import torch

from holdfast.checkpoint.state.parameter_names import list_parameters
from holdfast.checkpoint.state.tensors import as_dtensor, detach_storable, is_wrapper, to_local


def check_first_moments(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Raise InputError if a moment that the first step will make cannot be stored."""
    for number, parameter in enumerate(list_parameters(optimizer)):
        if parameter.requires_grad and as_dtensor(parameter) is not None:
            moment = _make_first_moment(optimizer, parameter)
            if moment is not None:
                detach_storable(moment, f"{name}/state/{number}/exp_avg")


def describe_first_moment(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> str:
    """Return the kind of the moments that the first step makes; empty if it is not known."""
    moment = _make_first_moment(optimizer, parameter)
    if moment is not None:
        return describe_moment(moment)
    is_plain = not is_wrapper(to_local(parameter))
    if is_plain and type(optimizer).__module__.startswith("torch.optim."):
        return describe_moment(parameter)
    return ""


def describe_moment(moment: torch.Tensor) -> str:
    """Return the type of a tensor that wraps others, on this rank; `Tensor` for all others."""
    local = to_local(moment)
    return type(local).__name__ if is_wrapper(local) else "Tensor"


def _make_first_moment(
    optimizer: torch.optim.Optimizer, parameter: torch.Tensor
) -> torch.Tensor | None:
    packages = {kind.__module__.partition(".")[0] for kind in type(optimizer).__mro__}
    # No public function of torchao makes a moment: another version may lack this one.
    make = getattr(optimizer, "_new_buffer", None)
    if "torchao" not in packages or make is None:
        return None
    return make(parameter.detach(), True)
